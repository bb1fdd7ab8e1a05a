"""`semel move`: after it, every key meets in the other store what it would have met in the first."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel import Answer, Command, Engine, Permit, Policy
from semel.admin.move.records import Mover
from semel.cli.commands.stores.move import copy, look
from semel.cli.main import main
from semel.core.identity import derive_key, uuid_text
from semel.core.model import InProgress, Record, Replay, Resolution, State, Verdict
from semel.core.outcomes import Outcome, Refused, Released, Succeeded, Unprovable
from semel.errors import StoreUnavailable
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.attempts import bits
from semel.testing.clock import SettableClock
from tests.engine.shells import MADE, SCOPE
from tests.servers import mariadb, postgres, redis
from tests.servers.running import stop

Capture = pytest.CaptureFixture[str]
SCHEMA = f"{postgres.schema()}_move"
NOTHING = Released("refused before anything", proven=True)
DOUBT = Unprovable("timeout")
WHOLE = Answer(
    200, ((b"content-type", b"application/octet-stream"), (b"link", b"<a>"), (b"link", b"<b>")), bytes(range(256))
)
STORIES: dict[str, tuple[Outcome, ...]] = {
    "made": (Succeeded(MADE),),
    "whole": (Succeeded(WHOLE),),
    "no status": (Succeeded(Answer(None, (), "é".encode())),),
    "refused": (Refused(Answer(409, (), b"sold out")),),
    "nothing": (NOTHING,),
    "unknown": (DOUBT,),
    "made at last": (DOUBT, DOUBT, Succeeded(MADE)),
    "nothing at last": (DOUBT, NOTHING),
    "unknown again": (DOUBT, DOUBT),
    "idempotent": (Succeeded(MADE),),
    "idempotent nothing": (NOTHING,),
    "idempotent refused": (DOUBT, Refused(Answer(404, (), b""))),
    "expired": (Succeeded(MADE),),
    "taken for new": (DOUBT, Succeeded(MADE)),
}
"""A key, and how its executions end; one that is unknown and not the last was settled as "did not happen"."""


def command(key: str) -> Command:
    options: dict[str, Any] = {"effects": "idempotent" if key.startswith("idempotent") else "external"}
    if key in ("expired", "taken for new"):
        options |= {"answer_seconds": 10, "after_expiry": "new" if key == "taken for new" else "refuse"}
    return Command(SCOPE, key, bits("request", len(key), size=32), "1.tests", Policy.of(**options))


def settle_with(engine: Engine, key: str, outcomes: tuple[Outcome, ...]) -> None:
    """Let a command's executions end so."""
    for number, outcome in enumerate(outcomes, start=1):
        permit = engine.claim(command(key))
        assert isinstance(permit, Permit)
        permit.result("payment", f"p-{key}")
        engine.settle(permit, outcome)
        if outcome is DOUBT and number < len(outcomes):
            resolution = Resolution(permit.grant.id, permit.grant.fence, False, None, "me", "asked", True)
            engine.perform("resolve", lambda resolution=resolution: engine.store.resolve(resolution))  # type: ignore[misc]


def row(engine: Engine, key: str) -> Record | None:
    id = engine.core.attempt(command(key)).id
    return engine.perform("read", lambda: engine.store.read((id,)))[0]


def meets(engine: Engine, key: str) -> Verdict | str | None:
    """Return what the next attempt gets; if it would run, its derived key."""
    claim = engine.core.attempt(command(key))
    [verdict] = engine.perform("look", lambda: engine.store.look([claim]))
    if verdict is not None:
        return verdict
    found = row(engine, key)
    again = found is not None and found.answer_until is not None and found.state == State.SUCCEEDED
    return None if found is None else derive_key(found.id, found.generation + again, "charge", 0)


@pytest.fixture
def first(tmp_path: Path) -> str:
    """A store with all the stories, a minute old, so that short answers are over."""
    url = f"sqlite:///{tmp_path / 'first.db'}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    clock = SettableClock(time.time_ns() // 1000 - 60_000_000)
    with Engine(sqlite_backend(SqliteDriver(url[10:], clock=clock))) as engine:
        for key, outcomes in STORIES.items():
            clock.advance(1_000)
            settle_with(engine, key, outcomes)
    return url


