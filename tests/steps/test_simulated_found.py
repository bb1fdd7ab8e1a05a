"""What the simulator has found in operations with steps, each as its own test."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, NothingHappened, Permit
from semel.core.decide import decide
from semel.core.flow import Flow
from semel.core.model import Proceed
from semel.core.outcomes import Released
from semel.core.requests import Begin, Commit, Perform, Rollback, Within
from semel.errors import StepError, StepInDoubt, StoreError, StoreTimeout, StoreUnavailable
from semel.steps.flow import StepLedger
from semel.steps.rules import STEPS_MAX, Step
from semel.steps.store import Recorded, StepRows
from semel.stores.sqlite.store import SqliteStore
from semel.testing.attempts import attempt
from tests.engine.drivers import sqlite
from tests.steps.conftest import step_command


class Unit:
    """A transaction of which nothing is asked."""

    def hand_out(self) -> None:
        return None


class Stage:
    """The steps of a first run over a store with scripted answers: ``fails`` names the asks without a reply."""

    def __init__(self) -> None:
        verdict = decide(None, attempt("k"), 1)
        assert isinstance(verdict, Proceed)
        self.ledger = StepLedger(StepRows(SqliteStore()), verdict.grant, 1_000_000)
        self.fails: set[str] = set()
        self.asked: list[str] = []

    def perform(self, flow: Flow[Any]) -> Any:
        try:
            needed = next(flow)
            while True:
                try:
                    reply = self._answer(needed)
                except StoreError as error:
                    needed = flow.throw(error)
                else:
                    needed = flow.send(reply)
        except StopIteration as stop:
            return stop.value

    def _answer(self, needed: Any) -> Any:
        within = isinstance(needed, Within)
        name = needed.verb if isinstance(needed, (Perform, Within)) else type(needed).__name__
        self.asked.append(f"{name} within" if within else name)
        if f"refused {self.asked[-1]}" in self.fails:
            raise StoreUnavailable("no")
        if self.asked[-1] in self.fails:
            raise StoreTimeout("no reply")
        match needed:
            case Begin():
                return Unit()
            case Commit() | Rollback():
                return None
            case _:
                return Recorded(None, None) if needed.verb == "read_steps" else True

    def finish(self, name: str, *, repeatable: bool = False) -> None:
        step = self.perform(self.ledger.begin(Step(name, 0, 1, repeatable)))
        self.ledger.finish(step, b"1")


def test_a_possibly_committed_local_step_is_not_overwritten() -> None:
    """Found by seed 171 of format 1: its commit was not answered, nor could it be read back.

    At the end of its run its holder wrote the list that it knew, without the step. A crash before the settlement would
    have left an execution that may continue, and the local writes would have been made twice.
    """
    stage = Stage()
    stage.finish("charge")
    opened = stage.perform(stage.ledger.open(Step("write", 0, 1, repeatable=False), Begin()))
    stage.fails = {"Commit", "read_steps"}
    with pytest.raises(StepInDoubt):
        stage.perform(stage.ledger.commit(opened, b"2"))
    stage.perform(stage.ledger.undo(opened))
    stage.asked.clear()
    stage.perform(stage.ledger.close(Released("error:StepInDoubt", proven=False)))
    assert "write_steps" not in stage.asked
    assert stage.ledger.doubt == "step:write"


def test_a_result_that_is_stored_is_not_in_doubt() -> None:
    """Found by seed 577 of format 1: the result of a repeatable step could not be written at the end of a run.

    The operation was made UNKNOWN, and named the step before it, whose result had been stored long ago.
    """
    stage = Stage()
    stage.finish("charge")
    stage.finish("mail", repeatable=True)  # its start has carried the charge's result
    stage.fails = {"write_steps"}
    outcome = Released("error:StepFailed", proven=False)
    stage.perform(stage.ledger.close(outcome))
    assert stage.ledger.doubt is None
    assert stage.ledger.outcome(outcome) == Released("error:StepFailed", proven=False, resumes=True)


def test_a_result_that_is_not_stored_is_in_doubt() -> None:
    stage = Stage()
    stage.finish("charge")
    stage.fails = {"write_steps"}
    stage.perform(stage.ledger.close(Released("error:StepFailed", proven=False)))
    assert stage.ledger.doubt == "step:charge"


def raise_error(error: BaseException) -> Answer:
    raise error


@pytest.mark.parametrize("first", ["proven", "local"])
def test_a_skipped_step_keeps_its_place(first: str, tmp_path: Path) -> None:
    """A card is declined, and something else is tried: the next run asks for the card first, as the last one did.

    Its handler got "the steps were renamed" for ever.
    """
    calls: list[str] = []

    def pay(permit: Permit) -> Answer:
        with suppress(NothingHappened):
            if first == "proven":
                permit.step("card", lambda: raise_error(NothingHappened("declined")))
            else:
                permit.local_step("card", lambda connection: raise_error(NothingHappened("declined")))
        permit.step("backup", lambda: calls.append("backup"))
        if permit.attempt == 1:
            raise ConnectionError("away")
        return Answer(201, (), b"paid")

    with closing(Engine(sqlite(tmp_path / "semel.db"))) as engine:
        engine.migrate()
        with pytest.raises(ConnectionError):
            engine.run(step_command(), pay)
        assert engine.run(step_command(), pay).answer.body == b"paid"
    assert calls == ["backup"]


def test_a_start_that_the_store_refused_keeps_its_place() -> None:
    stage = Stage()
    stage.fails = {"refused write_steps"}
    with pytest.raises(StoreUnavailable):
        stage.finish("charge")
    stage.fails = set()
    stage.finish("mail")
    assert [(step.name, step.disproved) for step in stage.ledger._steps] == [("charge", True), ("mail", False)]


@pytest.mark.parametrize("first", ["proven", "local"])
def test_skipped_steps_count_towards_the_limit(first: str, tmp_path: Path) -> None:
    """However many were undone, one more was let in; what followed was refused in a later run, not in this one."""
    declined: list[int] = []

    def pay(permit: Permit) -> Answer:
        for number in range(STEPS_MAX + 5):
            with suppress(NothingHappened):
                if first == "proven":
                    permit.step("card", lambda: raise_error(NothingHappened("declined")), ordinal=number)
                else:
                    permit.local_step(
                        "card", lambda connection: raise_error(NothingHappened("declined")), ordinal=number
                    )
            declined.append(number)
        return Answer(201, (), b"paid")

    with closing(Engine(sqlite(tmp_path / "semel.db"))) as engine:
        engine.migrate()
        with pytest.raises(StepError, match=f"at most {STEPS_MAX} steps, those that did not happen among them"):
            engine.run(step_command(), pay)
    assert len(declined) == STEPS_MAX
