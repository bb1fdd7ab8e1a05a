"""What a finding means: believed, believed later, asked again, or an operator's."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.decide import decide
from semel.core.model import Answer, Proceed, Record, Resolution, State
from semel.reconciliation.rules import (
    Again,
    DidNotHappen,
    Finding,
    StepSucceeded,
    StillUnknown,
    SucceededWith,
    holder_has_ended,
    judge,
    quiet_until,
)
from semel.stores.memory.store import grant_row
from semel.testing.attempts import OK, attempt

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
QUIET = 60 * SECOND


def unknown(doubt: str | None = "lapsed", **changed: Any) -> Record:
    verdict = decide(None, attempt(), NOW)
    assert isinstance(verdict, Proceed)
    return grant_row(None, attempt(), verdict.grant)._replace(state=State.UNKNOWN, doubt=doubt, **changed)


ROW = unknown()
OVER = ROW.deadline_at


def judge_finding(found: Finding, row: Record, now: int, asked: int = 0, jitter: float = 1.0, **options: Any) -> object:
    return judge(found, row, now, actor="asker", quiet_us=QUIET, asked=asked, asked_max=3, jitter=jitter, **options)


def resolution_of(row: Record, happened: bool, reason: str, **said: Any) -> Resolution:
    return Resolution(row.id, row.fence, happened, None, "asker", reason)._replace(**said)


def test_quiet_time_starts_when_no_holder_can_be_alive() -> None:
    assert quiet_until(ROW, QUIET) == ROW.deadline_at + QUIET
    assert quiet_until(ROW._replace(lease_until=OVER + 5), QUIET) == OVER + 5 + QUIET


@pytest.mark.parametrize(
    ("doubt", "code", "ended"),
    [
        ("lapsed", None, False),
        (None, None, False),
        ("step:charge", None, False),
        ("error:E", None, True),
        ("http-503", None, True),
        ("step:charge", "error:E", True),
    ],
)
def test_a_holders_own_report_is_recognised(doubt: str | None, code: str | None, ended: bool) -> None:
    row = unknown(doubt, error_code=code)
    assert holder_has_ended(row) is ended
    found = judge_finding(SucceededWith(OK), row, OVER - 10 * SECOND)
    if ended:  # no holder is left whose own answer would be better
        assert found == resolution_of(row, True, "the other side has it", answer=OK, forced=True)
    else:
        assert found == Again(
            5 * SECOND, "it happened, and its holder may still say so: the other side has it", counts=False
        )


@pytest.mark.parametrize("answer", [OK, None])
def test_a_success_found_after_the_deadline_settles(answer: Answer | None) -> None:
    found = SucceededWith(answer, ("order", "7"), "invoice 7")
    wanted = resolution_of(ROW, True, "invoice 7", answer=answer, resource_type="order", resource_id="7", forced=False)
    assert judge_finding(found, ROW, OVER) == wanted
    nameless = judge_finding(SucceededWith(answer), ROW, OVER)
    assert nameless == resolution_of(ROW, True, "the other side has it", answer=answer, forced=False)


def test_the_step_in_doubt_happened() -> None:
    row = unknown("step:charge")
    wanted = resolution_of(row, True, "the other side has it", forced=False, step="charge", result=b'"ch_1"')
    assert judge_finding(StepSucceeded("ch_1"), row, OVER, result=b'"ch_1"') == wanted


@pytest.mark.parametrize("doubt", ["lapsed", "step:charge"])
def test_did_not_happen_counts_from_the_quiet_time_on(doubt: str) -> None:
    row, step = unknown(doubt), None if doubt == "lapsed" else "charge"
    reason = "the other side knows nothing of it"
    assert judge_finding(DidNotHappen(), row, OVER + QUIET) == resolution_of(row, False, reason, step=step)
    assert judge_finding(DidNotHappen(), row, OVER + QUIET - 1) == Again(1, f"not yet proof: {reason}", counts=False)


@pytest.mark.parametrize(
    ("left", "wait"),
    [(40 * SECOND, 20 * SECOND), (2 * SECOND, SECOND), (1_500_000, SECOND), (5_000_001, 2_500_000), (7, 7)],
)
def test_an_early_call_is_repeated_after_half_the_remaining_time(left: int, wait: int) -> None:
    found = judge_finding(DidNotHappen("no"), ROW, OVER + QUIET - left)
    assert found == Again(wait, "not yet proof: no", counts=False, over=False)


@pytest.mark.parametrize(
    ("asked", "jitter", "seconds", "over"),
    [(0, 1.0, 5.0, False), (0, 0.0, 2.5, False), (1, 1.0, 10.0, False), (2, 1.0, 20.0, True), (30, 1.0, 3600.0, True)],
)
def test_a_still_unknown_finding_is_asked_again_later(asked: int, jitter: float, seconds: float, over: bool) -> None:
    found = judge_finding(StillUnknown("busy"), ROW, OVER, asked, jitter)
    assert found == Again(int(seconds * SECOND), "busy", counts=True, over=over)


@pytest.mark.parametrize(
    ("reason", "kept"), [("x" * 501, "x" * 500), ("", "no reason given"), ("a\ud800", "a?"), ("ü", "ü")]
)
def test_a_reason_is_shortened_and_can_be_stored(reason: str, kept: str) -> None:
    found = judge_finding(StillUnknown(reason), ROW, OVER)
    assert isinstance(found, Again)
    assert found.reason == kept
