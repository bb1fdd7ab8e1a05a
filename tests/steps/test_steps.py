"""What a run finds of the runs before it, on both engines and the three databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from semel import Answer, NothingHappened, Permit
from semel.core.identity import derive_key
from semel.core.model import State
from semel.core.outcomes import Succeeded
from semel.errors import OutcomeUnknownError, StepError, StepInDoubt, SupersededError
from tests.engine.telling import at_once
from tests.steps.conftest import Process, Run, World, step_command

OK = Answer(201, (), b"done")
LEASE_US = 30_000_000


class Downstream:
    """Remembers the calls that it got, and fails the chosen ones."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, BaseException] = {}

    def call(self, name: str) -> str:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails.pop(name)
        return f"{name} {self.calls.count(name)}"


async def never(run: Run) -> Answer:
    raise AssertionError("this must not run")


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


@pytest.fixture
def downstream() -> Downstream:
    return Downstream()


def test_a_finished_step_gives_its_recorded_result(process: Process, downstream: Downstream) -> None:
    results = []

    async def handler(run: Run) -> Answer:
        charged = await run.step("charge", lambda: downstream.call("charge"))
        results.append(charged)
        await run.step("mail", lambda: downstream.call("mail"), repeat=True)
        return OK

    downstream.fails["mail"] = ConnectionError("away")
    with pytest.raises(ConnectionError):
        process.run(step_command(), handler)
    row = process.row(step_command())
    assert (row.state, row.lease_until, row.doubt) == (State.CLAIMED, 0, "error:ConnectionError")
    assert process.run(step_command(), handler).answer == OK
    assert downstream.calls == ["charge", "mail", "mail"]
    assert results == ["charge 1", "charge 1"]
    assert process.run(step_command(), handler).replayed


def test_a_step_that_may_not_be_repeated_is_a_doubt_with_its_name(process: Process, downstream: Downstream) -> None:
    async def handler(run: Run) -> Answer:
        await run.step("charge", lambda: downstream.call("charge"))
        return OK

    downstream.fails["charge"] = TimeoutError("no answer")
    with pytest.raises(TimeoutError):
        process.run(step_command(), handler)
    row = process.row(step_command())
    assert (row.state, row.doubt, row.error_code) == (State.UNKNOWN, "step:charge", "error:TimeoutError")
    with pytest.raises(OutcomeUnknownError, match="step:charge"):
        process.run(step_command(), handler)
    assert downstream.calls == ["charge"]


class Holder:
    """A process that was granted the record, and takes its steps on request."""

    def __init__(self, process: Process) -> None:
        self.process = process
        permit = process.tell(process.engine.claim(step_command()))
        assert isinstance(permit, Permit), permit
        self.run = Run(permit, is_async=process.is_async)

    def steps(self, story: Callable[[Run], Coroutine[Any, Any, Any]]) -> Any:
        made = story(self.run)
        return at_once(made) if self.process.runner is None else self.process.runner.run(made)


def test_a_lapse_in_a_step_names_it_and_its_holder_may_continue(world: World, process: Process) -> None:
    holder = Holder(process)

    async def first(run: Run) -> None:
        await run.step("charge", lambda: "ch_1")

    async def second(run: Run) -> None:
        await run.step("ship", lambda: None)

    holder.steps(first)
    world.clock.advance(LEASE_US + 1)
    other = world.process()
    [lapsed] = other.lapse()
    assert (lapsed.state, lapsed.doubt) == (State.UNKNOWN, "step:charge")
    with pytest.raises(OutcomeUnknownError, match="step:charge"):
        other.run(step_command(), never)
    holder.steps(second)  # a lapse alone destroys nothing
    assert (process.row(step_command()).state, process.row(step_command()).doubt) == (State.PROCESSING, "step:ship")
    process.tell(process.engine.settle(holder.run.permit, Succeeded(OK)))
    assert other.run(step_command(), never).answer == OK


def test_a_renewal_keeps_the_doubt(world: World, process: Process) -> None:
    holder = Holder(process)

    async def charge(run: Run) -> None:
        await run.step("charge", lambda: "ch_1")

    holder.steps(charge)
    world.clock.advance(LEASE_US + 1)
    assert len(process.lapse()) == 1
    renewals = (holder.run.permit.holder,)
    assert process.perform("renew", lambda: process.engine.store.renew(renewals)) == [True]
    assert (process.row(step_command()).state, process.row(step_command()).doubt) == (State.PROCESSING, "step:charge")
    world.clock.advance(LEASE_US + 1)
    [again] = process.lapse()
    assert (again.state, again.doubt) == (State.UNKNOWN, "step:charge")


