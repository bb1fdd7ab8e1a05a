"""Unsafe variants of steps: the shortcuts that look right, each refused with its shortest counterexample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from semel.core.model import OPEN_STATES, State
from semel.steps.rules import without
from verification.explore.replacing import replace_everywhere
from verification.explore.variant import Variant
from verification.explore.world import Habits


def start_is_not_fenced() -> AbstractContextManager[None]:
    """Every holder writes the list, as long as the record is open."""

    def may_write(row: Any, holder: Any) -> bool:
        return row is not None and row.state in OPEN_STATES and row.lease_until > 0

    return replace_everywhere("verification.explore.step_rows:may_write", lambda _: may_write)


@contextmanager
def doubtful_step_is_repeated() -> Iterator[None]:
    """Neither a lapse nor a later run minds a step that had begun."""
    with (
        replace_everywhere("semel.steps.rules:_why_not_again", lambda _: lambda known, want, dedup_us: None),
        replace_everywhere("semel.steps.rules:standing", lambda _: lambda steps: (State.CLAIMED, None)),
    ):
        yield


def result_is_dropped() -> AbstractContextManager[None]:
    """A step that has finished is left out of what is written next."""
    return replace_everywhere(
        "semel.steps.rules:with_result", lambda _: lambda steps, step, result: without(steps, step.identity)
    )


def everything_is_disproved() -> AbstractContextManager[None]:
    """ "Did not happen" of one step is taken for all of them."""
    return replace_everywhere("semel.steps.findings:apply_finding", lambda _: lambda steps, doubt, result: ())


def doubt_is_not_told() -> AbstractContextManager[None]:
    """The end of a run says nothing of the step that is in doubt."""
    return replace_everywhere("semel.steps.flow:outcome_after", lambda _: lambda outcome, *rest, **named: outcome)


def steps_are_forgotten() -> AbstractContextManager[None]:
    """A version of the operation that declares no steps takes every command that lapsed between two of them."""
    return replace_everywhere("semel.steps.rules:any_begun", lambda _: lambda stored, generation: False)


STEP_VARIANTS: Final = (
    Variant(
        name="steps-forgotten",
        does="a version of the operation without steps runs what another one has begun",
        mode="steps-undeclared",
        breaks="I4",
        patch=steps_are_forgotten,
    ),
    Variant(
        name="step-start-unfenced",
        does="the start of a step is written although another holds the record",
        mode="steps-repeated",
        breaks="I3",
        patch=start_is_not_fenced,
    ),
    Variant(
        name="step-start-after-its-call",
        does="a step's call is made before its start is recorded",
        mode="steps",
        breaks="I4",
        habits=Habits(calls_before_the_start=True),
    ),
    Variant(
        name="step-result-dropped",
        does="the next start is written without the result of the step before it",
        mode="steps",
        breaks="I4",
        patch=result_is_dropped,
    ),
    Variant(
        name="doubtful-step-repeated",
        does="a step that had begun and may not be repeated is run again",
        mode="steps",
        breaks="I4",
        patch=doubtful_step_is_repeated,
    ),
    Variant(
        name="did-not-happen-of-all-steps",
        does="what was found out of one step takes back those that had finished",
        mode="steps",
        breaks="I4",
        patch=everything_is_disproved,
    ),
    Variant(
        name="step-doubt-not-told",
        does="the end of a run says nothing of the step that is in doubt",
        mode="steps-raising",
        breaks="I6",
        patch=doubt_is_not_told,
    ),
    Variant(
        name="step-operator-guesses",
        does="an operator says of a step the contrary of what happened",
        mode="steps",
        breaks="I2",
        habits=Habits(operator_guesses=True),
    ),
)
