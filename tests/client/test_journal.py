"""The journal: kept before anything is sent, one sender at a time, private, and sound after SIGKILL at every write."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from semel.client.journal import Busy, Ending, Journal, JournalEntry, JournalError, PayloadMismatch, SendingClaim
from semel.errors import ConfigurationError
from semel.sealing.sealer import Sealer

KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"
CANARY = b"4111-1111-1111-1111"


class Clocks:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.steady = 50.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def entry(key: str = KEY, name: str | None = None, digest: bytes = b"d" * 32) -> JournalEntry:
    return JournalEntry(key, name, None, "POST", "https://shop.example/payments", {"X-Shop": "1"}, digest, CANARY)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


Make = Callable[..., Journal]


@pytest.fixture(params=["file", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clocks: Clocks) -> Make:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'intents.db'}"

    def make_journal(**options: object) -> Journal:
        journal = Journal(url, wall=lambda: clocks.wall, steady=lambda: clocks.steady, **options)  # type: ignore[arg-type]
        request.addfinalizer(journal.close)
        return journal

    return make_journal


def test_an_intent_is_found_again_by_name_and_by_key(make: Make) -> None:
    journal = make()
    journal.add(entry(name="rent"))
    again = journal.add(entry(key="another-key", name="rent"))
    assert again.key == KEY
    assert journal.find(name="rent") == again == journal.find(key=KEY)
    assert journal.open() == [again]
    assert journal.find(name="x") is None


@pytest.mark.parametrize(
    "other",
    [
        entry(name="rent", digest=b"e" * 32),
        entry(key="k2", name="rent", digest=b"e" * 32),
        entry(digest=b"e" * 32),
        entry(name="salary"),
    ],
    ids=["both", "name", "key", "another name"],
)
def test_another_payload_under_a_stored_name_or_key_is_refused(make: Make, other: JournalEntry) -> None:
    journal = make()
    kept = journal.add(entry(name="rent"))
    with pytest.raises(PayloadMismatch, match="nothing was sent") as raised:
        journal.add(other)
    assert KEY not in str(raised.value)
    assert journal.open() == [kept]


def test_the_journal_stores_only_a_digest_by_default(make: Make, tmp_path: Path) -> None:
    kept = make().add(entry())
    assert kept.body is None
    assert all(CANARY not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_stored_payload_is_deleted_when_its_intent_ends(make: Make) -> None:
    journal = make(payloads=True)
    assert journal.add(entry()).body == CANARY
    claim = journal.claim(KEY, 10)
    assert isinstance(claim, SendingClaim)
    assert journal.begin(claim, 86_400.0, None)
    journal.conclude(claim, Ending("done", status=201, headers={"location": "/p/1"}, body=b"answer"))
    ended = journal.find(key=KEY)
    assert ended is not None
    assert (ended.body, ended.answer_body, ended.answer_headers) == (None, b"answer", {"location": "/p/1"})
    assert (ended.state, ended.status, ended.sends) == ("done", 201, 1)


def test_a_sealed_payload_is_unreadable_in_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'intents.db'}"
    journal = Journal(url, payloads=True, sealer=Sealer({"2026": bytes(range(32))}))
    assert journal.add(entry()).body == CANARY
    assert all(CANARY not in path.read_bytes() for path in tmp_path.iterdir())
    [found] = journal.open()
    assert found.body == CANARY


# --- one sender ---


def test_an_intent_has_one_sender_at_a_time(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry())
    first = journal.claim(KEY, 30)
    assert isinstance(first, SendingClaim)
    clocks.pass_(10)
    assert journal.claim(KEY, 30) == Busy(20)
    journal.release(first)
    assert isinstance(journal.claim(KEY, 30), SendingClaim)


def test_an_expired_claim_sends_nothing_more(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry())
    first = journal.claim(KEY, 30)
    clocks.pass_(30)
    assert isinstance(first, SendingClaim)
    assert not journal.begin(first, 86_400.0, None)
    second = journal.claim(KEY, 30)
    assert isinstance(second, SendingClaim)
    assert not journal.begin(first, 86_400.0, None)
    journal.conclude(first, Ending("open", "NO_ANSWER"))  # it does not take the claim away
    assert isinstance(journal.claim(KEY, 30), Busy)
    assert journal.begin(second, 86_400.0, None)


def test_an_outcome_is_written_although_the_claim_was_lost(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry())
    first = journal.claim(KEY, 30)
    clocks.pass_(30)
    second = journal.claim(KEY, 30)
    assert isinstance(first, SendingClaim)
    assert isinstance(second, SendingClaim)
    journal.conclude(first, Ending("done", status=201))
    assert not journal.begin(second, 86_400.0, None)
    journal.conclude(second, Ending("refused", "HTTP_422"))  # the first end holds
    found = journal.find(key=KEY)
    assert found is not None
    assert (found.state, found.status) == ("done", 201)


def test_no_jump_of_the_wall_clock_ends_a_claim(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry())
    journal.claim(KEY, 30)
    for jump in (1e6, -2e6):
        clocks.wall += jump
        assert isinstance(journal.claim(KEY, 30), Busy)


def test_a_claim_of_an_earlier_boot_does_not_count(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry())
    journal.claim(KEY, 30)
    clocks.steady = 1.0  # the monotonic clock began again
    assert isinstance(journal.claim(KEY, 30), SendingClaim)


def test_the_age_of_an_intent_never_shrinks_when_the_clock_is_set_back(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry())
    first = journal.claim(KEY, 30)
    assert isinstance(first, SendingClaim)
    assert first.age_seconds == 0
    journal.begin(first, 86_400.0, None)
    clocks.pass_(86_000)
    journal.release(first)
    journal.add(entry(key="another"))  # the journal sees this time
    clocks.wall -= 80_000
    second = journal.claim(KEY, 30)
    assert isinstance(second, SendingClaim)
    assert second.age_seconds == 86_000


def test_a_clock_that_was_ahead_at_the_first_attempt_hides_no_age(make: Make, clocks: Clocks) -> None:
    """As on a machine that asks for the time after its start: the server would have forgotten the key."""
    journal = make()
    journal.add(entry())
    clocks.wall += 2 * 86_400
    first = journal.claim(KEY, 30)
    assert isinstance(first, SendingClaim)
    journal.begin(first, 86_400.0, None)
    journal.release(first)
    clocks.wall -= 2 * 86_400
    clocks.pass_(90_000)
    second = journal.claim(KEY, 30)
    assert isinstance(second, SendingClaim)
    assert second.age_seconds == 90_000


def test_a_journal_of_an_earlier_version_is_used(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'intents.db'}"
    Journal(url).add(entry())
    with closing(sqlite3.connect(tmp_path / "intents.db")) as file:
        for name in ("first_sent_boot", "first_sent_steady"):
            file.execute(f"ALTER TABLE semel_intent DROP COLUMN {name}")
    journal = Journal(url)
    claim = journal.claim(KEY, 30)
    assert isinstance(claim, SendingClaim)
    assert journal.begin(claim, 86_400.0, None)


def test_a_claim_reads_the_clock_under_the_lock(tmp_path: Path) -> None:
    """Or two that wait for the lock would take each other's claim for one of an earlier boot."""
    path = tmp_path / "intents.db"
    is_locked: list[bool] = []

    def steady() -> float:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
                is_locked.append(False)
            except sqlite3.OperationalError:
                is_locked.append(True)
        return 50.0

    journal = Journal(f"sqlite:///{path}", steady=steady)
    journal.add(entry())
    claim = journal.claim(KEY, 30)
    assert isinstance(claim, SendingClaim)
    assert journal.begin(claim, 86_400.0, None)
    assert is_locked == [True, True]


