"""A replay from a store that is read at once: recognised without a claim, and only where nothing else is due."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.core.decide import first_grant
from semel.core.flow import Ask
from semel.core.model import Find, InProgress, KeyReused, Proceed, Record, Renewal, Replay, Settled, State, Unreadable
from semel.core.outcomes import Released, Succeeded
from semel.engine.state import Core
from semel.errors import KeyTooOld, StoreUnavailable
from semel.stores.clock import Clock
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.stores.sql.statements import Execute, ExecuteMany, Query
from semel.stores.sqlite.connection import answering
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.attempts import attempt, claim_at_once, settlement
from semel.testing.clock import SettableClock
from tests.servers.files import migrated_file

MADE = Answer(201, ((b"location", b"/payments/1"),), b"made")


def command(fingerprint: bytes = bytes(32)) -> Command:
    return Command(Scope("acme", "alice", "pay"), "k", fingerprint, "1.tests", Policy())


def make_migrated_url(folder: Path) -> str:
    migrated_file(folder / "semel.db")
    return f"sqlite:///{folder}/semel.db"


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://?persistence=none" if request.param == "memory" else make_migrated_url(tmp_path)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    made: list[Command] = []
    attempt: Callable[..., Any] = Core.plain_attempt

    def count_attempt(self: Core, command: Command, id: bytes) -> Any:
        made.append(command)
        return attempt(self, command, id)

    monkeypatch.setattr(Core, "plain_attempt", count_attempt)
    return made


async def answer_command(engine: AsyncEngine) -> None:
    permit = await engine.claim(command())
    assert isinstance(permit, Permit)
    await engine.settle(permit, Succeeded(MADE))


def test_a_replay_makes_no_claim(url: str, attempts: list[Command]) -> None:
    async def run() -> None:
        async with AsyncEngine.connect(url) as engine:
            await answer_command(engine)
            met = await engine.claim(command())
            assert isinstance(met, Replay)
            assert met.answer == MADE
            assert len(attempts) == 1
            assert isinstance(await engine.claim(command(b"x" * 32)), KeyReused)
            assert len(attempts) == 2

    asyncio.run(run())


def test_a_process_that_drains_replays_nothing(url: str) -> None:
    async def run() -> None:
        async with AsyncEngine.connect(url) as engine:
            await answer_command(engine)
            await engine.drain(0)
            with pytest.raises(StoreUnavailable, match="shutting down"):
                await engine.claim(command())

    asyncio.run(run())


def test_an_observer_gets_every_replay(url: str) -> None:
    class Heard:
        def __init__(self) -> None:
            self.verdicts: list[str] = []

        def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
            if name == "claims":
                self.verdicts.append(labels["verdict"])

    async def run() -> None:
        heard = Heard()
        async with AsyncEngine.connect(url, observer=heard) as engine:
            await answer_command(engine)
            await engine.claim(command())
        assert heard.verdicts == ["Proceed", "Replay"]

    asyncio.run(run())


def test_a_new_key_is_not_looked_for_twice(tmp_path: Path) -> None:
    async def run() -> None:
        said: list[str] = []

        def counting(connection: sqlite3.Connection, clock: Clock) -> Callable[[Ask[Any]], Any]:
            answer = answering(connection, clock)

            def note_statement(needed: Ask[Any]) -> Any:
                if isinstance(needed, Query | Execute | ExecuteMany):
                    said.append(needed.statement.name)
                return answer(needed)

            return note_statement

        make_migrated_url(tmp_path)
        driver = SqliteDriver(str(tmp_path / "semel.db"), answering=counting)
        async with AsyncEngine(sqlite_backend(driver)) as engine:
            await answer_command(engine)
            said.clear()
            other = dataclasses.replace(command(), key="other")
            assert isinstance(await engine.claim(other), Permit)
            assert said == ["find_kept_answer", "insert_claim"]
            said.clear()
            assert isinstance(await engine.claim(command(b"x" * 32)), KeyReused)
            assert said == ["find_kept_answer", "read_record"]

    asyncio.run(run())


def test_a_record_that_appears_after_the_look_is_found_by_the_claim(tmp_path: Path) -> None:
    """Between the look and the write another process has claimed the key."""

    async def run() -> None:
        url = make_migrated_url(tmp_path)
        async with AsyncEngine.connect(url) as two:
            look = two._performer.kept_answer
            assert look is not None

            def late(*asked: Any) -> Any:
                seen = look(*asked)
                with Engine.connect(url) as third:
                    assert isinstance(third.claim(command()), Permit)
                return seen

            two._performer.kept_answer = late
            assert isinstance(await two.claim(command(), wait_seconds=0), InProgress)

    asyncio.run(run())


def test_a_permit_of_a_plain_request_gives_a_command() -> None:
    under: Callable[[str], None] = lambda recipe: None  # noqa: E731 - both commands need the same one
    policy = Policy()
    whole = Command(Scope("acme", "alice", "pay"), "k", bytes(32), "1.tests", policy, under)
    made = Command.of_request(SimpleNamespace(**{name: getattr(whole, name) for name in Command.__slots__}))  # type: ignore[arg-type]
    assert made == whole
    assert type(made) is Command
    assert made.is_plain
    assert dataclasses.replace(made, key="other").key == "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.key = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "more", [{"business_ref": "inv-1"}, {"refusal": KeyTooOld("old")}, {"policy": Policy(operation_seconds=3e6)}]
)
def test_a_command_with_more_than_its_key_is_not_plain(more: dict[str, Any]) -> None:
    assert command().is_plain
    assert not dataclasses.replace(command(), **more).is_plain


def test_a_claim_that_a_drain_did_not_see_is_released() -> None:
    """Another thread's drain begins, and ends, while the claim is being written."""

    async def run() -> None:
        async with AsyncEngine.connect("memory://?persistence=none") as engine:
            await engine.open()
            at_once = engine._performer.claim_at_once
            assert at_once is not None

            def drained_meanwhile(*asked: Any) -> Any:
                verdict = at_once(*asked)
                with ThreadPoolExecutor(1) as pool:
                    assert pool.submit(asyncio.run, engine.drain(0)).result()
                return verdict

            engine._performer.claim_at_once = drained_meanwhile
            with pytest.raises(StoreUnavailable, match="shutting down"):
                await engine.claim(command())
            assert engine.core.live == {}
            await engine.close()
            [row] = engine.backend.driver._table.rows()
            assert (row.state, row.doubt) == (State.FAILED_NOT_REPLAYABLE, "abandoned")

    asyncio.run(run())