def test_a_lapse_between_steps_is_no_doubt(world: World, process: Process, downstream: Downstream) -> None:
    """The holder dies after its first step: the next one continues."""

    async def both(run: Run) -> Any:
        charged = await run.step("charge", lambda: downstream.call("charge"))
        await run.step("mail", lambda: downstream.call("mail"), repeat=True)
        return charged

    async def handler(run: Run) -> Answer:
        return Answer(201, (), (await both(run)).encode())

    Holder(world.process()).steps(both)
    assert process.row(step_command()).state == State.CLAIMED
    world.clock.advance(LEASE_US + 1)
    assert process.lapse() == []
    assert process.run(step_command(), handler).answer.body == b"charge 1"
    assert downstream.calls == ["charge", "mail", "mail"]  # the second one's result had not been recorded


def test_a_superseded_holder_begins_no_step(world: World, process: Process, downstream: Downstream) -> None:
    holder = Holder(world.process())
    world.clock.advance(LEASE_US + 1)

    async def handler(run: Run) -> Answer:
        await run.step("charge", lambda: downstream.call("new"))
        return OK

    process.run(step_command(), handler)

    async def late(run: Run) -> None:
        await run.step("charge", lambda: downstream.call("old"))

    async def late_local(run: Run) -> None:
        await run.local("write", world.insert())

    for story in (late, late_local):
        with pytest.raises(SupersededError):
            holder.steps(story)
    assert (downstream.calls, world.effects) == (["new"], 0)


def test_a_superseded_holder_cannot_overwrite_the_steps_of_the_next(
    world: World, process: Process, downstream: Downstream
) -> None:
    former = Holder(world.process())
    world.clock.advance(LEASE_US + 1)
    holder = Holder(process)

    async def charge(run: Run) -> None:
        await run.step("charge", lambda: downstream.call("new"))

    async def late(run: Run) -> None:
        await run.step("other", lambda: downstream.call("old"))

    async def late_local(run: Run) -> None:
        await run.local("write", world.insert())

    holder.steps(charge)
    for story in (late, late_local):
        with pytest.raises(SupersededError):
            former.steps(story)
    assert (downstream.calls, world.effects, process.row(step_command()).doubt) == (["new"], 0, "step:charge")


def test_an_error_after_a_step_keeps_its_result(process: Process, downstream: Downstream) -> None:
    """No step comes after it to take the result along: it is written before the lease is given back."""

    async def handler(run: Run) -> Answer:
        charged = await run.step("charge", lambda: downstream.call("charge"))
        if run.permit.attempt == 1:
            raise ConnectionError("away")
        return Answer(201, (), charged.encode())

    with pytest.raises(ConnectionError):
        process.run(step_command(), handler)
    assert process.row(step_command()).state == State.CLAIMED
    assert process.run(step_command(), handler).answer.body == b"charge 1"
    assert downstream.calls == ["charge"]


def test_repeating_ends_when_the_downstream_may_have_forgotten(
    world: World, process: Process, downstream: Downstream
) -> None:
    async def handler(run: Run) -> Answer:
        await run.step("mail", lambda: downstream.call("mail"), repeat=True)
        return OK

    for hours in (0, 22):
        world.clock.advance(hours * 3_600_000_000)
        downstream.fails["mail"] = ConnectionError("away")
        with pytest.raises(ConnectionError):
            process.run(step_command(), handler)
    world.clock.advance(3_601_000_000)  # counted from its first start
    with pytest.raises(StepInDoubt, match="dedup_for_seconds"):
        process.run(step_command(), handler)
    assert downstream.calls == ["mail", "mail"]
    assert (process.row(step_command()).state, process.row(step_command()).doubt) == (State.UNKNOWN, "step:mail")


def test_a_key_is_the_same_in_every_run(process: Process, downstream: Downstream) -> None:
    keys: list[str] = []

    async def handler(run: Run) -> Answer:
        await run.step("mail", lambda: keys.append(run.permit.key_for("mail")), repeat=True)
        await run.step("more", lambda: downstream.call("more"), repeat=True)
        return OK

    downstream.fails["more"] = ConnectionError("away")
    with pytest.raises(ConnectionError):
        process.run(step_command(), handler)
    process.run(step_command(), handler)
    assert len(keys) == 1  # the first one had finished, and its result was recorded before the error left
    assert keys[0] == derive_key(process.row(step_command()).id, 0, "mail")


def test_a_call_that_proves_that_nothing_happened_has_not_begun(process: Process, downstream: Downstream) -> None:
    async def handler(run: Run) -> Answer:
        await run.step("charge", lambda: downstream.call("charge"))
        return OK

    downstream.fails["charge"] = NothingHappened("refused")
    with pytest.raises(NothingHappened):
        process.run(step_command(), handler)
    assert process.row(step_command()).state == State.FAILED_NOT_REPLAYABLE
    assert process.run(step_command(), handler).answer == OK


