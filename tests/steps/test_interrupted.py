"""Runs with steps that are cut short: a cancelled caller, a write that lands late, a store that refuses the end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, AsyncPermit, Engine, Permit
from semel.core.flow import Flow
from semel.core.model import Grant, Record, State
from semel.core.outcomes import Succeeded, Unprovable
from semel.core.requests import Begin as Begin
from semel.errors import NothingHappened, SchemaError, StepError, StoreTimeout
from semel.steps.flow import StepLedger
from semel.steps.rules import Step
from semel.steps.store import StepRows
from tests.engine.drivers import sqlite
from tests.steps.conftest import step_command

OK = Answer(201, (), b"done")
Story = Callable[[AsyncEngine, Path], Awaitable[None]]


def tell(path: Path, story: Story) -> None:
    async def run_story() -> None:
        engine = AsyncEngine(sqlite(path))
        await engine.migrate()
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE effect (n INTEGER)")
        try:
            async with asyncio.timeout(4), engine:  # less than SQLite waits for a lock
                await story(engine, path)
        finally:
            await engine.close()

    asyncio.run(run_story())


def effects(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM effect").fetchone()[0])


async def row_of(engine: AsyncEngine, permit: Permit) -> Record:
    [row] = await engine.perform("read", lambda: engine.store.read((permit.grant.id,)))
    assert row is not None
    return row


class Gate:
    """Cancels the task that waits for a verb of the store's, while the store is at it."""

    def __init__(self, engine: AsyncEngine, verb: str) -> None:
        self._inner = engine._performer.store_call
        self._verb = verb
        self.victim: asyncio.Task[Any] | None = None
        engine._performer.store_call = self  # type: ignore[method-assign]

    async def __call__(self, verb: str, make: Any) -> Any:
        victim, self.victim = (self.victim, None) if verb == self._verb else (None, self.victim)
        if victim is not None:
            victim.cancel()
            await asyncio.sleep(0)
        return await self._inner(verb, make)


async def cut(gate: Gate, step: Awaitable[Any]) -> None:
    """A step whose caller is cancelled at the gate."""
    gate.victim = asyncio.ensure_future(step)
    with pytest.raises(asyncio.CancelledError):
        await gate.victim


def test_a_cancelled_start_has_not_begun_and_can_be_repeated(tmp_path: Path) -> None:
    async def story(engine: AsyncEngine, path: Path) -> None:
        calls: list[str] = []

        async def handler(permit: AsyncPermit) -> Answer:
            await cut(Gate(engine, "write_steps"), permit.step("charge", lambda: calls.append("charge")))
            assert calls == []
            await permit.step("charge", lambda: calls.append("charge"))
            return OK

        assert (await engine.run(step_command(), handler)).answer == OK
        assert calls == ["charge"]

    tell(tmp_path / "semel.db", story)


@pytest.mark.parametrize("where", ["begin", "call", "commit"])
def test_a_cancelled_local_step_ends_its_transaction_and_knows_what_became_of_it(where: str, tmp_path: Path) -> None:
    async def story(engine: AsyncEngine, path: Path) -> None:
        async def handler(permit: Permit) -> Answer:
            first = True

            async def write(connection: sqlite3.Connection) -> int:
                nonlocal first
                written = connection.execute("INSERT INTO effect VALUES (1)").rowcount
                if first and where == "call":
                    victim.cancel()
                    await asyncio.sleep(0)
                first = False
                return written

            ledger = permit.steps.ledger

            def cutting(make: Callable[..., Flow[Any]]) -> Callable[..., Flow[Any]]:
                def flow(*given: Any) -> Flow[Any]:
                    asyncio.get_running_loop().call_soon(victim.cancel)
                    return make(*given)

                return flow

            name = {"begin": "open", "commit": "commit"}.get(where)
            if name is not None:
                setattr(ledger, name, cutting(getattr(ledger, name)))
            victim = asyncio.ensure_future(permit.local_step("write", write))
            with pytest.raises(asyncio.CancelledError):
                await victim
            if name is not None:
                delattr(ledger, name)
            assert await permit.local_step("write", write) == 1
            return OK

        if where == "commit":
            with pytest.raises(StepError, match="twice"):  # it is committed, and the same run may not make it again
                await engine.run(step_command(), handler)
        else:
            await engine.run(step_command(), handler)
        assert effects(path) == 1

    tell(tmp_path / "semel.db", story)