@pytest.mark.parametrize("granted", ["first", "again"])
def test_no_claim_enters_after_a_drain(granted: str) -> None:
    """Another thread's drain begins, and ends, when the engine has looked whether there is one."""

    class Entering(set[bytes]):
        """A set in which a drain looks once more before this claim is in it."""

        def add(self, nonce: bytes) -> None:
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(asyncio.run, engine.drain(0)).result()
            super().add(nonce)

    engine = AsyncEngine.connect("memory://?persistence=none")

    async def run() -> None:
        async with engine:
            if granted == "again":  # a key that was seen, and is free
                permit = await engine.claim(command())
                assert isinstance(permit, Permit)
                await engine.settle(permit, Released("nothing", proven=True))
            else:  # one that is met by an attempt with more than its key
                engine.core.is_plain = False
            engine.core.entering = Entering()
            with pytest.raises(StoreUnavailable, match="shutting down"):
                await engine.claim(command())
            assert (engine.core.live, engine.core.entering) == ({}, set())
            await engine.close()
            states = [row.state for row in engine.backend.driver._table.rows()]
            assert states == ([State.FAILED_NOT_REPLAYABLE] if granted == "again" else [])

    asyncio.run(run())


def test_immediate_replies_equal_those_of_the_flow() -> None:
    clock, store = SettableClock(), MemoryStore()
    quick, slow = LocalDriver(clock=clock), LocalDriver(clock=clock)
    for asked in (attempt(), attempt(nonce=2), attempt(nonce=3, request=1), attempt("other"), attempt()):
        met = claim_at_once(quick, asked)
        verdict = Proceed(first_grant(asked, met)) if isinstance(met, int) else met
        assert [verdict] == slow.run(partial(store.claim, (asked,)))
    grant = first_grant(attempt(), clock())
    for said in (
        settlement(grant._replace(fence=1)),
        settlement(grant),
        settlement(grant),
        settlement(grant, State.UNKNOWN, None, doubt="x"),
    ):
        assert [quick.settle_at_once(said)] == slow.run(partial(store.settle, (said,)))
    assert [claim_at_once(quick, attempt(nonce=4))] == slow.run(partial(store.claim, (attempt(nonce=4),)))
    assert quick._table == slow._table


WHOLE = Answer(201, ((b"etag", b"x"),), b"made")


