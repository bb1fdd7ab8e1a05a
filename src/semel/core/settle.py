"""What becomes of a settlement, a renewal, an abandoned claim and a resolution: pure, over the whole row.

The memory store runs these; a SQL store's guarded statements must agree with them, and random
histories compare the two.
"""

from __future__ import annotations

from typing import Any

from semel.core.decide import Situation, classify_lapsed, doubt_of
from semel.core.model import (
    OPEN_STATES,
    STORED_ANSWERS,
    AlreadyMine,
    AnswerKind,
    Effects,
    MovedOn,
    Record,
    Renewal,
    Reseal,
    Resolution,
    Resolved,
    Settled,
    Settlement,
    Settling,
    State,
    Superseded,
    TooEarly,
)
from semel.core.record import answer_digest, is_sound, pack_headers, state_of
from semel.core.timing import lease_end, next_fence, retention
from semel.steps.doubts import names_a_step, step_of
from semel.steps.rules import Steps, doubtful, has_begun

# A holder whose fence and nonce still stand may settle even after the record reads UNKNOWN.
SETTLEABLE = (*OPEN_STATES, State.UNKNOWN)
_NO_END = (None, None, None)
_new: Any = tuple.__new__  # every command pays for a record
_PROCESSING = State.PROCESSING
_FAILED_NOT_REPLAYABLE = State.FAILED_NOT_REPLAYABLE
_SETTLED = Settled()
_WITHOUT_OUTCOME = (State.CLAIMED, State.UNKNOWN)

# A settlement writes these and all columns from settled_at on. It is spelled by position, because every command
# pays for it; that the order is the record's is checked when this module is loaded.
_STATE, _LEASE_UNTIL, _SETTLED_AT = (Record._fields.index(name) for name in ("state", "lease_until", "settled_at"))
_UNTIL_STATE, _FROM_STATE = slice(_STATE), slice(_STATE + 1, _SETTLED_AT)
_LEASE, _UNTIL_SETTLED = slice(_STATE + 1, _LEASE_UNTIL), slice(_LEASE_UNTIL + 1, _SETTLED_AT)
_SETTLED_COLUMNS = (
    *("settled_at", "answer_until", "forget_after", "doubt", "business_ref", "resource_type", "resource_id"),
    *("error_code", "answer_kind", "answer_digest", "sealing_key_id", "status", "headers", "request", "body"),
)
if Record._fields[_SETTLED_AT:] != _SETTLED_COLUMNS:
    raise AssertionError("core/settle.py and model.Record disagree on the order of the last columns of a record")


def holds(row: Record | None, fence: int, nonce: bytes) -> bool:
    """Whether this holder's grant is still the record's."""
    return row is not None and row.fence == fence and row.nonce == nonce


def settle_row(row: Record | None, settlement: Settlement, now: int) -> tuple[Settling, Record | None]:
    """The reply to a settlement, and the row to write (None: write nothing)."""
    if row is None or not is_sound(row):
        return Superseded(None), None
    if not holds(row, settlement.fence, settlement.nonce):
        return Superseded(state_of(row)), None
    if settlement.state == _FAILED_NOT_REPLAYABLE and may_have_begun_before(row):
        settlement = settlement._replace(state=relinquished_state(row))
    block = digest = None
    if settlement.answer is not None:
        status, headers, body = settlement.answer
        block = pack_headers(headers)
        digest = answer_digest(status, block, body)
    if (row.state != _PROCESSING or row.lease_until == 0) and (row.state not in SETTLEABLE or is_relinquished(row)):
        mine = row.state == settlement.state and row.answer_digest == digest
        return (AlreadyMine() if mine else Superseded(state_of(row))), None
    return _SETTLED, write_settlement(row, settlement, block, digest, now)


def is_relinquished(row: Record) -> bool:
    """Whether the holder has given its lease back after an error: IDEMPOTENT, or with steps and none in doubt."""
    return row.state in OPEN_STATES and row.lease_until == 0


