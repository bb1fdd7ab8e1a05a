"""What "did not happen" of a step in doubt means: that step. A finished step never runs again."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Command, Engine, NothingHappened, Permit, Policy
from semel.core.flow import Flow
from semel.core.model import InProgress, MovedOn, Resolution, Resolved, Resolving, State
from semel.errors import (
    OutcomeUnknownError,
    ResolveRefused,
    StoreError,
    StoreUnavailable,
    SupersededError,
)
from semel.operations.flow import resolve
from semel.resuming.worker import Completer
from semel.testing.clock import SettableClock
from semel.testing.faults import KINDS, Crash, Faults, Kind, When, every_fault, faulty_sqlite
from tests.engine.drivers import sqlite
from tests.engine.shells import SCOPE
from tests.engine.telling import at_once
from tests.steps.conftest import Process, Run, World, step_command

OK = Answer(201, (), b"done")
LEASE_US = 30_000_000


class Shop:
    """The other sides: each call with the derived key that it was given, and which of them get no answer."""

    def __init__(self, *lost: str) -> None:
        self.calls: list[tuple[str, str]] = []
        self.lost = list(lost)

    def call(self, run: Run, name: str) -> str:
        self.calls.append((name, run.permit.key_for(name)))
        if name in self.lost:
            self.lost.remove(name)
            raise TimeoutError("no answer")
        return f"{name}-1"

    def count_calls(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    async def buy(self, run: Run) -> Answer:
        """Charge, ship, and mail a receipt."""
        for name in ("charge", "ship", "mail"):
            await run.step(name, partial(self.call, run, name))
        return OK

    def in_thread(self, permit: Permit) -> Answer:
        """The same, without the world around it."""
        return at_once(self.buy(Run(permit, is_async=False)))

    async def buy_all_the_same(self, run: Run) -> Answer:
        """The same; after a lost reply the next step begins, and only then the failure is reported."""
        failed: list[Exception] = []
        for name in ("charge", "ship", "mail"):
            try:
                await run.step(name, partial(self.call, run, name))
            except TimeoutError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return OK


def settle(process: Process, key: str = "k", *, happened: bool = False, **given: Any) -> Resolving:
    """An operator's resolution, as the command line writes it."""
    row = process.row(step_command(key))
    resolution = Resolution(row.id, row.fence, happened, None, "op", "asked the provider", forced=True)._replace(
        **given
    )
    reply: Resolving = process.perform("resolve", lambda: resolve(process.engine.store, resolution))
    return reply


def leave_in_doubt(process: Process, shop: Shop, key: str = "k") -> None:
    """A run whose call gets no answer: charged, and in doubt about the next step."""
    with pytest.raises(TimeoutError):
        process.run(step_command(key), shop.buy)
    row = process.row(step_command(key))
    assert (row.state, row.doubt) == (State.UNKNOWN, f"step:{shop.calls[-1][0]}")


def test_a_finished_charge_is_never_made_again(world: World) -> None:
    process, shop = world.process(), Shop("ship")
    leave_in_doubt(process, shop)
    assert settle(process) == Resolved(State.CLAIMED)
    row = process.row(step_command())
    assert (row.state, row.lease_until, row.doubt, row.generation) == (State.CLAIMED, 0, None, 0)
    assert (row.settled_at, row.forget_after, row.error_code) == (None, None, None)
    assert world.process().run(step_command(), shop.buy).answer == OK
    assert [shop.count_calls(name) for name in ("charge", "ship", "mail")] == [1, 2, 1]
    first, again = (key for name, key in shop.calls if name == "ship")
    assert first == again  # a late first call is then one with the second
    assert world.process().run(step_command(), shop.buy).replayed


@pytest.fixture
def shop() -> Shop:
    return Shop()


# --- the rules --------------------------------------------------------------------------------


def test_the_key_is_free_under_the_same_derived_keys_if_no_other_step_began(process: Process) -> None:
    shop = Shop("charge")
    leave_in_doubt(process, shop)
    assert settle(process) == Resolved(State.FAILED_NOT_REPLAYABLE)
    row = process.row(step_command())
    assert (row.state, row.generation, row.doubt) == (State.FAILED_NOT_REPLAYABLE, 0, None)
    assert process.run(step_command(), shop.buy).answer == OK
    assert len({key for name, key in shop.calls if name == "charge"}) == 1