def fresh(url: str) -> str:
    """A store that is migrated and empty."""
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
        engine.open()
        assert engine.perform("counts", engine.store.counts) == {}
    return url


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An empty store of each kind."""
    with ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(postgres.postgres(), autocommit=True))
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        stack.callback(connection.execute, f"DROP SCHEMA {SCHEMA} CASCADE")
        yield {
            "sqlite": fresh(f"sqlite:///{tmp_path / 'second.db'}"),
            "postgresql": fresh(f"{postgres.postgres()}?schema={SCHEMA}"),
            "redis": fresh(f"redis://127.0.0.1:{redis.valkey()}/0?prefix={redis.prefix()}"),
        }


@pytest.fixture
def in_mariadb() -> Iterator[str]:
    run = mariadb.mariadb()
    server = replace(run, database=f"{run.database}_move")
    with closing(mariadb.connect(server.port)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE OR REPLACE DATABASE {server.database}")
        yield fresh(mariadb.url(server))
        cursor.execute(f"DROP DATABASE {server.database}")


def run_move(source: str, target: str, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["move", "--from", source, "--to", target, "--json", *options])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def compare(source: str, target: str) -> None:
    """Every key meets the same in both."""
    with Engine.connect(source) as one, Engine.connect(target) as other:
        for key in STORIES:
            assert meets(one, key) == meets(other, key), key
            assert meets(one, key) is not None
            kept, copied = row(one, key), row(other, key)
            assert kept is not None
            assert copied is not None
            assert (kept.operation_id, kept.resource_id) == (copied.operation_id, copied.resource_id)
            for name in ("answer_until", "forget_after"):
                left, right = getattr(kept, name), getattr(copied, name)
                assert (left is None) is (right is None)
                # What was over is over; what was not ends when it would have: within what the two clocks differ by.
                assert left is None or abs(left - right) < 20_000_000 or max(left, right) <= copied.settled_at + 1  # type: ignore[operator]
        counts = [each.perform("counts", each.store.counts) for each in (one, other)]
        assert counts[0] == counts[1]


def test_every_key_gets_the_same_answer_through_all_stores(first: str, places: dict[str, str], capsys: Capture) -> None:
    source = first
    for target in (places["postgresql"], places["redis"], places["sqlite"]):
        assert run_move(source, target, capsys, "--dry-run")[1]["records"] == len(STORIES)
        code, said = run_move(source, target, capsys)
        assert (code, said["copied"], said["alreadyThere"], said["over"]) == (0, len(STORIES), 0, 0), said
        compare(source, target)
        code, said = run_move(source, target, capsys)
        assert (code, said["copied"], said["alreadyThere"]) == (0, 0, len(STORIES)), said
        compare(source, target)
        source = target


@mariadb.MARK
def test_a_move_into_mariadb_and_out_of_it_keeps_every_answer(
    first: str, in_mariadb: str, places: dict[str, str], capsys: Capture
) -> None:
    assert run_move(first, in_mariadb, capsys)[0] == 0
    compare(first, in_mariadb)
    assert run_move(in_mariadb, places["sqlite"], capsys)[0] == 0
    compare(in_mariadb, places["sqlite"])


def test_a_moved_command_continues_in_its_new_store(first: str, places: dict[str, str], capsys: Capture) -> None:
    """A replay, another request refused, an unknown one settled by an operator, a free one run."""
    assert run_move(first, places["postgresql"], capsys)[0] == 0
    with Engine.connect(places["postgresql"]) as engine:
        assert isinstance(engine.claim(command("made")), Replay)
        settle_with(engine, "nothing", (Succeeded(MADE),))
        found = row(engine, "unknown")
        assert found is not None
        resolution = Resolution(found.id, found.fence, True, MADE, "me", "asked", True)
        engine.perform("resolve", lambda: engine.store.resolve(resolution))
        assert isinstance(engine.claim(command("unknown")), Replay)


def test_an_open_record_is_refused_and_nothing_is_written(first: str, places: dict[str, str], capsys: Capture) -> None:
    with Engine.connect(first) as engine:
        permit = engine.claim(replace(command("made"), key="open"))
        assert isinstance(permit, Permit)
        for options in ((), ("--dry-run",)):
            code, said = run_move(first, places["sqlite"], capsys, *options)
            assert code == 1
            assert said["error"].startswith("1 of 15 records cannot be moved: operation ")
            assert permit.operation_id in said["error"]
        engine.settle(permit, Succeeded(MADE))
    with Engine.connect(places["sqlite"]) as engine:
        assert engine.perform("counts", engine.store.counts) == {}
    assert run_move(first, places["sqlite"], capsys)[1]["copied"] == 15


@pytest.mark.parametrize(
    "harm", ["body = x'00'", "state = 99", "lease_until = 'soon'", "answer_kind = 9", "sealing_key_id = 'k1'"]
)
def test_a_damaged_or_sealed_record_is_refused_by_its_name(
    harm: str, first: str, places: dict[str, str], capsys: Capture
) -> None:
    with Engine.connect(first) as engine:
        kept = row(engine, "made")
        assert kept is not None
    with closing(sqlite3.connect(first.removeprefix("sqlite:///"))) as plain:
        plain.execute(f"UPDATE semel_record SET {harm} WHERE id = ?", (kept.id,))
        plain.commit()
    code, said = run_move(first, places["sqlite"], capsys)
    assert code == 1
    assert uuid_text(kept.operation_id) in said["error"]
    with Engine.connect(places["sqlite"]) as engine:
        assert row(engine, "made") is None


def test_a_dry_run_writes_nothing(first: str, places: dict[str, str], capsys: Capture) -> None:
    code, said = run_move(first, places["sqlite"], capsys, "--dry-run")
    assert code == 0
    assert not any(said.pop("beside").values())
    assert said == {"records": len(STORIES), "copied": 0, "alreadyThere": 0, "over": 0, "dryRun": True, "rows": {}}
    with Engine.connect(places["sqlite"]) as engine:
        assert engine.perform("counts", engine.store.counts) == {}


@pytest.mark.parametrize("written", [False, True])
def test_a_move_interrupted_anywhere_continues(
    first: str, written: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call to the target fails, before or after it is done, for every n."""
    cuts = 0
    for number in range(1, 100):
        target = fresh(f"sqlite:///{tmp_path / f'{written}-{number}.db'}")
        with Engine.connect(first) as one, Engine.connect(target) as other:
            calls = 0
            plain = other.perform

            def perform(verb: str, make: Any, plain: Any = plain, number: int = number) -> Any:
                nonlocal calls
                calls += 1
                if calls != number:
                    return plain(verb, make)
                if written:
                    plain(verb, make)
                raise StoreUnavailable("cut short")

            monkeypatch.setattr(other, "perform", perform)
            survey = look(one)
            try:
                copy(Mover(one, other, survey.now), survey)
            except StoreUnavailable:
                cuts += 1
            else:
                break
        code, said = run_move(first, target, capsys)
        assert code == 0, said
        compare(first, target)
    assert cuts > 8


