"""The outcome of ``run`` for its caller: the command's result, or the error for its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
from semel.core.outcomes import Outcome, Refused, classify_answer
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
from semel.sealing.rules import SEAL, SEALED_REASONS, SEALING_KEY, UNSEALED

SEALED_HINTS: Final = {
    UNSEALED: "under the key {key}; give the engine its sealer",
    SEALING_KEY: "the key {key} is not in this process's ring; add it after the others",
    SEAL: "the data were changed, belong to another record, or {key} names a different key here; see semel doctor",
}
QUOTA_TEXTS: Final = {
    NEW_KEYS: "this caller has sent as many new keys as its quota allows for now",
    OPEN: "as many commands of this caller are unfinished as its quota allows",
    UNKNOWN: "as many commands of this caller have an unknown outcome as its quota allows; they must be settled first",
}
Refusal = (
    Replay
    | InProgress
    | KeyReused
    | OutcomeUnknown
    | KeyExpired
    | NotReplayable
    | ReferenceTaken
    | QuotaExceeded
    | Unreadable
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of ``run``: the answer, whether it was replayed, and the operation's id."""

    answer: Answer
    replayed: bool
    operation_id: str


def stored_result(verdict: Refusal) -> Result:
    """The result of a command that another attempt ran: the replay, or the error its verdict is raised as."""
    if isinstance(verdict, Replay):
        return Result(verdict.answer, True, uuid_text(verdict.operation_id))
    raise command_error(verdict)


def own_result(permit: Permit, answer: Answer, instead: Verdict | None) -> Result:
    """The result of a command that ran here: the stored outcome, or ``instead`` if the store has a different one."""
    return Result(answer, False, permit.operation_id) if instead is None else superseded_result(instead)


def superseded_result(instead: Verdict) -> Result:
    """The result of a handler whose outcome was refused: the record's current outcome."""
    if isinstance(instead, Proceed):
        raise SupersededError(
            "this handler's outcome was refused: another attempt holds the record; retry with the same key"
        )
    assert not isinstance(instead, Unseal | Rebuild), "an engine gives what it withholds from a store's verdict"
    return stored_result(instead)


def answer_from(returned: object) -> Answer:
    """A handler's return value as an answer; any other type is the developer's error and settled as one.

    Raises TypeError, naming what to return.
    """
    if isinstance(returned, Answer):
        return returned
    if isinstance(returned, Refused):
        return returned.answer
    kind = type(returned).__name__
    raise TypeError(f"a handler must return a semel.Answer, such as Answer(200, (), b'...'), not {kind}")


def outcome_from(returned: Answer | Refused, policy: Policy, *, begun: bool) -> Outcome:
    """The outcome of a handler that returned: the meaning of its answer, or its explicit refusal.

    A status says it over HTTP; a handler without one returns ``Refused(answer)``.
    """
    return returned if isinstance(returned, Refused) else classify_answer(returned, policy, begun=begun)


def command_error(verdict: Refusal) -> CommandError:
    """The error that a verdict other than Proceed and Replay is raised as."""
    match verdict:
        case KeyReused(other, state):
            name = None if state is None else state.name
            where = (
                "is over" if state in OVER_STATES else "is not over" if state is not None else "may still be running"
            )
            then = "use a new key for a new intent"
            if state not in OVER_STATES:
                then = "query that operation before you use a new key"
            return KeyReusedError(
                f"this key belongs to another request, which {where}{f' ({name})' if name else ''}; {then}",
                operation_id=None if other is None else uuid_text(other),
                state=name,
            )
        case InProgress(operation_id):
            return InProgressError(
                "the command is still running; keep the key and ask again",
                operation_id=uuid_text(operation_id),
                retry_after_seconds=verdict.retry_us / 1_000_000,
            )
        case OutcomeUnknown(operation_id, doubt):
            return OutcomeUnknownError(
                f"the command's outcome cannot be proven ({doubt}); keep the key and query the operation",
                operation_id=uuid_text(operation_id),
            )
        case KeyExpired(operation_id):
            return KeyExpiredError(
                "the answer is no longer kept; query by the business reference first",
                operation_id=uuid_text(operation_id),
            )
        case NotReplayable(operation_id):
            return NotReplayableError(
                "the command was done, but its answer was not kept; query the operation",
                operation_id=uuid_text(operation_id),
            )
        case Unreadable(operation_id, "steps"):
            return RecordUnreadableError(
                "the command began with steps, and this process declares none for it; a process that declares "
                "steps=True continues it",
                operation_id=uuid_text(operation_id),
            )
        case ReferenceTaken():
            return ReferenceTakenError("another caller's command has this business reference; nothing was done")
        case QuotaExceeded(limit, retry_us):
            return QuotaExceededError(
                f"{QUOTA_TEXTS[limit]}; nothing was done; keep the key and ask again",
                limit=limit,
                retry_after_seconds=retry_us / 1_000_000,
            )
        case Unreadable(operation_id, reason, _, key) if reason in SEALED_REASONS:
            return RecordUnreadableError(
                "the stored answer is sealed, and cannot be decrypted here "
                f"({SEALED_HINTS[reason].format(key=repr(key))}); the command is never run again",
                operation_id=uuid_text(operation_id),
            )
        case Unreadable(operation_id, "recipe"):
            return RecordUnreadableError(
                "the stored record was made under another declaration of what counts, which this process does not know "
                "(recipe); it is never run again. Restore that declaration",
                operation_id=uuid_text(operation_id),
            )
        case Unreadable(operation_id, reason):
            return RecordUnreadableError(
                f"the stored record cannot be read ({reason}); it is never run again",
                operation_id=uuid_text(operation_id),
            )
        case _:
            raise AssertionError(f"{type(verdict).__name__} is no refusal")
