"""Apply the resolution of an operator, a reconciler or a report to a record; pure, over the whole row.

The memory store runs these. A SQL store runs them between a locked read and a write.
"""

from __future__ import annotations

from semel.core.model import (
    STORED_ANSWERS,
    AnswerKind,
    MovedOn,
    Record,
    Resolution,
    Resolved,
    State,
    TooEarly,
)
from semel.core.record import answer_digest, is_sound, pack_headers, state_of
from semel.core.timing import next_fence, retention
from semel.steps.doubts import names_a_step, step_of
from semel.steps.rules import Steps, doubtful, has_begun


def resolve_row(
    row: Record | None, resolution: Resolution, now: int, steps: Steps | None = None
) -> tuple[Resolved | TooEarly | MovedOn, Record | None]:
    """Return the reply to an operator's or reconciler's settlement, and the row to write.

    Parameters: ``steps`` the result of ``findings.steps_after``: the list that is written with the row, if any.
    """
    if row is not None and not is_sound(row):
        return MovedOn(None), None
    if row is None or row.fence != resolution.fence:
        return MovedOn(None if row is None else state_of(row)), None
    if row.state != State.UNKNOWN and not (may_be_settled(row, resolution) and now >= row.lease_until):
        return MovedOn(state_of(row)), None
    in_doubt = step_of(row.doubt)
    if resolution.step not in (None, in_doubt) or (resolution.result is not None and in_doubt is None):
        return MovedOn(state_of(row)), None  # its holder has gone on since it was read
    if now < row.deadline_at and not resolution.forced:
        return TooEarly(row.deadline_at - now), None
    of_steps = steps is not None or (not resolution.happened and in_doubt is not None)
    if of_steps and resolution.ends is None and (goes_on := continue_row(row, steps or (), now)) is not None:
        return Resolved(State(goes_on.state)), goes_on
    state = resolution.state
    answer_until, forget_after = retention(now, row.answer_us, row.tombstone_us)
    answer = resolution.answer if resolution.happened else None
    block = None if answer is None else pack_headers(answer.headers)
    digest = None if answer is None or block is None else answer_digest(answer.status, block, answer.body)
    kind = (
        resolution.answer_kind
        if answer is not None
        else AnswerKind.NOT_KEPT
        if resolution.happened
        else AnswerKind.NONE
    )
    is_kept = kind in STORED_ANSWERS
    return Resolved(state), row._replace(
        state=state,
        fence=next_fence(row.fence, now),
        # A step's first call may still arrive: downstream it has the next call's derived key, and is deduplicated.
        generation=row.generation + (0 if resolution.happened or of_steps else 1),
        settled_at=now,
        answer_until=answer_until,
        forget_after=forget_after,
        doubt=None,
        resource_type=resolution.resource_type or row.resource_type,
        resource_id=resolution.resource_id or row.resource_id,
        error_code=None if resolution.refused else row.error_code,  # it is a failed attempt's; a refusal has its status
        answer_kind=kind,
        answer_digest=digest,
        status=answer.status if answer is not None else None,
        headers=block if is_kept else None,
        body=answer.body if answer is not None and is_kept else None,
        request=None,
    )


def may_be_settled(row: Record, resolution: Resolution) -> bool:
    """Whether an open record whose lease is over may be settled by hand.

    Between its steps nothing is in doubt, and the next attempt continues; only a finding that ends it counts.
    """
    return row.state == State.PROCESSING or (
        row.state == State.CLAIMED and resolution.ends is not None and row.settled_at is None
    )


def continue_row(row: Record, steps: Steps, now: int) -> Record | None:
    """Return the row of an execution that continues after a finding about one step; None: nothing has begun.

    Another step in doubt keeps it UNKNOWN. Otherwise it has no holder, and the next attempt continues where it was: a
    retry with the key, or a completer with the stored request. The fence moves and supersedes the former holder.
    """
    fence = next_fence(row.fence, now)
    open = doubtful(steps)
    if open is not None:
        return row._replace(state=State.UNKNOWN, fence=fence, doubt=open.doubt)
    if row.request is None and not any(map(has_begun, steps)):
        return None
    return row._replace(
        state=State.CLAIMED,
        fence=fence,
        attempt=1 if row.attempt >= row.attempts_max else row.attempt,  # the completer's attempts start over
        lease_until=0,
        doubt=None,
        error_code=None,
        answer_kind=AnswerKind.NONE,
        answer_digest=None,
        status=None,
        headers=None,
        body=None,
    )


def action_of(resolution: Resolution, seen: Record) -> str:
    """Name a settlement for the audit trail."""
    action = f"resolve:{'refused' if resolution.refused else 'succeeded' if resolution.happened else 'did-not-happen'}"
    if resolution.ends is not None:
        steps = (f"{name}={'happened' if happened else 'not'}" for name, happened in resolution.ends)
        return " ".join((action, *steps))
    of_step = names_a_step(seen.doubt) and (resolution.result is not None or not resolution.happened)
    return f"{action} {seen.doubt}" if of_step else action
