"""Mutants of steps: when a start is written and by whom, what a result leaves behind, and what a doubt permits."""

from __future__ import annotations

from typing import Any, Final

from semel.core.flow import Flow
from semel.core.requests import Perform, Unit, Within
from semel.steps.rules import Steps
from semel.stores.sql.dialect import SQLITE
from verification.explore.replacing import Patch, replace_everywhere, text_replaced
from verification.explore.step_variants import (
    doubt_is_not_told,
    doubtful_step_is_repeated,
    everything_is_disproved,
    result_is_dropped,
)
from verification.mutants.mutant import Mutant


def _at(place: str, make: Any) -> Patch:
    return lambda: replace_everywhere(place, make)


def _start_unwritten(original: Any) -> Any:
    def write(self: Any, steps: Steps) -> Flow[bool]:
        yield from ()
        if steps and not steps[-1].finished:
            return True
        written: bool = yield from original(self, steps)
        return written

    return write


def _elsewhere(unit: Unit, verb: str, make: Any) -> Any:
    return Perform(verb, make) if verb == "write_steps" else Within(unit, verb, make)


MUTANTS: Final = (
    Mutant(
        name="step-start-not-fenced",
        does="the start of a step is written although another holds the record",
        breaks="I3",
        part="steps",
        patch=lambda: text_replaced(
            SQLITE.statements("steps")["write_steps"], "fence = ? AND nonce = ?", "? IS NOT NULL AND ? IS NOT NULL"
        ),
    ),
    Mutant(
        name="step-start-after-its-call",
        does="a step's call is made before its start is written",
        breaks="I4",
        part="steps",
        patch=_at("semel.steps.flow:StepLedger._write", _start_unwritten),
    ),
    Mutant(
        name="step-result-dropped",
        does="the next start is written without the result of the step before it",
        breaks="I4",
        part="steps",
        patch=result_is_dropped,
    ),
    Mutant(
        name="doubtful-step-repeated",
        does="a step that had begun and may not be repeated is run again",
        breaks="I4",
        part="steps",
        patch=doubtful_step_is_repeated,
    ),
    Mutant(
        name="step-doubt-not-told",
        does="the end of a run says nothing of the step that is in doubt",
        breaks="I4",
        part="steps",
        patch=doubt_is_not_told,
    ),
    Mutant(
        name="did-not-happen-of-all-steps",
        does="what was found out of one step takes back those that had finished",
        breaks="I4",
        part="steps",
        patch=everything_is_disproved,
    ),
    Mutant(
        name="local-step-recorded-elsewhere",
        does="the record of a local step is not written in its own transaction",
        breaks="I4",
        part="steps",
        patch=lambda: replace_everywhere("semel.steps.flow:Within", lambda _: _elsewhere, only_there=True),
    ),
)
