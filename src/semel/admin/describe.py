"""Describe a record for operators: names and times as text, the effect of a retry, and the next action."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from semel.admin.damaged import DAMAGED_STATE, is_damaged, repair
from semel.admin.words import Json
from semel.core.decide import DOUBTS
from semel.core.identity import uuid_text
from semel.core.model import ANSWERED_STATES, AfterExpiry, AnswerKind, Audit, Effects, Record, State
from semel.sealing.rules import key_name
from semel.steps.doubts import step_of


def state_name(record: Record, now: int) -> str:
    """Return the state's name; EXPIRED, which no store ever writes, where the answer's retention is over."""
    expired = record.state in ANSWERED_STATES and record.answer_until is not None and record.answer_until <= now
    return "EXPIRED" if expired else _name(State, record.state)


RETRYABLE: Final = "RETRYABLE"
"""What people see of FAILED_NOT_REPLAYABLE, whose stored name says the opposite of what it means: a retry runs it."""


def state_label(name: str) -> str:
    """Return a state's name for people; JSON has the stored name.

    >>> state_label("FAILED_NOT_REPLAYABLE"), state_label("UNKNOWN")
    ('RETRYABLE', 'UNKNOWN')
    """
    return RETRYABLE if name == State.FAILED_NOT_REPLAYABLE.name else name


def _name(kind: type[IntEnum], value: int) -> str:
    """Return the name of a stored number, also of a damaged record's, which must still be shown."""
    try:
        return kind(value).name
    except ValueError:
        return "DAMAGED" if value == DAMAGED_STATE else f"DAMAGED ({value})"


def has_lapsed(record: Record, now: int) -> bool:
    """Return whether an open record's lease has expired."""
    return record.state in (State.CLAIMED, State.PROCESSING) and record.lease_until <= now


def is_unknown_by_lapse(record: Record) -> bool:
    """Return whether a record is UNKNOWN because its holder stopped renewing its lease."""
    # A step's doubt with a cause is no lapse: its holder recorded it.
    by_step = step_of(record.doubt) is not None and record.error_code is None
    return record.state == State.UNKNOWN and (by_step or record.doubt in DOUBTS.values())


def time_text(microseconds: int | None) -> str | None:
    """Format a store's time in RFC 3339, or None for None. Times beyond the calendar's range stay numbers."""
    if not microseconds:
        return None
    try:
        moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(microseconds)
    return f"{moment.isoformat()[:19]}.{microseconds % 1_000_000:06d}Z"


def row_document(record: Record, now: int) -> dict[str, Json]:
    """Return one record of a list as JSON."""
    record = repair(record)
    return {
        "operationId": uuid_text(record.operation_id),
        "state": state_name(record, now),
        "operation": record.operation,
        "tenant": record.tenant,
        "caller": record.caller,
        "effects": _name(Effects, record.effects),
        "keyHash": record.key_hash.hex(),
        "attempt": record.attempt,
        "createdAt": time_text(record.created_at),
        "ageSeconds": round((now - record.created_at) / 1_000_000, 3),
        "lapsed": has_lapsed(record, now) or is_unknown_by_lapse(record),
        "doubt": record.doubt,
    }


def record_document(record: Record, now: int, audit: list[Audit]) -> dict[str, Json]:
    """Return everything that an operator may see of one record: never a key, a request or an answer's body."""
    record = repair(record)
    return {
        **row_document(record, now),
        "recordId": record.id.hex(),
        "generation": record.generation,
        "lapses": record.lapses,
        "fence": record.fence,
        "holder": record.holder,
        "recipe": record.recipe,
        "fingerprint": record.fingerprint.hex(),
        "firstStartedAt": time_text(record.first_started_at),
        "leaseUntil": time_text(record.lease_until),
        "deadlineAt": time_text(record.deadline_at),
        "settledAt": time_text(record.settled_at),
        "answerUntil": time_text(record.answer_until),
        "forgetAfter": time_text(record.forget_after),
        "answer": _name(AnswerKind, record.answer_kind),
        "status": record.status,
        "bodyBytes": None if record.body is None else len(record.body),
        "errorCode": record.error_code,
        "businessReference": record.business_ref,
        "resourceType": record.resource_type,
        "resourceId": record.resource_id,
        "nextAttempt": next_attempt(record, now),
        "audit": [audit_document(line) for line in audit],
    }


def key_text(record: Record) -> str:
    """Describe the key that a record's answer is sealed under."""
    name = None if record.body is None else key_name(record.body)
    return "a key" if name is None else f"the key {name!r}"


def audit_document(line: Audit) -> dict[str, Json]:
    """Return one line of the audit trail as JSON."""
    return {"at": time_text(line.at), "actor": line.actor, "action": line.action, "reason": line.reason}


def next_attempt(record: Record, now: int) -> str:
    """Describe the effect of a retry with the same key and request, and the operator's options."""
    if state_name(record, now) == "EXPIRED":
        if record.after_expiry == AfterExpiry.NEW:
            return "the answer is no longer kept; a retry runs as a new command"
        return "the answer is no longer kept; a retry is refused, and nothing runs"
    if is_damaged(record):
        return "the record is damaged: a retry is refused and nothing runs"
    match State(record.state):
        case State.CLAIMED | State.PROCESSING if not has_lapsed(record, now):
            return "it is running: a retry waits, then gets a refusal that asks it to try again"
        case State.CLAIMED:
            return (
                "nothing is in doubt: a retry continues where it stopped; if its client lost the key, see: semel "
                "explain"
            )
        case State.PROCESSING if record.effects == Effects.IDEMPOTENT:
            return "its holder has stopped: a retry runs it again with the same derived keys"
        case State.PROCESSING:
            return "its holder has stopped: a retry is refused as UNKNOWN; find out what happened, then: semel settle"
        case State.SUCCEEDED if record.answer_kind == AnswerKind.REBUILT:
            return "it was done; a retry gets a rebuilt answer, and nothing runs"
        case State.SUCCEEDED | State.FAILED_REPLAYABLE if record.answer_kind == AnswerKind.SEALED:
            return "a retry gets the stored answer, from a process that has the sealing key"
        case State.SUCCEEDED if record.answer_kind == AnswerKind.NOT_KEPT:
            return "it was done, its answer was not kept; a retry is refused, and nothing runs"
        case State.SUCCEEDED | State.FAILED_REPLAYABLE:
            return "a retry gets the stored answer"
        case State.FAILED_NOT_REPLAYABLE:
            return "nothing had happened: a retry runs it"
        case State.UNKNOWN:
            return "a retry is refused as UNKNOWN; find out what happened, then: semel settle"
