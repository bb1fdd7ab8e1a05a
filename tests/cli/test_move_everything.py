"""`semel move` carries what hangs on records: operations, bulks and items, events, handled messages, recorded steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, Bulk, Engine, Inbox
from semel.admin.move import rows as moved_rows
from semel.cli.commands.stores import move as moving
from semel.cli.main import main
from semel.core.model import Resolution
from semel.errors import NotReplayableError, StoreUnavailable
from semel.inbox.store import Receipt
from semel.operations.flow import resolve
from semel.outbox.event import Event
from semel.outbox.partitions import Partitions
from semel.outbox.store import Events
from semel.stores.sql.statements import Row
from semel.stores.sql.tables import NOUNS, Noun
from semel.workers import FunctionSink, Relay
from tests.cli.everything import CASES, DONE, STEPPED, fill, fresh, handle, invoice, raises, shop
from tests.servers import mariadb, postgres, redis
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

Capture = pytest.CaptureFixture[str]
SCHEMA = f"{postgres.schema()}_move_all"


def rows(url: str) -> dict[str, list[Row]]:
    """Every row of every kind, in its order; of events without their places."""
    with Engine.connect(url) as engine:
        return {noun.name: sorted(_rows(engine, noun), key=repr) for noun in NOUNS}


def _rows(engine: Engine, noun: Noun) -> Iterator[Row]:
    for page in moved_rows.pages_of(engine, noun):
        yield from (row[: len(noun.columns)] for row in page)


def run_move(source: str, target: str, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["move", "--from", source, "--to", target, "--json", *options])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


@pytest.fixture
def first(tmp_path: Path) -> str:
    url = fresh(f"sqlite:///{tmp_path / 'first.db'}")
    fill(url)
    return url


@pytest.fixture
def second(tmp_path: Path) -> str:
    return fresh(f"sqlite:///{tmp_path / 'second.db'}")


def in_postgres() -> str:
    empty_schema(postgres.postgres(), SCHEMA)
    return fresh(f"{postgres.postgres()}?schema={SCHEMA}")


def in_mariadb() -> str:
    server = mariadb.mariadb()
    mariadb_subject(server, None)
    return fresh(mariadb.url(server))


def relay_all(url: str) -> list[Event]:
    """Run a relay of this store; return what it publishes."""
    sent: list[Event] = []

    async def publish() -> None:
        async with AsyncEngine.connect(url) as engine:
            while await Relay(engine, FunctionSink(sent.append)).run_once():
                pass

    asyncio.run(publish())
    return sent


@mariadb.MARK
def test_a_move_through_all_sql_stores_keeps_every_row(
    first: str, second: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "NOUNS", tuple(noun._replace(page=2) for noun in NOUNS))  # over many pages
    before, source = rows(first), first
    assert {name: len(found) for name, found in before.items()} == {
        **{"steps": 1, "operations": 1, "bulks": 1, "items": 5},
        **{"events": 6, "messages": 3},
        **{"imports": 2, "import_names": 2, "known_rows": 1, "file_parts": 6, "files": 1},
    }
    for target in (in_postgres(), in_mariadb(), second):
        code, said = run_move(source, target, capsys)
        assert code == 0, said
        assert rows(target) == before
        again, said = run_move(source, target, capsys)
        assert (again, {name: told["copied"] for name, told in said["rows"].items()}) == (0, dict.fromkeys(before, 0))
        source = target
    goes_on(second)


def goes_on(url: str) -> None:
    """Nothing that was done is done again in the new store."""
    with Engine.connect(url) as engine:
        done = Bulk(engine, operation="cases", effects="external").run(CASES, handle, key="list", caller="alice")
        assert (done.replayed, done.tally.retryable) == (True, 1)
        with pytest.raises(NotReplayableError):
            engine.run(invoice("another"), lambda permit: DONE)
        inbox = Inbox(engine, consumer="mails", tries_max=2)
        assert inbox.handle("m-1", raises) is Receipt.DUPLICATE
        assert inbox.handle("poison", raises) is Receipt.PARKED
        calls: list[str] = []
        row = engine.perform("read", lambda: engine.store.read((engine.core.attempt(STEPPED).id,)))[0]
        assert row is not None
        resolution = Resolution(row.id, row.fence, False, None, "op", "asked", True)
        engine.perform("resolve", lambda: resolve(engine.store, resolution))
        assert engine.run(STEPPED, lambda permit: shop(permit, calls, lost=False)).answer == DONE
        assert calls == ["ship"]  # the charge had finished in the old store


def test_waiting_events_are_published_once_and_in_order_after_a_move(first: str, second: str, capsys: Capture) -> None:
    with Engine.connect(first) as engine:
        waiting = engine.perform("find", lambda: Events(engine.store.dialect).find(0, 10, parked=False))  # type: ignore[attr-defined]
        expected = [each.event.id for each in waiting if each.parked_at is None]
    assert run_move(first, second, capsys)[0] == 0
    sent = relay_all(second)
    assert sorted(event.id for event in sent) == sorted(expected)
    for about in ("0", "1"):
        assert [e.id for e in sent if e.aggregate_id == about] == [
            w.event.id for w in waiting if w.event.aggregate_id == about and w.parked_at is None
        ]
    # And back: the old store learns that they were published, so that they are not published again.
    assert run_move(second, first, capsys)[0] == 0
    assert relay_all(first) == []


@mariadb.MARK
def test_a_message_handled_meanwhile_is_remembered_as_long(first: str, second: str, capsys: Capture) -> None:
    for target in (in_postgres(), in_mariadb(), second):
        with Engine.connect(first) as engine:
            Inbox(engine, consumer="late").note_failure(target, "not yet")
            assert run_move(first, target, capsys)[0] == 0
            assert Inbox(engine, consumer="late", keep_seconds=86_400 * 30).handle(target, str) is Receipt.HANDLED
        assert run_move(first, target, capsys)[0] == 0
        assert rows(target)["messages"] == rows(first)["messages"]


def test_a_running_relay_is_refused(first: str, second: str, capsys: Capture) -> None:
    with Engine.connect(first) as engine:
        partitions = Partitions(engine.store.dialect)  # type: ignore[attr-defined]
        engine.perform("attend", lambda: partitions.attend("r-1", 9_000_000, listens=False))
        for options in ((), ("--dry-run",)):
            code, said = run_move(first, second, capsys, *options)
            assert (code, "a relay publishes the events of --from" in said["error"]) == (1, True)
        engine.perform("leave", lambda: partitions.leave("r-1", 9_000_000))
    assert run_move(first, second, capsys)[0] == 0


def test_a_target_that_cannot_store_events_is_refused_with_the_remedy(first: str, capsys: Capture) -> None:
    target = fresh(f"redis://127.0.0.1:{redis.valkey()}/0?prefix={redis.prefix()}_all")
    for options in ((), ("--dry-run",)):
        code, said = run_move(first, target, capsys, *options)
        assert code == 1
        for text in ("4 events that are not published", "1 parked events", "semel worker", "--records-only"):
            assert text in said["error"], said
    with Engine.connect(target) as engine:
        assert engine.perform("counts", engine.store.counts) == {}
    assert run_move(first, target, capsys, "--records-only")[1]["copied"] == 3


def test_records_only_copies_the_steps_too(first: str, second: str, capsys: Capture) -> None:
    assert run_move(first, second, capsys, "--records-only")[0] == 0
    assert {name: len(found) for name, found in rows(second).items() if found} == {"steps": 1}


def test_another_operation_with_its_reference_is_reported(first: str, second: str, capsys: Capture) -> None:
    with Engine.connect(second) as engine:
        engine.run(invoice("theirs"), lambda permit: DONE)
    code, said = run_move(first, second, capsys)
    assert (code, "another operation has its business reference" in said["error"]) == (1, True)


@pytest.mark.parametrize("tried", [False, True])
def test_a_source_that_is_written_to_is_reported(
    first: str, second: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    plain = moved_rows.pages_of
    if tried:  # then its row is there already
        with Engine.connect(first) as engine:
            Inbox(engine, consumer="late").note_failure("m", "not yet")

    def pages_of(engine: Engine, noun: Noun) -> Iterator[list[Row]]:
        yield from plain(engine, noun)
        if noun.name == "messages":
            with Engine.connect(first) as other:
                Inbox(other, consumer="late").handle("m", lambda message: None)

    monkeypatch.setattr(moved_rows, "pages_of", pages_of)
    code, said = run_move(first, second, capsys)
    assert (code, "changed during the move" in said["error"]) == (1, True)


@pytest.mark.parametrize("written", [False, True])
def test_a_move_of_all_rows_interrupted_anywhere_continues(
    first: str, tmp_path: Path, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call to the target fails, before or after it is done, for every n."""
    before = rows(first)
    cuts = 0
    for number in range(1, 100):
        target = fresh(f"sqlite:///{tmp_path / f'{written}-{number}.db'}")
        assert main(["move", "--from", first, "--to", target, "--records-only", "--json"]) == 0
        with Engine.connect(first) as one, Engine.connect(target) as other:
            held = moved_rows.holdings(one)
            assert held is not None
            calls, plain = 0, other.perform

            def perform(verb: str, make: Any, plain: Any = plain, number: int = number) -> Any:
                nonlocal calls
                calls += 1
                if calls != number:
                    return plain(verb, make)
                if written:
                    plain(verb, make)
                raise StoreUnavailable("cut short")

            monkeypatch.setattr(other, "perform", perform)
            try:
                moved_rows.copy_rows(one, other, held)
            except StoreUnavailable:
                cuts += 1
            else:
                break
            monkeypatch.setattr(other, "perform", plain)
            moved_rows.copy_rows(one, other, held)
        assert rows(target) == before
    assert cuts > 8
