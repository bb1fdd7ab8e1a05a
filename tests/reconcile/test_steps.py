"""Reconcilers of operations with steps: what is found is found of the step in doubt, and the execution continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Policy
from semel.core.identity import derive_key
from semel.core.model import State
from semel.reconciliation.flow import standings
from semel.reconciliation.worker import Case, DidNotHappen, Finding, Reconciling, Round, StepSucceeded, reconciler
from tests.steps.conftest import Process, Run, World, step_command

OK = Answer(201, (), b"done")


@pytest.fixture(params=["sqlite-async", "asyncpg", "asyncmy"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[World]:
    made = World("sqlite-async", tmp_path)
    yield made
    made.close()


class Shop:
    """Charges and ships; the first parcel gets no answer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.shipped: list[Any] = []

    def call(self, name: str) -> str:
        self.calls.append(name)
        if self.calls.count("ship") == 1 and name == "ship":
            raise TimeoutError("no answer")
        return f"{name}-{self.calls.count(name)}"

    async def buy(self, run: Run) -> Answer:
        await run.step("charge", partial(self.call, "charge"))
        self.shipped.append(await run.step("ship", partial(self.call, "ship")))
        return OK


def lose_outcome(process: Process, shop: Shop) -> None:
    with pytest.raises(TimeoutError):
        process.run(step_command(), shop.buy)


def round_of(process: Process, found: Finding, cases: list[Case] | None = None) -> Round:
    @reconciler("pay", quiet_for=0)
    async def ask(case: Case) -> Finding:
        if cases is not None:
            cases.append(case)
        case.emit("shipped", {})  # which is written only where the whole has succeeded
        return found

    done: Round = process.tell(Reconciling(process.engine, [ask]).run_once())
    return done


def reason(process: Process) -> str | None:
    row = process.row(step_command())
    found = process.perform("standings", lambda: standings(process.engine.store, [row]))
    return found[row.id].reason if found else None


def test_the_next_run_makes_the_step_in_doubt_and_not_the_charge(world: World) -> None:
    process, shop = world.process(), Shop()
    lose_outcome(process, shop)
    world.clock.advance(seconds=1000)
    cases: list[Case] = []
    assert round_of(process, DidNotHappen("no parcel"), cases) == Round(asked=1, settled=1)
    assert (cases[0].step, cases[0].key_for("ship")) == ("ship", derive_key(process.row(step_command()).id, 0, "ship"))
    assert reason(process) is None
    assert process.run(step_command(), shop.buy).answer == OK
    assert (shop.calls, shop.shipped) == (["charge", "ship", "ship"], ["ship-2"])


def test_a_step_that_succeeded_gives_its_result_to_the_next_run(world: World) -> None:
    process, shop = world.process(), Shop()
    lose_outcome(process, shop)
    world.clock.advance(seconds=1000)
    assert round_of(process, StepSucceeded("parcel 7")) == Round(asked=1, settled=1)
    assert process.row(step_command()).state == State.CLAIMED
    assert process.run(step_command(), shop.buy).answer == OK
    assert (shop.calls, shop.shipped) == (["charge", "ship"], ["parcel 7"])
    with world.outside() as outside, closing(outside.cursor()) as cursor:
        cursor.execute("SELECT count(*) FROM semel_event")
        assert cursor.fetchone()[0] == 0


def test_a_result_that_cannot_be_recorded_is_no_finding(one: World) -> None:
    process, shop = one.process(), Shop()
    lose_outcome(process, shop)
    one.clock.advance(seconds=1000)
    assert round_of(process, StepSucceeded(object())) == Round(asked=1)
    assert "cannot be recorded" in (reason(process) or "")
    assert process.row(step_command()).doubt == "step:ship"


def test_step_succeeded_is_refused_for_a_doubt_without_a_step(one: World) -> None:
    process = one.process()

    async def fails(run: Run) -> Answer:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        process.run(step_command(policy=Policy()), fails)
    assert round_of(process, StepSucceeded(1)) == Round(asked=1)
    assert "the doubt names no step: error:TimeoutError" in (reason(process) or "")
