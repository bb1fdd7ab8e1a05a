"""The reply to one attempt, over HTTP or from a call, in shared terms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

from semel.errors import (
    InProgressError,
    InvalidKey,
    KeyExpiredError,
    KeyReusedError,
    MissingKey,
    NotReplayableError,
    OutcomeUnknownError,
    QuotaExceededError,
    RecordUnreadableError,
    ReferenceTakenError,
    RequestError,
    SchemaError,
    StoreError,
)

BODY_SHOWN_MAX: Final = 120
_OPEN: Final = ("CLAIMED", "PROCESSING")
_CODE_HEADER: Final = "semel-code"


class Came(Enum):
    """The result of an attempt."""

    DONE = "it was done"
    MISSING_KEY = "refused: the key is missing"
    INVALID_KEY = "refused: the key is malformed"
    KEY_REUSED = "refused: the key belongs to another request"
    IN_PROGRESS = "told that it is still running"
    UNKNOWN = "told that the outcome is unknown"
    EXPIRED = "told that the answer has expired"
    NOT_REPLAYABLE = "told that it was done and the answer was not kept"
    UNAVAILABLE = "refused: the store is unavailable"
    REFUSED = "refused"
    FAILED = "it failed"
    LOST = "nothing: the answer was lost"


_BY_CODE: Final = {
    "MISSING_IDEMPOTENCY_KEY": Came.MISSING_KEY,
    "INVALID_IDEMPOTENCY_KEY": Came.INVALID_KEY,
    "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST": Came.KEY_REUSED,
    "IDEMPOTENCY_REQUEST_IN_PROGRESS": Came.IN_PROGRESS,
    "IDEMPOTENCY_OUTCOME_UNKNOWN": Came.UNKNOWN,
    "IDEMPOTENCY_RECORD_EXPIRED": Came.EXPIRED,
    "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE": Came.NOT_REPLAYABLE,
    "IDEMPOTENCY_REFERENCE_TAKEN": Came.REFUSED,
    "IDEMPOTENCY_KEY_QUOTA_EXCEEDED": Came.REFUSED,
    "IDEMPOTENCY_STORE_UNAVAILABLE": Came.UNAVAILABLE,
}
# What an application without Semel's codes most likely means.
_BY_STATUS: Final = {409: Came.IN_PROGRESS, 422: Came.KEY_REUSED, 503: Came.UNAVAILABLE}
_BY_ERROR: Final[tuple[tuple[type[BaseException], Came], ...]] = (
    (MissingKey, Came.MISSING_KEY),
    (InvalidKey, Came.INVALID_KEY),
    (RequestError, Came.REFUSED),
    (KeyReusedError, Came.KEY_REUSED),
    (InProgressError, Came.IN_PROGRESS),
    (OutcomeUnknownError, Came.UNKNOWN),
    (KeyExpiredError, Came.EXPIRED),
    (NotReplayableError, Came.NOT_REPLAYABLE),
    (ReferenceTakenError, Came.REFUSED),
    (QuotaExceededError, Came.REFUSED),
    (RecordUnreadableError, Came.FAILED),
    (SchemaError, Came.UNAVAILABLE),
    (StoreError, Came.UNAVAILABLE),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one attempt.

    Parameters: ``status`` and ``headers`` of an HTTP answer (None and empty for calls); ``body`` its bytes, or the
    representation of a call's result; ``error`` the exception instead; ``replay`` whether the answer is marked as a
    replay (None: it cannot be marked); ``lost`` if nothing reached the caller.
    """

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    error: BaseException | None = None
    replay: bool | None = None
    lost: bool = False

    def values(self, name: str) -> tuple[str, ...]:
        """Return all values of a header."""
        return tuple(value for given, value in self.headers if given.lower() == name.lower())

    @property
    def code(self) -> str:
        """Semel's code of a refusal; empty where there is none."""
        return next(iter(self.values(_CODE_HEADER)), "")

    @property
    def came(self) -> Came:
        """The result of the attempt."""
        if self.lost:
            return Came.LOST
        if self.error is not None:
            return next((came for kind, came in _BY_ERROR if isinstance(self.error, kind)), Came.FAILED)
        if self.status is None or self.status < 400:
            return Came.IN_PROGRESS if self._is_accepted() else Came.DONE
        if self.code:
            return _BY_CODE.get(self.code, Came.REFUSED if self.status < 500 else Came.FAILED)
        return _BY_STATUS.get(self.status, Came.REFUSED if self.status < 500 else Came.FAILED)

    def _is_accepted(self) -> bool:
        """Return whether it is Semel's 202: the command finishes without its client."""
        if self.status != 202 or self.replay:
            return False
        try:
            document = json.loads(self.body)
        except ValueError:
            return False
        return isinstance(document, dict) and "operationId" in document and document.get("state") in _OPEN

    @property
    def done(self) -> bool:
        """Whether it was done, now or before."""
        return self.came is Came.DONE

    def same_answer(self, other: Reply) -> bool:
        """Return whether both have the same status and the same bytes."""
        return (self.status, self.body) == (other.status, other.body)

    def text(self) -> str:
        """Return the reply as reports show it."""
        if self.lost:
            return "nothing"
        if self.error is not None:
            return f"{type(self.error).__name__}: {str(self.error).splitlines()[0] if str(self.error) else ''}".strip()
        mark = ", marked as a replay" if self.replay else ""
        head = "" if self.status is None else f"{self.status} "
        return f"{head}{self.code or shorten_body(self.body)}{mark}"


def shorten_body(body: bytes) -> str:
    """Return the beginning of a body, on one line.

    >>> shorten_body(b'{"id": 1}'), shorten_body(b""), shorten_body(b"\\xff")
    ('{"id": 1}', '(no body)', '(1 bytes that are no text)')
    """
    if not body:
        return "(no body)"
    try:
        text = " ".join(body.decode().split())
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are no text)"
    return text if len(text) <= BODY_SHOWN_MAX else f"{text[:BODY_SHOWN_MAX]}…"