def test_a_settlement_is_written_although_its_caller_is_cancelled(tmp_path: Path) -> None:
    async def story(engine: AsyncEngine, path: Path) -> None:
        permit = await engine.claim(step_command())
        assert isinstance(permit, Permit)
        await permit.step("charge", lambda: 1)
        await cut(Gate(engine, "write_steps"), engine.settle(permit, Unprovable("error:ConnectionError")))
        assert await engine.drain(3)
        row = await row_of(engine, permit)
        assert (row.state, row.lease_until) == (State.CLAIMED, 0)

    tell(tmp_path / "semel.db", story)


def test_renewal_ends_if_the_steps_cannot_be_closed(tmp_path: Path) -> None:
    with closing(Engine(sqlite(tmp_path / "semel.db"))) as engine:
        engine.migrate()
        permit = engine.claim(step_command())
        assert isinstance(permit, Permit)

        def refuses(outcome: object) -> None:
            raise SchemaError("the column is not there")

        permit.steps.close = refuses
        with pytest.raises(SchemaError):
            engine.settle(permit, Succeeded(OK))
        assert not engine.core.live


def test_a_step_beside_a_local_step_waits_for_its_transaction(tmp_path: Path) -> None:
    async def story(engine: AsyncEngine, path: Path) -> None:
        async def handler(permit: AsyncPermit) -> Answer:
            opened = asyncio.Event()

            async def write(connection: sqlite3.Connection) -> None:
                connection.execute("INSERT INTO effect VALUES (1)")
                opened.set()
                for _ in range(20):
                    await asyncio.sleep(0)

            async def beside() -> object:
                await opened.wait()
                return await permit.step("charge", lambda: "ch_1")

            assert (await asyncio.gather(permit.local_step("write", write), beside()))[1] == "ch_1"
            return OK

        assert (await engine.run(step_command(), handler)).answer == OK
        assert effects(path) == 1

    tell(tmp_path / "semel.db", story)


def test_a_step_inside_a_local_step_is_refused_at_once(tmp_path: Path) -> None:
    async def story(engine: AsyncEngine, path: Path) -> None:
        async def handler(permit: AsyncPermit) -> Answer:
            async def write(connection: sqlite3.Connection) -> None:
                await permit.step("charge", lambda: None)

            with pytest.raises(StepError, match="inside a local step"):
                await permit.local_step("write", write)
            return OK

        await engine.run(step_command(), handler)

    tell(tmp_path / "semel.db", story)


@pytest.mark.parametrize("kind", ["step", "local"])
def test_no_step_begins_after_a_write_that_may_land_late(kind: str, tmp_path: Path) -> None:
    """Its list, without the new step, would be written over the one that has it; the next run would repeat the step."""
    backend = sqlite(tmp_path / "semel.db")
    with closing(Engine(backend)) as engine:
        engine.migrate()
        permit = engine.claim(step_command())
        assert isinstance(permit, Permit)
        grant: Grant = permit.grant
        ledger = StepLedger(StepRows(backend.store), grant, 1)
        flow = ledger.begin(Step("mail", 0, 1, repeatable=True))
        next(flow)
        with pytest.raises(StoreTimeout):
            flow.throw(StoreTimeout("no answer"))
        want = Step("charge", 0, 1, repeatable=False)
        later: Flow[Any] = ledger.begin(want) if kind == "step" else ledger.open(want, Begin())
        with pytest.raises(StoreTimeout, match="'charge' was not begun"):
            next(later)


@pytest.mark.parametrize("ended", ["says-so", "cancelled"])
def test_a_repetition_that_proves_nothing_does_not_take_back_the_first_call(ended: str, tmp_path: Path) -> None:
    """Its first start would be forgotten, and with it when the downstream stops to deduplicate: a second effect."""

    async def story(engine: AsyncEngine, path: Path) -> None:
        starts: list[tuple[Step, ...]] = []

        def sends() -> None:
            raise ConnectionError("the answer is lost")

        def refuse() -> None:
            raise NothingHappened("refused")

        async def handler(permit: AsyncPermit) -> Answer:
            with pytest.raises(ConnectionError):
                await permit.step("mail", sends, repeat=True)
            ledger = permit.steps.ledger
            starts.append(ledger._steps)
            if ended == "says-so":
                with pytest.raises(NothingHappened):
                    await permit.step("mail", refuse, repeat=True)
            else:
                await cut(Gate(engine, "write_steps"), permit.step("mail", refuse, repeat=True))
            starts.append(ledger._steps)
            await permit.step("mail", lambda: None, repeat=True)
            return OK

        assert (await engine.run(step_command(), handler)).answer == OK
        assert len(starts[0]) == 1
        assert starts[0] == starts[1]

    tell(tmp_path / "semel.db", story)
