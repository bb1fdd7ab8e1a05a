"""Events and their commands: written iff the command is settled as a success, under ids that never change. 20 s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel import Answer, AsyncEngine, Engine, NothingHappened, Permit, Policy
from semel.core.model import Settled, Superseded
from semel.core.outcomes import Refused, Succeeded
from semel.errors import PolicyError, StoreError
from semel.outbox.rules import PAYLOAD_BYTES_MAX, event_id
from semel.testing.clock import SettableClock
from semel.testing.faults import Crash, Faults, Kind, When, every_fault, faulty_sqlite
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, command
from tests.outbox.conftest import POSTGRES, SQLITE, Place, emit_one, make_place

ATOMIC = Policy(effects="atomic")
EXTERNAL = Policy(effects="external")
POLICIES = [ATOMIC, EXTERNAL, Policy(effects="idempotent", dedup_for_seconds=3600)]


@pytest.mark.parametrize("policy", POLICIES, ids=["atomic", "external", "idempotent"])
def test_an_event_is_committed_with_its_command_and_a_replay_writes_none(
    policy: Policy, engine: Engine, place: Place
) -> None:
    what = command(policy=policy)

    def handler(permit: Permit) -> Answer:
        answer = emit_one(permit)
        assert place.ids == []  # not before the command is settled
        return answer

    assert not engine.run(what, handler).replayed
    assert engine.run(what, handler).replayed
    id = engine.core.attempt(what).id
    assert place.ids == [event_id(id, 0, "orders.placed", 0)]
    [row] = place.rows("SELECT aggregatetype, aggregateid, type, payload, topic, tenant FROM semel_event")
    assert tuple(bytes(cell) if isinstance(cell, memoryview) else cell for cell in row) == (
        *("order", "7", "orders.placed", b'{"n":1}', "orders.placed", "acme"),
    )


@pytest.mark.parametrize("asyncpg", [False, True])
def test_async_engines_write_them_in_the_same_commit(asyncpg: bool, tmp_path: Path) -> None:
    place = make_place(POSTGRES, tmp_path)
    url = place.url.replace("postgresql://", "postgresql+asyncpg://") if asyncpg else place.url

    async def story() -> None:
        async with AsyncEngine.connect(url) as engine:

            async def handler(permit: Permit) -> Answer:
                if permit.unit is not None:
                    await permit.connection.execute("INSERT INTO effect VALUES (1)")
                return emit_one(permit)

            for policy in (ATOMIC, EXTERNAL):
                what = command(str(policy.effects), policy=policy)
                await engine.run(what, handler)
                assert (await engine.run(what, handler)).replayed

    asyncio.run(story())
    assert len(place.ids) == 2
    assert place.rows("SELECT n FROM effect") == [(1,)]


def refuse(permit: Permit) -> Any:
    emit_one(permit)
    return Refused(Answer(409, (), b"sold out"))


def fail(permit: Permit) -> Answer:
    emit_one(permit)
    raise RuntimeError("after the event")


def release(permit: Permit) -> Answer:
    emit_one(permit)
    raise NothingHappened("not now")


@pytest.mark.parametrize("policy", POLICIES[:2], ids=["atomic", "external"])
@pytest.mark.parametrize("handler", [refuse, fail, release])
def test_a_command_that_did_not_succeed_publishes_nothing(
    policy: Policy, handler: Callable[[Permit], Answer], engine: Engine, place: Place
) -> None:
    try:
        engine.run(command(policy=policy), handler)
    except (RuntimeError, NothingHappened):
        assert handler is not refuse
    assert place.ids == []


def test_ids_are_the_same_when_a_command_is_run_again(engine: Engine, place: Place) -> None:
    what = command(policy=ATOMIC)
    ids: list[str] = []

    def handler(permit: Permit) -> Answer:
        ids.append(permit.emit("paid", b"1"))
        ids.append(permit.emit("paid", b"2", ordinal=1))
        ids.append(permit.emit("paid", b"3", name="other"))
        if len(ids) == 3:
            raise RuntimeError("once")
        return MADE

    with pytest.raises(RuntimeError, match="once"):
        engine.run(what, handler)
    engine.run(what, handler)
    assert ids[:3] == ids[3:] == place.ids
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda p: p.emit("a b", b""), "topic"),
        (lambda p: p.emit("", b""), "topic"),
        (lambda p: p.emit("a..b", b""), "topic"),
        (lambda p: p.emit("a", object()), "a JSON value"),
        (lambda p: p.emit("a", {1: 2}), "int as a key"),
        (lambda p: p.emit("a", float("nan")), "a JSON value"),
        (lambda p: p.emit("a", "\ud800"), "a JSON value"),
        (lambda p: p.emit("a", b"x" * (PAYLOAD_BYTES_MAX + 1)), "takes 1000000"),
        (lambda p: p.emit("a", b"", aggregate="order"), "pair"),
        (lambda p: p.emit("a", b"", aggregate=("order", 7)), "aggregate's id"),
        (lambda p: p.emit("a", b"", aggregate=("order", "7\n")), "control"),
        (lambda p: p.emit("a", b"", type="x" * 256), "type"),
        (lambda p: p.emit("a", b"", headers={"Nats-Msg-Id": "x"}), "header"),
        (lambda p: p.emit("a", b"", headers={"x": "a\r\nb"}), "header"),
        (lambda p: p.emit("a", b"", headers={"x": "a" * 9000}), "8192"),
        (lambda p: p.emit("a", b"", ordinal=-1), "ordinal"),
        (lambda p: p.emit("a", b"", name=""), "name"),
        (lambda p: (p.emit("a", b""), p.emit("a", b"")), "its own ordinal"),
    ],
)
def test_an_invalid_event_is_refused_at_once(emit: Callable[[Permit], object], says: str, tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)

    def handler(permit: Permit) -> Answer:
        emit(permit)
        return MADE

    with Engine.connect(place.url) as engine, pytest.raises(PolicyError, match=says):
        engine.run(command(policy=ATOMIC), handler)
    assert place.ids == []


def test_a_store_without_an_outbox_is_refused() -> None:
    with Engine.connect("memory://") as engine, pytest.raises(PolicyError, match="SQL database"):
        engine.run(command(policy=EXTERNAL), emit_one)


def test_an_event_after_the_settlement_is_refused(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    permits: list[Permit] = []
    with Engine.connect(place.url) as engine:
        engine.run(command(policy=EXTERNAL), lambda permit: permits.append(permit) or MADE)  # type: ignore[func-returns-value]
        with pytest.raises(PolicyError, match="after its command was settled"):
            emit_one(permits[0])


@pytest.mark.parametrize("policy", [ATOMIC, EXTERNAL], ids=["atomic", "external"])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_crash_at_every_ask_leaves_the_event_iff_the_command_succeeded(
    policy: Policy, when: When, tmp_path: Path
) -> None:
    died = 0
    for fault in every_fault(Kind.CRASH, when):
        path = tmp_path / f"{fault.n}.db"
        clock = SettableClock()
        place = Place(SQLITE, f"sqlite:///{path}")
        with closing(Engine.connect(place.url)) as first:
            first.migrate()
        faulty = faulty_sqlite(str(path), clock, Faults(fault))
        engine = Engine(faulty.backend)
        try:
            engine.run(command(policy=policy), emit_one)
        except (Crash, StoreError):
            died += 1
        faulty.bury()
        succeeded = place.rows("SELECT count(*) FROM semel_record WHERE state = 3")
        assert place.rows("SELECT count(*) FROM semel_event") == succeeded, fault
        if faulty.faults.clean:
            assert succeeded == [(1,)]
            break
    assert died > 3


def test_an_atomic_event_costs_no_round_trip_on_postgresql(tmp_path: Path) -> None:
    place = make_place(POSTGRES, tmp_path)
    trips: list[str] = []
    waited = psycopg.Connection.wait

    def note_wait(self: Any, *args: Any, **options: Any) -> Any:
        trips.append("waits")
        return waited(self, *args, **options)

    counts: dict[bool, int] = {}
    with Engine.connect(place.url) as engine, pytest.MonkeyPatch.context() as patch:
        engine.run(command("warm", policy=ATOMIC), lambda permit: MADE)
        patch.setattr(psycopg.Connection, "wait", note_wait)
        for emits in (False, True):
            trips.clear()
            engine.run(command(f"k{emits}", policy=ATOMIC), emit_one if emits else lambda permit: MADE)
            counts[emits] = len(trips)
    assert counts[True] == counts[False] > 0
    assert len(place.ids) == 1


def test_a_superseded_holder_publishes_nothing_and_its_successor_publishes_the_same(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    clock = SettableClock()
    what = command(policy=Policy(effects="idempotent", dedup_for_seconds=3600))
    first, second = Engine(sqlite(tmp_path / "app.db", clock)), Engine(sqlite(tmp_path / "app.db", clock))
    late = first.claim(what)
    assert isinstance(late, Permit)
    emit_one(late)
    clock.advance(seconds=1800)
    holder = second.claim(what)
    assert isinstance(holder, Permit)
    emit_one(holder)
    assert isinstance(first.settle(late, Succeeded(MADE)), Superseded)
    assert place.ids == []
    assert isinstance(second.settle(holder, Succeeded(MADE)), Settled)
    assert place.ids == [event_id(holder.grant.id, 0, "orders.placed", 0)]
    assert late.emission is not None
    assert [event.id for event in late.emission.events.values()] == place.ids
    first.close()
    second.close()