def test_an_immediate_settlement_makes_the_record_of_the_rules() -> None:
    clock, store = SettableClock(), MemoryStore()
    quick, slow = LocalDriver(clock=clock), LocalDriver(clock=clock)
    claim = attempt()
    fence = claim_at_once(quick, claim)
    slow.run(partial(store.claim, (claim,)))
    assert isinstance(fence, int)
    clock.advance(seconds=3)
    assert not quick.succeed_at_once(claim, fence + 1, WHOLE)
    assert not quick.succeed_at_once(attempt(nonce=2), fence, WHOLE)
    assert quick.succeed_at_once(claim, fence, WHOLE)
    assert not quick.succeed_at_once(claim, fence, WHOLE)
    slow.run(partial(store.settle, (settlement(first_grant(claim, fence), answer=WHOLE),)))
    clock.advance(seconds=3)
    assert quick.run(partial(store.read, (claim.id,))) == slow.run(partial(store.read, (claim.id,)))
    assert quick.run(partial(store.read_operations, (claim.operation_id,))) == [quick._table.row(claim.id)]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_kept_answer_is_found_until_its_retention_is_over(is_read: bool) -> None:
    clock, store = SettableClock(), MemoryStore()
    driver, claim = LocalDriver(clock=clock), attempt()
    look = partial(driver.kept_answer, claim.id, claim.recipe, claim.fingerprint)
    assert look() is False
    fence = claim_at_once(driver, claim)
    assert isinstance(fence, int)
    assert look() is None
    assert driver.succeed_at_once(claim, fence, WHOLE)
    if is_read:
        driver.run(partial(store.read, (claim.id,)))
    assert look() == Replay(WHOLE, claim.operation_id, State.SUCCEEDED)
    assert driver.kept_answer(claim.id, "2.other", claim.fingerprint) is None
    assert driver.kept_answer(claim.id, claim.recipe, bytes(32)) is None
    clock.advance(claim.terms.answer_us - 1)
    assert look()
    clock.advance(1)
    assert look() is None


def test_a_damaged_record_does_not_affect_others_in_the_look() -> None:
    clock, store = SettableClock(), MemoryStore()
    driver = LocalDriver(clock=clock)
    damaged = attempt("damaged")._replace(recipe=7)  # type: ignore[arg-type]
    for claim in (damaged, attempt()):
        fence = claim_at_once(driver, claim)
        assert isinstance(fence, int)
        assert driver.succeed_at_once(claim, fence, WHOLE)
    assert sum(driver.run(store.counts).values()) == 2
    assert isinstance(claim_at_once(driver, attempt("damaged", nonce=2)), Unreadable)
    assert isinstance(claim_at_once(driver, attempt(nonce=2)), Replay)


@pytest.mark.parametrize("looked", ["claim", "lapse", "find", "renew", "counts"])
def test_a_record_that_was_read_meanwhile_is_settled_by_the_rules(looked: str) -> None:
    clock, store = SettableClock(), MemoryStore()
    driver, claim = LocalDriver(clock=clock), attempt()
    fence = claim_at_once(driver, claim)
    assert isinstance(fence, int)
    grant = first_grant(claim, fence)
    looks: dict[str, Callable[[], Any]] = {
        "claim": partial(store.claim, (attempt(nonce=2),)),
        "lapse": partial(store.lapse, 10),
        "find": partial(store.find, Find()),
        "renew": partial(store.renew, (Renewal(grant.id, grant.fence, grant.nonce),)),
        "counts": store.counts,
    }
    driver.run(looks[looked])
    assert not driver.succeed_at_once(claim, fence, WHOLE)
    assert driver.settle_at_once(settlement(grant, answer=WHOLE)) == Settled()
    assert driver.run(store.counts) == {State.SUCCEEDED: 1}
    assert driver._table.running == set()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(201, ((b"etag", b"x"),), bytearray(b"made")),  # type: ignore[arg-type]
        Answer(201, [[b"etag", bytearray(b"x")]], b"made"),  # type: ignore[arg-type]
    ],
)
def test_a_mutable_answer_is_stored_as_a_record(answer: Answer) -> None:
    async def run() -> None:
        async with AsyncEngine.connect("memory://?persistence=none") as engine:
            permit = await engine.claim(command())
            assert isinstance(permit, Permit)
            assert await engine.settle(permit, Succeeded(answer)) == Settled()
            [found] = engine.backend.driver._table.records.values()
            assert type(found) is Record

    asyncio.run(run())


@pytest.mark.parametrize("headers", [((b"x" * 70_000, b""),), ((b"etag",),), (("etag", "x"),), None])
def test_an_answer_that_cannot_be_stored_leaves_no_permit(url: str, headers: Any) -> None:
    """It would be renewed until its deadline, and a drain would wait for it."""

    async def run() -> None:
        async with AsyncEngine.connect(url) as engine:
            permit = await engine.claim(command())
            assert isinstance(permit, Permit)
            with pytest.raises((TypeError, ValueError, struct.error)):
                await engine.settle(permit, Succeeded(Answer(200, headers, b"made")))
            assert await engine.drain(0)

    asyncio.run(run())
