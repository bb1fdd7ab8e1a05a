"""Handlers with steps in the simulator: nothing is done twice, lost or left in silence; what is planted is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from semel.core.model import State
from semel.core.requests import Perform, Within
from semel.steps import findings as step_findings
from semel.steps import flow as protocol
from semel.steps import rules as steps
from semel.stores.sql.dialect import SQLITE
from verification.simulate import Shape, replay, search
from verification.simulate.schedule import Schedule
from verification.simulate.step_ledger import StepLedger

STEPS: Final = Shape(steps=1.0)
UNDECLARED: Final = Shape(steps=1.0, undeclared=1.0)
TROUBLED: Final = Shape(steps=1.0, trouble=0.6)
SCHEDULES: Final = 500
PLANTED_MAX: Final = 250


@pytest.mark.no_cover
def test_every_schedule_keeps_the_invariants() -> None:
    violation = search(range(SCHEDULES), shape=STEPS)
    assert violation is None, violation.report()


@pytest.mark.no_cover
def test_versions_without_steps_never_run_a_command_with_begun_steps() -> None:
    violation = search(range(SCHEDULES), shape=UNDECLARED)
    assert violation is None, violation.report()


def test_versions_without_steps_meet_records_of_every_kind() -> None:
    words = ("is told RecordUnreadableError", "is told NothingHappened", "EFFECT")
    seen: Counter[str] = Counter()
    for seed in range(100):
        trace = "\n".join(replay(seed, shape=UNDECLARED).trace)
        seen.update(word for word in words if word in trace)
    assert set(seen) == set(words), seen


def test_a_version_that_forgets_the_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.steps.store.any_begun", lambda stored, generation: False)
    violation = search(range(PLANTED_MAX), shape=UNDECLARED)
    assert violation is not None
    assert violation.invariant == "I4 no blind rerun"


def test_schedules_are_as_eventful_as_they_are_meant_to_be() -> None:
    words = (
        *(
            "CRASHES",
            "is paused",
            "late request",
            "lost reply",
            "EFFECT",
            "COMMIT of a local step",
            "nothing more is done",
        ),
        *("happened=False: Resolved(state=<State.CLAIMED", "happened=True: Resolved(state=<State.CLAIMED"),
        *("happened=True: Resolved(state=<State.SUCCEEDED", "UNKNOWN", "attempt=3", "keep_request", "lapse:"),
    )
    seen: Counter[str] = Counter()
    for seed in range(250):
        trace = "\n".join(replay(seed, shape=STEPS).trace)
        seen.update(word for word in words if word in trace)
    assert set(seen) == set(words), seen


def test_a_downstream_that_does_not_deduplicate_sees_a_repeatable_step_twice() -> None:
    """Its author accepts the risk: it has to happen here, or the accounts would prove nothing."""
    repeated = 0
    for seed in range(250):
        schedule = Schedule(seed, STEPS)
        schedule.perform()
        assert isinstance(schedule.ledger, StepLedger)
        repeated += schedule.ledger.repeated
        assert not (schedule.ledger.repeated and schedule.plan.deduplicates)
    assert repeated > 0


# --- what is planted must be found ------------------------------------------------------------------

Planting = Callable[[pytest.MonkeyPatch], None]


def start_not_fenced(patch: pytest.MonkeyPatch) -> None:
    statement = SQLITE.statements("steps")["write_steps"]
    text = statement.qmark.replace("fence = ? AND nonce = ?", "? IS NOT NULL AND ? IS NOT NULL")
    assert text != statement.qmark
    before = statement.qmark
    object.__setattr__(statement, "qmark", text)
    patch.setattr(statements_restored, "text", (statement, before))


class statements_restored:
    """Holds the result of a statement."""

    text: Any = None


def result_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "with_result", lambda recorded, step, result: steps.without(recorded, step.identity))


def start_written_after_the_call(patch: pytest.MonkeyPatch) -> None:
    original = protocol.StepLedger._write

    def write(self: Any, recorded: Any) -> Any:
        yield from ()
        if recorded and not recorded[-1].finished:
            return True
        return (yield from original(self, recorded))

    patch.setattr(protocol.StepLedger, "_write", write)


def doubtful_step_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "_why_not_again", lambda known, want, dedup_us: None)
    patch.setattr(protocol, "standing", lambda recorded: (State.CLAIMED, None))


def doubt_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "outcome_after", lambda outcome, *_, **__: outcome)


def everything_disproved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step_findings, "apply_finding", lambda recorded, doubt, result: ())


def unseen_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol.StepLedger, "_check_seen", lambda self, step: None)


def local_step_recorded_elsewhere(patch: pytest.MonkeyPatch) -> None:
    def within(unit: Any, verb: str, make: Any) -> Any:
        return Perform(verb, make) if verb == "write_steps" else Within(unit, verb, make)

    patch.setattr(protocol, "Within", within)


# Where the search begins: what is rare is not looked for from the first seed each time.
PLANTED: Final[dict[Planting, int]] = {
    start_not_fenced: 0,
    result_dropped: 0,
    start_written_after_the_call: 0,
    doubtful_step_repeated: 0,
    doubt_not_told: 0,
    everything_disproved: 0,
    unseen_forgotten: 400,
    local_step_recorded_elsewhere: 0,
}


@pytest.mark.no_cover
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_planted_defects_are_found(planted: Planting, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    try:
        found = search(range(PLANTED[planted], PLANTED[planted] + PLANTED_MAX), shape=TROUBLED)
    finally:
        if statements_restored.text is not None:
            statement, before = statements_restored.text
            object.__setattr__(statement, "qmark", before)
    assert found is not None, "planted, and nobody noticed"
    print(f"{planted.__name__}: seed {found.seed}: {found.invariant}: {found.seen}")
