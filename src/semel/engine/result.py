"""The outcome of ``run`` for its caller: the command's result, or the error for its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.core.decide import UNDECLARED_STEPS
from semel.core.identity import uuid_text
from semel.core.model import (
    OVER_STATES,
    Answer,
    InProgress,
    KeyExpired,
    KeyReused,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    QuotaExceeded,
    Rebuild,
    ReferenceTaken,
    Replay,
    Unreadable,
    Unseal,
    Verdict,
)
from semel.core.model import Refusal as Refusal
from semel.core.outcomes import Outcome, Refused, classify_answer
from semel.core.record import check_answer
from semel.engine.permit import Permit
from semel.errors import (
    CommandError,
    InProgressError,
    KeyExpiredError,
    KeyReusedError,
    NotReplayableError,
    OutcomeUnknownError,
    QuotaExceededError,
    RecordUnreadableError,
    ReferenceTakenError,
    SupersededError,
)
from semel.policy import Policy
from semel.quota import NEW_KEYS, OPEN, UNKNOWN
from semel.sealing.rules import SEALED_REASONS, sealed_text

QUOTA_TEXTS: Final = {
    NEW_KEYS: "this caller has sent as many new keys as its quota allows for now",
    OPEN: "as many commands of this caller are unfinished as its quota allows",
    UNKNOWN: "as many commands of this caller have an unknown outcome as its quota allows; they must be settled first",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of ``run``: the answer, whether it was replayed, and the operation's id."""

    answer: Answer
    replayed: bool
    operation_id: str


def stored_result(verdict: Refusal) -> Result:
    """Return the replay of a command that another attempt ran, or raise the error for its verdict."""
    if isinstance(verdict, Replay):
        return Result(verdict.answer, True, uuid_text(verdict.operation_id))
    raise command_error(verdict)


def own_result(permit: Permit, answer: Answer, instead: Verdict | None) -> Result:
    """Return the result of a command that ran here: the stored outcome, or ``instead`` if the store has another."""
    return Result(answer, False, permit.operation_id) if instead is None else superseded_result(instead)


def superseded_result(instead: Verdict) -> Result:
    """Return the record's current outcome, for a handler whose own outcome was refused."""
    if isinstance(instead, Proceed):
        raise SupersededError(
            "this handler's outcome was refused: another attempt holds the record; retry with the same key"
        )
    assert not isinstance(instead, Unseal | Rebuild), "an engine gives what it withholds from a store's verdict"
    return stored_result(instead)


def answer_from(returned: object) -> Answer:
    """Return a handler's return value as an answer; any other type is the developer's error and settled as one.

    Raises TypeError, naming what to return.
    """
    answer = returned.answer if isinstance(returned, Refused) else returned
    if isinstance(answer, Answer):
        check_answer(answer)
        return answer
    kind = type(returned).__name__
    raise TypeError(f"a handler must return a semel.Answer, such as Answer(200, (), b'...'), not {kind}")


def outcome_from(returned: Answer | Refused, policy: Policy, *, begun: bool) -> Outcome:
    """Return the outcome of a handler that returned: the meaning of its answer, or its explicit refusal.

    Over HTTP the status tells which; a handler without a status returns ``Refused(answer)`` to refuse.
    """
    return returned if isinstance(returned, Refused) else classify_answer(returned, policy, begun=begun)


def command_error(verdict: Refusal) -> CommandError:
    """Return the error to raise for a verdict other than Proceed and Replay."""
    if isinstance(verdict, KeyReused):
        other, state = verdict.operation_id, verdict.state
        is_over, name = state in OVER_STATES, "" if state is None else f" ({state.name})"
        where = "is over" if is_over else "may still be running" if state is None else "is not over"
        then = "use a new key for a new intent" if is_over else "query that operation before you use a new key"
        return KeyReusedError(
            f"this key belongs to another request, which {where}{name}; {then}",
            operation_id=None if other is None else uuid_text(other),
            state=None if state is None else state.name,
        )
    if isinstance(verdict, ReferenceTaken):
        return ReferenceTakenError("another caller's command has this business reference; nothing was done")
    if isinstance(verdict, QuotaExceeded):
        text = f"{QUOTA_TEXTS[verdict.limit]}; nothing was done; keep the key and ask again"
        return QuotaExceededError(text, limit=verdict.limit, retry_after_seconds=verdict.retry_us / 1_000_000)
    id = uuid_text(verdict.operation_id)
    match verdict:
        case InProgress():
            text = "the command is still running; keep the key and ask again"
            return InProgressError(text, operation_id=id, retry_after_seconds=verdict.retry_us / 1_000_000)
        case OutcomeUnknown(_, doubt):
            text = f"the command's outcome cannot be proven ({doubt}); keep the key and query the operation"
            return OutcomeUnknownError(text, operation_id=id)
        case KeyExpired():
            text = "the answer is no longer kept; query by the business reference first"
            return KeyExpiredError(text, operation_id=id)
        case NotReplayable():
            text = "the command was done, but its answer was not kept; query the operation"
            return NotReplayableError(text, operation_id=id)
        case Unreadable():
            return RecordUnreadableError(_unreadable_text(verdict), operation_id=id)
        case _:
            raise AssertionError(f"{type(verdict).__name__} is no refusal")


def _unreadable_text(verdict: Unreadable) -> str:
    if verdict.reason == UNDECLARED_STEPS:
        return (
            "the command began with steps, and this process declares none for it; a process that declares "
            "steps=True continues it"
        )
    if verdict.reason == "recipe":
        return (
            "the stored record was made under another declaration of what counts, which this process does not know "
            "(recipe); it is never run again. Restore that declaration"
        )
    if verdict.reason in SEALED_REASONS:
        return f"{sealed_text(verdict)}; the command is never run again"
    return f"the stored record cannot be read ({verdict.reason}); it is never run again"