def test_threads_race_for_one_claim(tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path / 'intents.db'}")
    journal.add(entry())
    got: list[SendingClaim | Busy] = []
    threads = [Thread(target=lambda: got.append(journal.claim(KEY, 30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in got) == ["Busy"] * 7 + ["SendingClaim"]


def test_a_killed_senders_claim_is_free_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'intents.db'}"
    journal = Journal(url)
    journal.add(entry())
    program = (
        "import os, signal, sys\nfrom semel.client.journal import Journal\n"
        f"Journal(sys.argv[1]).claim('{KEY}', 3600)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, url]).returncode == -9
    assert isinstance(journal.claim(KEY, 30), SendingClaim)


# --- the file ---


def test_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "intents.db"
    before = os.umask(0)
    try:
        Journal(f"sqlite:///{path}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Journal(f"sqlite:///{path}")


@pytest.mark.parametrize("url", ["intents.db", "sqlite://x.db", "sqlite:///", "postgresql://x", "", None])
def test_a_wrong_url_is_explained(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///intents\.db"):
        Journal(url)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="its own file"):
        Journal(f"sqlite:///{path}")


def test_a_missing_folder_and_a_damaged_file_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be created"):
        Journal(f"sqlite:///{tmp_path / 'no' / 'intents.db'}")
    path = tmp_path / "intents.db"
    path.write_bytes(b"no database" * 100)
    path.chmod(0o600)
    with pytest.raises(JournalError, match=r"intents\.db"):
        Journal(f"sqlite:///{path}")


def test_ended_intents_are_forgotten_and_open_ones_never(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry(name="open"))
    journal.add(entry(key="done", name="done"))
    claim = journal.claim("done", 10)
    assert isinstance(claim, SendingClaim)
    journal.conclude(claim, Ending("done", status=200))
    clocks.pass_(86_400 * 31)
    assert journal.forget() == 1
    assert [kept.name for kept in journal.open()] == ["open"]
    with pytest.raises(JournalError, match="no longer has this intent"):
        journal.claim("done", 10)


def test_an_intent_in_doubt_is_forgotten_only_by_name(make: Make, clocks: Clocks) -> None:
    journal = make()
    journal.add(entry(key="k-1", name="rent"))
    claim = journal.claim("k-1", 10)
    assert isinstance(claim, SendingClaim)
    with pytest.raises(JournalError, match="is being sent"):
        journal.drop("rent")
    journal.conclude(claim, Ending("doubt", "KEY_LIFETIME_OVER"))
    clocks.pass_(86_400 * 400)
    assert journal.forget() == 0
    assert journal.add(entry(key="k-2", name="rent")).key == "k-1"  # never a silent new key
    dropped = journal.drop("rent")
    assert dropped is not None
    assert (dropped.key, dropped.state) == ("k-1", "doubt")
    assert journal.add(entry(key="k-2", name="rent")).key == "k-2"
    assert journal.drop("nothing") is None


def test_no_representation_shows_a_key_or_a_payload(make: Make) -> None:
    journal = make(payloads=True)
    kept = journal.add(entry(name="rent"))
    claim = journal.claim(KEY, 10)
    shown = repr([journal, kept, claim, replace(kept, answer_body=CANARY), Ending("done", body=CANARY)])
    assert KEY not in shown
    assert CANARY.decode() not in shown
