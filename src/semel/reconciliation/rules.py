"""The consequence of a reconciler's finding for an UNKNOWN record: settle now, or ask again at a given time.

An early "it did not happen" proves nothing: the holder may still be running, and the other side may still have the call
in a queue. So it counts only from ``quiet_for`` after the deadline. Pure: times in microseconds of the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from semel.core.backoff import poll_seconds
from semel.core.model import Answer, Record, Resolution
from semel.steps.doubts import step_of

FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 3600.0
EARLY_SECONDS_MIN: Final = 1.0
REASON_LENGTH_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class SucceededWith:
    """The command happened. Every retry gets ``answer`` (None: retries only learn that it was done).

    Parameters: ``resource`` type and id of the created resource; ``reason`` how it is known, for the audit trail.
    """

    answer: Answer | None
    resource: tuple[str, str] | None = None
    reason: str = "the other side has it"


@dataclass(frozen=True, slots=True)
class StepSucceeded:
    """The step in doubt happened, and its call would have returned this result. The execution continues.

    Parameters: ``result`` a value in JSON's own types, as the step's declared type is written; ``reason`` how it is
    known, for the audit trail.
    """

    result: Any
    reason: str = "the other side has it"


@dataclass(frozen=True, slots=True)
class RefusedWith:
    """The command ended without its effect, and every retry gets this answer, such as a 409 "refunded".

    Parameters: ``reason`` how it is known, for the audit trail. Only a report may be one (``engine.settle_by``).
    """

    answer: Answer
    reason: str = "it was refused, or undone"


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The other side knows nothing of it: from ``quiet_for`` on a retry may run it.

    If a step is in doubt (``case.step``), only that step did not happen: finished steps stay finished.
    """

    reason: str = "the other side knows nothing of it"


@dataclass(frozen=True, slots=True)
class StillUnknown:
    """The outcome is still unknown; the reason says why."""

    reason: str


Finding = SucceededWith | StepSucceeded | DidNotHappen | StillUnknown


@dataclass(frozen=True, slots=True)
class Again:
    """Ask again in ``wait_us``; ``counts``: as an attempt; ``over``: do not ask again, an operator must find out."""

    wait_us: int
    reason: str
    counts: bool
    over: bool = False


def quiet_until(record: Record, quiet_us: int) -> int:
    """Return the earliest time to accept "it did not happen": no holder runs, and the quiet time is over."""
    return max(record.deadline_at, record.lease_until) + quiet_us


def holder_has_ended(record: Record) -> bool:
    """Whether the holder itself reported an unknown outcome. After a lapse it may still be alive."""
    doubt = record.doubt or ""
    return doubt.startswith(("error:", "http-")) or record.error_code is not None


def judge(
    found: Finding | RefusedWith,
    record: Record,
    now: int,
    *,
    actor: str,
    quiet_us: int,
    asked: int,
    asked_max: int,
    jitter: float,
    result: bytes | None = None,
) -> Resolution | Again:
    """Decide the consequence of a finding.

    Parameters: ``asked`` the number of earlier asks that counted; ``jitter`` between 0 and 1; ``result`` a succeeded
    step's result, as it is recorded.
    """
    step = step_of(record.doubt)
    match found:
        case SucceededWith(_, _, reason) | StepSucceeded(_, reason) | RefusedWith(_, reason):
            early = now < record.deadline_at
            if early and not holder_has_ended(record):  # the holder's own answer would be better
                return _early(record.deadline_at - now, f"it happened, and its holder may still say so: {reason}")
            resolution = Resolution(record.id, record.fence, True, None, actor, _short(reason), early)
            if isinstance(found, StepSucceeded):
                return resolution._replace(step=step, result=result)
            if isinstance(found, RefusedWith):
                return resolution._replace(answer=found.answer, refused=True)
            kind, id = found.resource or (None, None)
            return resolution._replace(answer=found.answer, resource_type=kind, resource_id=id)
        case DidNotHappen(reason):
            left = quiet_until(record, quiet_us) - now
            if left > 0:
                return _early(left, f"not yet proof: {reason}")
            return Resolution(record.id, record.fence, False, None, actor, _short(reason), step=step)
        case StillUnknown(reason):
            wait = poll_seconds(asked, jitter, first=FIRST_SECONDS, longest=LONGEST_SECONDS)
            return Again(int(wait * 1_000_000), _short(reason), counts=True, over=asked + 1 >= asked_max)


def _early(left_us: int, reason: str) -> Again:
    """Return half of the remaining time, so that later changes are noticed without many queries."""
    wait = min(left_us, max(left_us // 2, int(EARLY_SECONDS_MIN * 1_000_000)))
    return Again(wait, _short(reason), counts=False)


def _short(reason: str) -> str:
    text = str(reason)[:REASON_LENGTH_MAX]  # the other side's text may contain a lone surrogate
    return text.encode("utf-8", "replace").decode() or "no reason given"