@pytest.mark.parametrize("status", [429, 503])
def test_an_answer_that_releases_does_so_only_without_a_doubt(
    process: Process, downstream: Downstream, status: int
) -> None:
    async def handler(run: Run) -> Answer:
        await run.step("first", lambda: downstream.call("first"))
        with suppress(TimeoutError):
            await run.step("second", lambda: downstream.call("second"))
        return Answer(status, (), b"")

    process.run(step_command("well"), handler)
    assert process.row(step_command("well")).state == State.CLAIMED
    downstream.fails["second"] = TimeoutError("no answer")
    process.run(step_command("badly"), handler)
    assert (process.row(step_command("badly")).state, process.row(step_command("badly")).doubt) == (
        State.UNKNOWN,
        "step:second",
    )


def test_an_answer_after_a_failed_step_is_stored(process: Process, downstream: Downstream) -> None:
    async def handler(run: Run) -> Answer:
        with suppress(TimeoutError):
            await run.step("charge", lambda: downstream.call("charge"))
        await run.step("refund", lambda: downstream.call("refund"))
        return Answer(409, (), b"refunded")

    downstream.fails["charge"] = TimeoutError("no answer")
    assert process.run(step_command(), handler).answer.status == 409
    assert process.run(step_command(), never).replayed


# --- local writes ---------------------------------------------------------------------------------


def test_local_writes_and_their_record_are_both_there_or_neither(world: World, process: Process) -> None:
    runs = itertools.count()

    def fails_once() -> None:
        if next(runs) == 0:
            raise ConnectionError("before the commit")

    async def handler(run: Run) -> Answer:
        written = await run.local("write", world.insert(fails_once))
        if next(runs) == 2:
            raise ConnectionError("after the commit")
        return Answer(201, (), written.encode())

    with pytest.raises(ConnectionError, match="before"):
        process.run(step_command(), handler)
    assert (world.effects, process.row(step_command()).state) == (0, State.FAILED_NOT_REPLAYABLE)
    with pytest.raises(ConnectionError, match="after"):
        process.run(step_command(), handler)
    assert (world.effects, process.row(step_command()).state) == (1, State.CLAIMED)
    assert process.run(step_command(), handler).answer.body == b"written"
    assert world.effects == 1


def test_a_local_step_commits_the_result_before_it(world: World, process: Process, downstream: Downstream) -> None:
    async def begin(run: Run) -> str:
        charged: str = await run.step("charge", lambda: downstream.call("charge"))
        await run.local("write", world.insert())
        return charged

    async def handler(run: Run) -> Answer:
        return Answer(201, (), (await begin(run)).encode())

    Holder(world.process()).steps(begin)
    world.clock.advance(LEASE_US + 1)
    assert process.run(step_command(), handler).answer.body == b"charge 1"
    assert (downstream.calls, world.effects) == (["charge"], 1)


# --- what is not possible -------------------------------------------------------------------------


def test_a_renamed_step_is_refused_before_it_begins(process: Process, downstream: Downstream) -> None:
    async def former(run: Run) -> Answer:
        await run.step("charge", lambda: downstream.call("charge"))
        await run.step("mail", lambda: downstream.call("mail"), repeat=True)
        return OK

    async def call_renamed_step(run: Run) -> Answer:
        await run.step("charge_card", lambda: downstream.call("charge"))
        return OK

    downstream.fails["mail"] = ConnectionError("away")
    with pytest.raises(ConnectionError):
        process.run(step_command(), former)
    with pytest.raises(StepError, match="'charge' is, which this run has not called"):
        process.run(step_command(), call_renamed_step)
    assert process.run(step_command(), former).answer == OK
    assert downstream.calls == ["charge", "mail", "mail"]


@dataclass
class Receipt:
    id: str
    amount: Decimal


def test_results_of_declared_types(process: Process, downstream: Downstream) -> None:
    seen: list[object] = []

    def charge() -> Receipt:
        return Receipt("ch_1", Decimal("1.10"))

    async def handler(run: Run) -> Answer:
        seen.append(await run.step("charge", charge))
        seen.append(await run.step("again", lambda: Receipt("ch_2", Decimal(2)), returns=Receipt))
        await run.step("mail", lambda: downstream.call("mail"), repeat=True)
        return OK

    downstream.fails["mail"] = ConnectionError("away")
    with pytest.raises(ConnectionError):
        process.run(step_command(), handler)
    process.run(step_command(), handler)
    assert seen == [Receipt("ch_1", Decimal("1.10")), Receipt("ch_2", Decimal(2))] * 2


@pytest.mark.parametrize("result", [object(), "x" * 2_000_000, "\ud800"], ids=["class", "long", "surrogate"])
def test_a_result_that_cannot_be_recorded_is_a_doubt(process: Process, downstream: Downstream, result: object) -> None:
    async def handler(run: Run) -> Answer:
        downstream.call("begun")
        await run.step("charge", lambda: result)
        return OK

    with pytest.raises(StepError, match="'charge' ran, and its result"):
        process.run(step_command(), handler)
    assert (process.row(step_command()).state, process.row(step_command()).doubt) == (State.UNKNOWN, "step:charge")
    with pytest.raises(OutcomeUnknownError):
        process.run(step_command(), handler)
    assert downstream.calls == ["begun"]