def test_a_step_before_others_that_have_finished_begins_in_its_place(process: Process) -> None:
    shop = Shop("charge")
    with pytest.raises(TimeoutError):
        process.run(step_command(), shop.buy_all_the_same)
    assert settle(process, step="charge") == Resolved(State.CLAIMED)
    assert process.run(step_command(), shop.buy_all_the_same).answer == OK
    assert [shop.count_calls(name) for name in ("charge", "ship", "mail")] == [2, 1, 1]


def test_the_next_step_in_doubt_is_asked_about_next(process: Process) -> None:
    shop = Shop("charge", "mail")
    with pytest.raises(TimeoutError):
        process.run(step_command(), shop.buy_all_the_same)
    assert settle(process, step="charge") == Resolved(State.UNKNOWN)
    assert process.row(step_command()).doubt == "step:mail"
    with pytest.raises(OutcomeUnknownError, match="step:mail"):
        process.run(step_command(), shop.buy_all_the_same)
    assert settle(process, step="mail") == Resolved(State.CLAIMED)
    assert process.run(step_command(), shop.buy_all_the_same).answer == OK
    assert [shop.count_calls(name) for name in ("charge", "ship", "mail")] == [2, 1, 2]


def test_a_step_may_be_settled_and_fall_into_doubt_repeatedly(process: Process) -> None:
    shop = Shop("ship", "ship", "ship")
    leave_in_doubt(process, shop)
    for _ in range(2):
        assert settle(process) == Resolved(State.CLAIMED)
        leave_in_doubt(process, shop)
    assert [shop.count_calls(name) for name in ("charge", "ship")] == [1, 3]


def test_a_repeated_call_may_prove_that_nothing_happened(process: Process, shop: Shop) -> None:
    """The call before it is known not to have happened: so nothing of the step remains, and it may begin again."""
    refusals = iter([TimeoutError(), NothingHappened("refused"), None])

    def ship() -> None:
        error = next(refusals)
        if error is not None:
            raise error

    async def buy(run: Run) -> Answer:
        await run.step("charge", lambda: shop.call(run, "charge"))
        await run.step("ship", ship)
        return OK

    with pytest.raises(TimeoutError):
        process.run(step_command(), buy)
    assert settle(process) == Resolved(State.CLAIMED)
    with pytest.raises(NothingHappened):
        process.run(step_command(), buy)
    assert process.row(step_command()).state == State.CLAIMED
    assert process.run(step_command(), buy).answer == OK
    assert shop.count_calls("charge") == 1


def test_new_code_may_leave_out_what_did_not_happen(process: Process) -> None:
    shop = Shop("ship")
    leave_in_doubt(process, shop)
    assert settle(process) == Resolved(State.CLAIMED)

    async def without_shipping(run: Run) -> Answer:
        for name in ("charge", "pick-up"):
            await run.step(name, partial(shop.call, run, name))
        return OK

    assert process.run(step_command(), without_shipping).answer == OK
    assert [shop.count_calls(name) for name in ("charge", "ship", "pick-up")] == [1, 1, 1]


def test_a_doubt_without_a_step_keeps_finished_steps(process: Process, shop: Shop) -> None:
    """Such as a completer's, which has tried it as often as it may."""
    policy = Policy(steps=True, attempts_max=2)

    async def fails(run: Run) -> Answer:
        await run.step("charge", lambda: shop.call(run, "charge"))
        run.permit.steps.ledger.doubt = "attempts-over"
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        process.run(step_command(policy=policy), fails)
    row = process.row(step_command())
    assert (row.state, row.doubt) == (State.UNKNOWN, "attempts-over")
    assert settle(process) == Resolved(State.CLAIMED)
    assert process.row(step_command()).generation == 0
    assert process.run(step_command(policy=policy), shop.buy).answer == OK
    assert shop.count_calls("charge") == 1