def test_another_record_in_its_place_is_not_touched(first: str, places: dict[str, str], capsys: Capture) -> None:
    with Engine.connect(places["sqlite"]) as engine:
        settle_with(engine, "made", (Succeeded(WHOLE),))
        before = row(engine, "made")
    code, said = run_move(first, places["sqlite"], capsys)
    assert (code, "a different record under its id" in said["error"]) == (1, True)
    with Engine.connect(places["sqlite"]) as engine:
        assert row(engine, "made") == before


def test_a_source_that_is_written_to_is_reported(
    first: str, places: dict[str, str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Mover.move

    def move(self: Mover, ids: list[bytes]) -> None:
        plain(self, ids)
        with Engine.connect(first) as engine:
            assert not isinstance(engine.claim(replace(command("made"), key="late")), InProgress)

    monkeypatch.setattr(Mover, "move", move)
    code, said = run_move(first, places["sqlite"], capsys)
    assert (code, "the source changed during the move" in said["error"]) == (1, True)


def test_external_commands_are_not_moved_into_a_server_that_forgets(
    first: str, tmp_path: Path, capsys: Capture
) -> None:
    server = redis.start(tmp_path / "own")
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        with closing(Engine.connect(url)) as engine:
            engine.migrate()
        code, said = run_move(first, url, capsys)
        assert (code, "would lose the fact that it ran" in said["error"]) == (2, True)
        assert run_move(first, f"{url}?persistence=none", capsys)[0] == 0
    finally:
        stop(server)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("first", "first", "--to and --from are the same store"),
        ("memory://", "first", "--from: memory:// exists only within its own process"),
        ("first", "memory://", "--to: memory:// exists only within its own process"),
        ("first", "sqlite:///nowhere/there.db", ""),
    ],
)
def test_a_move_between_unsuitable_stores_is_refused(
    source: str, target: str, said: str, first: str, capsys: Capture
) -> None:
    code, document = run_move(source.replace("first", first), target.replace("first", first), capsys)
    assert code in (2, 3)
    assert said in document["error"]
