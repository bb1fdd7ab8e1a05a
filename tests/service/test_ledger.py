"""The ledgers: durable, shared by processes, honest about torn lines; the provider deduplicates nothing."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from semel.reference.ledger import Ledger, LedgerLine
from semel.reference.notes import Notes
from semel.reference.provider import Provider


def entry(key: str, id: str = "1") -> LedgerLine:
    return {"key": key, "id": id, "caller": "alice", "detail": {}}


def test_the_provider_charges_as_often_as_it_is_asked(tmp_path: Path) -> None:
    provider = Provider(tmp_path / "provider.jsonl")
    first = provider.charge("key-1", "alice", Decimal("10.00"), "EUR", customer="c-1")
    second = provider.charge("key-1", "alice", Decimal("10.00"), "EUR")
    third = provider.charge("key-1", "bob", Decimal("1"), "USD")
    assert provider.charges() == [first, second, third]
    assert provider.charges("alice") == [first, second]
    assert len({charge.id for charge in provider.charges()}) == 3


def test_the_provider_deduplicates_only_on_request(tmp_path: Path) -> None:
    provider = Provider(tmp_path / "provider.jsonl")
    first = provider.charge("key-1", "alice", Decimal("10.00"), "EUR", deduplicate=True)
    assert provider.charge("key-1", "alice", Decimal("10.00"), "EUR", deduplicate=True) == first
    assert provider.charges() == [first]


def test_a_note_is_written_once_for_its_key(tmp_path: Path) -> None:
    one, other = Notes(tmp_path / "notes.jsonl"), Notes(tmp_path / "notes.jsonl")
    first = one.write("key-1", "alice", "hello")
    assert other.write("key-1", "alice", "hello") == first
    second = other.write("key-2", "bob", "x")
    assert one.notes_of("alice") == [first]
    assert one.notes_of("bob") == [second]


def test_a_torn_line_is_skipped_and_hides_no_later_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(entry("one"), once=True)
    with path.open("ab") as file:
        file.write(b'{"key":"torn","id":"2","cal')
    assert [found["key"] for found in ledger.entries()] == ["one"]
    ledger.append(entry("two"), once=True)
    expected = ["one", "two"]
    assert [found["key"] for found in ledger.entries()] == expected
    assert [found["key"] for found in Ledger(path).entries()] == expected


@pytest.mark.parametrize("line", [b"[]\n", b"17\n", b"{}\n", b"\xff\n", b"\n"])
def test_a_strange_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(line)
    ledger = Ledger(path)
    ledger.append(entry("one"), once=True)
    assert ledger.entries() == [entry("one")]


def test_an_endless_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most"):
        Ledger(tmp_path / "ledger.jsonl").append(entry("x" * 70_000), once=True)


def test_a_ledger_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none.jsonl").entries() == []
    assert not (tmp_path / "none.jsonl").exists()


PROCESSES, KEYS = 4, 25
WRITER = """
import sys
from pathlib import Path
from semel.reference.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    ledger.append({"key": f"shared-{number}", "id": sys.argv[2], "caller": "alice", "detail": {}}, once=True)
    ledger.append({"key": f"own-{number}", "id": sys.argv[2], "caller": "alice", "detail": {}}, once=False)
"""


def test_processes_share_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(number), str(KEYS)])
        for number in range(PROCESSES)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * PROCESSES
    keys = [found["key"] for found in Ledger(path).entries()]
    assert sum(key.startswith("shared") for key in keys) == KEYS
    assert sum(key.startswith("own") for key in keys) == KEYS * PROCESSES