def test_a_completer_makes_the_step_that_did_not_happen(process: Process, tmp_path: Path) -> None:
    """The request is still there; and what had been tried as often as it may is tried again."""
    shop, policy = Shop("ship"), Policy(steps=True, resumable=True, attempts_max=2)
    what = Command(SCOPE, "k", bytes(32), "1.tests", policy, request=b"one of each")
    with pytest.raises(TimeoutError):
        process.run(what, shop.buy)
    assert settle(process) == Resolved(State.CLAIMED)
    assert process.row(what).request == b"one of each"
    with closing(sqlite3.connect(tmp_path / "semel.db")) as db, db:
        db.execute("UPDATE semel_record SET attempt = 2")

    def complete() -> int:
        completer = Completer(process.engine)
        completer.register(SCOPE.operation, policy, lambda permit, _: shop.in_thread(permit))
        return asyncio.run(completer.run_once())

    assert complete() == 0
    assert process.row(what).doubt == "attempts-over"
    assert settle(process) == Resolved(State.CLAIMED)
    assert complete() == 1
    assert [shop.count_calls(name) for name in ("charge", "ship", "mail")] == [1, 2, 1]


def test_an_unreadable_list_starts_no_step(process: Process, tmp_path: Path) -> None:
    shop = Shop("ship")
    leave_in_doubt(process, shop)
    with closing(sqlite3.connect(tmp_path / "semel.db")) as db, db:
        db.execute("UPDATE semel_record SET steps = x'00'")
    before = process.row(step_command())
    with pytest.raises(ResolveRefused, match="settle the whole command as succeeded"):
        settle(process)
    assert process.row(step_command()) == before
    assert settle(process, happened=True, answer=Answer(409, (), b"charged; ask us")) == Resolved(State.SUCCEEDED)
    assert process.run(step_command(), shop.buy).answer.status == 409


def test_a_resolution_of_the_whole_command_ends_it(process: Process) -> None:
    shop = Shop("ship")
    leave_in_doubt(process, shop)
    assert settle(process, happened=True, answer=OK) == Resolved(State.SUCCEEDED)
    assert process.run(step_command(), shop.buy).replayed


# --- each database ----------------------------------------------------------------------------


def test_a_resolution_of_a_step_that_is_not_in_doubt_any_more_is_refused(database: World) -> None:
    """A slow holder goes on while an operator looks: the resolution was about its previous step, not about this one."""
    process, shop = database.process(), Shop()
    permit = process.engine.claim(step_command())
    run = Run(permit, is_async=False)
    run.permit.step("charge", lambda: shop.call(run, "charge"))
    database.clock.advance(LEASE_US + 1)
    other = database.process()
    assert [row.doubt for row in other.lapse()] == ["step:charge"]
    run.permit.step("ship", lambda: shop.call(run, "ship"))
    assert settle(other, step="charge") == MovedOn(State.PROCESSING)
    assert settle(other, step="ship") == Resolved(State.CLAIMED)
    with pytest.raises(SupersededError):  # and now it begins no further step
        run.permit.step("mail", lambda: shop.call(run, "mail"))
    assert other.run(step_command(), shop.buy).answer == OK
    assert [shop.count_calls(name) for name in ("charge", "ship", "mail")] == [1, 2, 1]


def test_a_step_that_happened_is_recorded_with_its_result(database: World) -> None:
    process, shop = database.process(), Shop("ship")
    leave_in_doubt(process, shop)
    assert settle(process, happened=True, step="ship", result=b'"parcel 7"') == Resolved(State.CLAIMED)
    told: list[str] = []

    async def buy(run: Run) -> Answer:
        await run.step("charge", lambda: shop.call(run, "charge"))
        told.append(await run.step("ship", lambda: shop.call(run, "ship")))
        return OK

    assert process.run(step_command(), buy).answer == OK
    assert told == ["parcel 7"]
    assert [shop.count_calls(name) for name in ("charge", "ship")] == [1, 1]
    row = process.row(step_command())
    [line] = process.perform("audit", lambda: process.engine.store.audit(row.id, 10))
    assert line.action == "resolve:succeeded step:ship"


def test_a_committed_local_step_stays_and_does_not_run_again(database: World) -> None:
    process, shop = database.process(), Shop("charge")

    async def order(run: Run) -> Answer:
        await run.local("write", database.insert())
        await run.step("charge", lambda: shop.call(run, "charge"))
        return OK

    with pytest.raises(TimeoutError):
        process.run(step_command(), order)
    assert settle(process) == Resolved(State.CLAIMED)
    assert process.run(step_command(), order).answer == OK
    assert (database.effects, shop.count_calls("charge")) == (1, 2)