def relinquished_state(row: Record) -> State:
    """The state of a record whose lease was given back: only with declared steps it is not PROCESSING."""
    return State.PROCESSING if row.effects == Effects.IDEMPOTENT else State.CLAIMED


def may_have_begun_before(row: Record) -> bool:
    """Whether an attempt before this one may have had its effect: then nothing that this one proves frees the key.

    The lease is given back instead, so that the downstream's memory and the crashes go on being counted. The
    fence of a first attempt is the time of its start; a clock that was set back only makes this more careful.
    """
    return (row.effects == Effects.IDEMPOTENT or row.state == State.CLAIMED) and row.fence > row.first_started_at


def write_settlement(
    row: Record, settlement: Settlement, header_block: bytes | None, digest: bytes | None, now: int
) -> Record:
    """The row after the settlement: retention starts here, and never for UNKNOWN or relinquished."""
    _, _, _, state, answer, kind, doubt, error_code, business_ref, resource_type, resource_id, _, _ = settlement
    if answer is None:
        status = body = None
    else:
        status, _, body = answer
        if kind not in STORED_ANSWERS:
            header_block = body = None
    columns: tuple[Any, ...] = row
    request = None
    if state in SETTLEABLE:
        lease_until = 0 if state in OPEN_STATES else row.lease_until
        middle = columns[_LEASE] + (lease_until,) + columns[_UNTIL_SETTLED] + _NO_END
        # Until there is an outcome it is needed: what is found out may let a completer go on.
        request = row.request if state in _WITHOUT_OUTCOME else None
    else:
        middle = columns[_FROM_STATE] + (now,) + retention(now, row.answer_us, row.tombstone_us)
    end = (
        doubt,
        business_ref,
        resource_type,
        resource_id,
        error_code,
        kind,
        digest,
        row.sealing_key_id,
        status,
        header_block,
        request,
        body,
    )
    return _new(Record, columns[_UNTIL_STATE] + (state,) + middle + end)  # type: ignore[no-any-return]


def renew_row(row: Record | None, renewal: Renewal, now: int) -> Record | None:
    """The row after a renewal, or None where this holder may not renew (any more)."""
    if row is None or not holds(row, renewal.fence, renewal.nonce) or not is_sound(row):
        return None
    if now >= row.deadline_at or is_relinquished(row):
        return None
    # A step's doubt may also be the holder's own settlement, which comes before the lease is over.
    of_step = names_a_step(row.doubt) and now >= row.lease_until
    by_lapse = row.state == State.UNKNOWN and (row.doubt == "lapsed" or of_step)
    if row.state not in OPEN_STATES and not by_lapse:
        return None
    state = State.PROCESSING if by_lapse else State(row.state)
    doubt = None if by_lapse and not names_a_step(row.doubt) else row.doubt
    return row._replace(state=state, doubt=doubt, lease_until=lease_end(now, row.lease_us, row.deadline_at))


def mark_row(row: Record | None, renewal: Renewal) -> Record | None:
    """The row after its holder said that no answer will be kept, or None: an answer that is stored stays."""
    if row is None or not holds(row, renewal.fence, renewal.nonce) or is_relinquished(row) or not is_sound(row):
        return None
    return row._replace(answer_kind=AnswerKind.NOT_KEPT) if row.state in SETTLEABLE else None


def abandon_row(row: Record | None, nonce: bytes, now: int) -> Record | None:
    """The row after a claim whose handler never ran was given up, or None where there is nothing to release."""
    if row is None or row.nonce != nonce or row.state not in SETTLEABLE or is_relinquished(row) or not is_sound(row):
        return None
    if may_have_begun_before(row):
        return row._replace(state=relinquished_state(row), lease_until=0, doubt="abandoned")
    kept = retention(now, row.answer_us, row.tombstone_us)
    return row._replace(
        state=State.FAILED_NOT_REPLAYABLE,
        settled_at=now,
        answer_until=kept.answer_until,
        forget_after=kept.forget_after,
        doubt="abandoned",
        request=None,  # it is kept for those who go on: here nothing has begun
    )


