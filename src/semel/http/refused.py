"""Refusals for clients that get no problem document: gRPC and GraphQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.core.model import OVER_STATES
from semel.errors import (
    HandlerRefused,
    IdentityMismatch,
    InProgressError,
    InvalidKey,
    KeyExpiredError,
    KeyReusedError,
    KeyTooOld,
    MissingKey,
    NotReplayableError,
    OutcomeUnknownError,
    QuotaExceededError,
    RecordUnreadableError,
    ReferenceTakenError,
    RequestError,
    RequestTooLarge,
    SchemaError,
    SemelError,
    StoreError,
    SupersededError,
)
from semel.http import problems
from semel.http.outage import NO_STORE, Outage
from semel.http.problems import KeyAction, Kind

RETRY_SECONDS: Final = 1.0
_OUTAGE: Final = Outage()


class CallerNotKnown(RequestError):
    """A call has a key, and its caller is not known. Nothing was done."""

    def __init__(self) -> None:
        super().__init__("A key means something only for its caller. Authenticate and send the call again.")


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A refused call: the ``kind`` of problem, a ``detail`` for people, and the client's next action."""

    kind: Kind
    detail: str
    key_action: KeyAction
    operation_id: str | None = None
    retry_seconds: float | None = None
    state: str | None = None

    @classmethod
    def of(cls, error: SemelError, *, maybe_done: bool = False) -> RefusedCall | None:
        """Return the refusal for an error; None if the error is the developer's, not the call's.

        HandlerRefused is the developer's: a retry would write the same, and be refused as well.

        Parameters: ``maybe_done`` if an ATOMIC handler has run, so that it may have been committed.

        >>> RefusedCall.of(KeyReusedError("The key belongs to another request.", state="SUCCEEDED")).key_action
        'new'
        """
        if isinstance(error, HandlerRefused):
            return None
        for each in type(error).__mro__:
            if each in _KINDS:
                kind = _KINDS[each]
                break
        else:
            return None
        detail = str(error)
        if isinstance(error, NO_STORE):  # the error's own text may name hosts and files: it is for the log
            detail = _MAYBE_DONE if maybe_done else _NOT_DONE
            _OUTAGE.tell(error)
        retry = getattr(error, "retry_after_seconds", None)
        if retry is None and kind.retryable:
            retry = RETRY_SECONDS
        state = getattr(error, "state", None)
        action = kind.key_action
        if isinstance(error, KeyReusedError) and state in {each.name for each in OVER_STATES}:
            action = "new"
        elif isinstance(error, KeyTooOld):
            action = "query"
        return cls(kind, detail, action, getattr(error, "operation_id", None), retry, state)


_NOT_DONE: Final = "Nothing was done. Retry with the same key."
_MAYBE_DONE: Final = (
    "The commit was not confirmed: all of it was done, or nothing. Retry with the same key: that gets the first "
    "answer, or runs the command."
)
# The HTTP problem for each error. The nearest class applies.
_KINDS: Final[dict[type, Kind]] = {
    MissingKey: problems.MISSING_KEY,
    InvalidKey: problems.INVALID_KEY,
    RequestTooLarge: problems.TOO_LARGE,
    CallerNotKnown: problems.CALLER_UNKNOWN,
    KeyReusedError: problems.KEY_REUSED,
    InProgressError: problems.IN_PROGRESS,
    OutcomeUnknownError: problems.OUTCOME_UNKNOWN,
    SupersededError: problems.OUTCOME_UNKNOWN,
    KeyExpiredError: problems.RECORD_EXPIRED,
    NotReplayableError: problems.NOT_REPLAYABLE,
    ReferenceTakenError: problems.REFERENCE_TAKEN,
    QuotaExceededError: problems.QUOTA_EXCEEDED,
    RecordUnreadableError: problems.RECORD_UNREADABLE,
    StoreError: problems.STORE_UNAVAILABLE,
    SchemaError: problems.STORE_UNAVAILABLE,
    IdentityMismatch: problems.STORE_UNAVAILABLE,
}
