"""Apply a settlement, a renewal or an abandoned claim to a row; pure, over the whole row.

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
    Record,
    Renewal,
    Settled,
    Settlement,
    Settling,
    State,
    Superseded,
)
from semel.core.record import answer_digest, is_sound, pack_headers, state_of
from semel.core.timing import lease_end, retention
from semel.steps.doubts import names_a_step

# A holder whose fence and nonce are still current may settle even after the record reads UNKNOWN.
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
    """Return whether the record still has this holder's grant."""
    return row is not None and row.fence == fence and row.nonce == nonce


def settle_row(row: Record | None, settlement: Settlement, now: int) -> tuple[Settling, Record | None]:
    """Return the reply to a settlement, and the row to write (None: write nothing)."""
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
    """Return whether the holder released its lease after an error: IDEMPOTENT, or with steps and none in doubt."""
    return row.state in OPEN_STATES and row.lease_until == 0


def relinquished_state(row: Record) -> State:
    """Return the state of a record whose lease was released: PROCESSING if IDEMPOTENT, CLAIMED with declared steps."""
    return State.PROCESSING if row.effects == Effects.IDEMPOTENT else State.CLAIMED


def may_have_begun_before(row: Record) -> bool:
    """Return whether an earlier attempt may have had its effect: then no proof about this attempt frees the key.

    The lease is released instead, so that dedup_for and attempts_max keep counting. The fence of a first attempt is
    the time of its start; a clock that was set back only makes this more careful.
    """
    return (row.effects == Effects.IDEMPOTENT or row.state == State.CLAIMED) and row.fence > row.first_started_at


def write_settlement(
    row: Record, settlement: Settlement, header_block: bytes | None, digest: bytes | None, now: int
) -> Record:
    """Return the row after the settlement: retention starts here, but not for UNKNOWN or relinquished records."""
    _, _, _, state, answer, kind, doubt, error_code, business_ref, resource_type, resource_id, _, _ = settlement
    if answer is None:
        status = body = None
    else:
        status, _, body = answer
        if type(body) is not bytes:  # a mutable buffer, which would not be read back as bytes
            body = bytes(body)
        if kind not in STORED_ANSWERS:
            header_block = body = None
    columns: tuple[Any, ...] = row
    request = None
    if state in SETTLEABLE:
        lease_until = 0 if state in OPEN_STATES else row.lease_until
        middle = columns[_LEASE] + (lease_until,) + columns[_UNTIL_SETTLED] + _NO_END
        # Without an outcome the request is still needed: a resolution may let a completer continue.
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
    """Return the row after a renewal, or None if this holder may not renew (any more)."""
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
    """Return the row with the note that no answer will be kept, or None: an answer that is stored stays."""
    if row is None or not holds(row, renewal.fence, renewal.nonce) or is_relinquished(row) or not is_sound(row):
        return None
    return row._replace(answer_kind=AnswerKind.NOT_KEPT) if row.state in SETTLEABLE else None


def abandon_row(row: Record | None, nonce: bytes, now: int) -> Record | None:
    """Return the row after a claim is abandoned whose handler never ran, or None if there is nothing to release."""
    if row is None or row.nonce != nonce or row.state not in SETTLEABLE or is_relinquished(row) or not is_sound(row):
        return None
    if may_have_begun_before(row):
        return row._replace(state=relinquished_state(row), lease_until=0, doubt="abandoned")
    answer_until, forget_after = retention(now, row.answer_us, row.tombstone_us)
    return row._replace(
        state=State.FAILED_NOT_REPLAYABLE,
        settled_at=now,
        answer_until=answer_until,
        forget_after=forget_after,
        doubt="abandoned",
        request=None,  # only a command that continues needs it: here nothing has begun
    )


def lapse_row(row: Record, now: int) -> Record | None:
    """Return the UNKNOWN row for the reaper to write; None if an attempt may proceed, or the holder is alive."""
    if row.state != State.PROCESSING or not is_sound(row) or now < row.lease_until:
        return None
    found = classify_lapsed(row, now)
    if found is Situation.IDEMPOTENT_LAPSED:
        return None
    return row._replace(state=State.UNKNOWN, doubt=doubt_of(row, found))