def lapse_row(row: Record, now: int) -> Record | None:
    """The row that the reaper writes: UNKNOWN where no attempt may proceed; None where one may, or it lives."""
    if row.state != State.PROCESSING or not is_sound(row) or now < row.lease_until:
        return None
    match classify_lapsed(row, now):
        case Situation.IDEMPOTENT_LAPSED:
            return None
        case Situation.EXTERNAL_LAPSED as found:
            doubt = doubt_of(row, found)
        case Situation.ATOMIC_LAPSED:
            doubt = "committed-early"
        case Situation.IDEMPOTENT_DEDUP_OVER:
            doubt = "dedup-over"
        case _:
            doubt = "attempts-over"
    return row._replace(state=State.UNKNOWN, doubt=doubt)


def resolve_row(
    row: Record | None, resolution: Resolution, now: int, steps: Steps | None = None
) -> tuple[Resolved | TooEarly | MovedOn, Record | None]:
    """The reply to an operator's or reconciler's settlement, and the row to write.

    Parameters: ``steps`` as ``step_findings.steps_after`` says: the list that is written with the row, if any.
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
    kept = retention(now, row.answer_us, row.tombstone_us)
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
        # Of a step the first call may still arrive: under the same derived key it is one with the next one.
        generation=row.generation + (0 if resolution.happened or of_steps else 1),
        settled_at=now,
        answer_until=kept.answer_until,
        forget_after=kept.forget_after,
        doubt=None,
        resource_type=resolution.resource_type or row.resource_type,
        resource_id=resolution.resource_id or row.resource_id,
        error_code=None if resolution.refused else row.error_code,  # of a failed attempt; a refusal has its status
        answer_kind=kind,
        answer_digest=digest,
        status=answer.status if answer is not None else None,
        headers=block if is_kept else None,
        body=answer.body if answer is not None and is_kept else None,
        request=None,
    )


def may_be_settled(row: Record, resolution: Resolution) -> bool:
    """Whether an open record whose lease is over may be settled by hand.

    Between its steps nothing is in doubt, and the next attempt goes on: only a finding that ends the execution counts.
    """
    return row.state == State.PROCESSING or (
        row.state == State.CLAIMED and resolution.ends is not None and row.settled_at is None
    )


def reseal_row(row: Record | None, change: Reseal) -> Record | None:
    """The row with its answer in another form, or None where it is not the answer that was seen."""
    if row is None or not is_sound(row) or row.answer_kind not in STORED_ANSWERS or row.answer_digest != change.seen:
        return None
    block = pack_headers(change.answer.headers)
    return row._replace(
        answer_kind=change.answer_kind,
        answer_digest=answer_digest(change.answer.status, block, change.answer.body),
        headers=block,
        body=change.answer.body,
    )


def continue_row(row: Record, steps: Steps, now: int) -> Record | None:
    """The row of an execution that goes on, once it is known of one step what became of it; None: nothing has begun.

    Another step in doubt keeps it UNKNOWN. Otherwise it has no holder, and the next attempt, with the key or of a
    completer with the stored request, goes on where it was. The fence moves: the former holder is superseded.
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
        attempt=1 if row.attempt >= row.attempts_max else row.attempt,  # those that a completer has are counted anew
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
    """What a settlement is called in the audit trail."""
    action = f"resolve:{'refused' if resolution.refused else 'succeeded' if resolution.happened else 'did-not-happen'}"
    if resolution.ends is not None:
        steps = (f"{name}={'happened' if happened else 'not'}" for name, happened in resolution.ends)
        return " ".join((action, *steps))
    of_step = names_a_step(seen.doubt) and (resolution.result is not None or not resolution.happened)
    return f"{action} {seen.doubt}" if of_step else action