def test_record_and_list_are_one_commit(database: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process, shop = database.process(), Shop("ship")
    leave_in_doubt(process, shop)
    before = process.row(step_command())

    def fails(*_: object) -> Flow[None]:
        yield from ()
        raise StoreUnavailable("between the two")

    store = sys.modules[type(process.engine.store).__module__]
    with monkeypatch.context() as patch:
        patch.setattr(store, "rewrite_steps", fails)
        with pytest.raises(StoreUnavailable, match="between the two"):
            settle(process)
    assert process.row(step_command()) == before
    assert settle(process) == Resolved(State.CLAIMED)


@pytest.mark.parametrize("database", ["psycopg", "pymysql"], indirect=True)  # SQLite has one writer, which this is
def test_the_list_is_not_written_by_its_holder_while_it_is_read(
    database: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, shop = database.process(), Shop("ship")
    leave_in_doubt(process, shop)
    store: Any = sys.modules[type(process.engine.store).__module__]
    look, refused = store.look, []

    def look_from_outside(ids: Sequence[bytes]) -> Flow[Any]:
        with database.outside() as outside, closing(outside.cursor()) as cursor:
            try:
                cursor.execute("SELECT steps FROM semel_record FOR UPDATE NOWAIT")
            except Exception as error:  # noqa: BLE001 - the library's own, of two libraries
                refused.append(type(error).__name__)
            outside.rollback()
        return (yield from look(ids))

    monkeypatch.setattr(store, "look", look_from_outside)
    assert settle(process) == Resolved(State.CLAIMED)
    assert refused in (["LockNotAvailable"], ["OperationalError"])


def test_the_reference_is_held_for_as_long_as_something_has_finished(process: Process) -> None:
    first, second = (replace(step_command(key), business_ref="order-7") for key in ("k", "other"))
    shop = Shop("charge", "ship")
    with pytest.raises(TimeoutError):
        process.run(first, shop.buy)
    assert settle(process) == Resolved(State.FAILED_NOT_REPLAYABLE)
    with pytest.raises(TimeoutError):
        process.run(second, shop.buy)  # nothing had happened, so that another key may have it; now it has charged
    assert settle(process, "other") == Resolved(State.CLAIMED)
    assert isinstance(process.engine.claim(first, wait_seconds=0), InProgress)
    assert process.run(second, shop.buy).answer == OK
    assert [shop.count_calls(name) for name in ("charge", "ship", "mail")] == [2, 2, 1]


@pytest.mark.parametrize(("kind", "when", "once"), KINDS, ids=lambda value: str(getattr(value, "value", value)))
def test_a_fault_at_every_ask_of_a_resolution(kind: Kind, when: When, once: bool, tmp_path: Path) -> None:
    """With any failure or death, a finished charge is not made again; a lost resolution can be repeated."""
    template, shop = tmp_path / "template.db", Shop("ship")
    with closing(Engine(sqlite(template))) as engine:
        engine.migrate()
        with pytest.raises(TimeoutError):
            engine.run(step_command(), shop.in_thread)
        row = engine.perform("read", lambda: engine.store.read((engine.core.attempt(step_command()).id,)))[0]
        assert row is not None
        resolution = Resolution(row.id, row.fence, False, None, "op", "asked", forced=True, step="ship")
    for fault in every_fault(kind, when, once=once):
        path, again = tmp_path / f"{fault.n}.db", Shop()
        shutil.copy(template, path)
        faults = Faults(fault)
        faulty = faulty_sqlite(str(path), SettableClock(), faults)
        with suppress(StoreError, Crash):
            faulty.backend.driver.run(partial(resolve, faulty.backend.store, resolution))
        faulty.bury()
        with closing(Engine(sqlite(path))) as engine:
            reply = engine.perform("resolve", partial(resolve, engine.store, resolution))
            assert reply in (Resolved(State.CLAIMED), MovedOn(State.CLAIMED)), fault
            ended = engine.run(step_command(), again.in_thread)
        assert ended.answer == OK, fault
        assert [again.count_calls(name) for name in ("charge", "ship", "mail")] == [0, 1, 1], fault
        if faults.clean:
            return
