"""Problem documents (RFC 9457): every refusal as an answer that people and programs can act on.

The ``Semel-Code`` header repeats the code, for clients that drop bodies; ``Retry-After`` is there only if a retry
helps. No document contains a stored value or a key, and this file decides no verdict.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from semel.core.identity import uuid_text
from semel.core.model import (
    OVER_STATES,
    Answer,
    InProgress,
    KeyExpired,
    KeyReused,
    NotReplayable,
    OutcomeUnknown,
    QuotaExceeded,
    ReferenceTaken,
    State,
    Unreadable,
)
from semel.errors import (
    ConfigurationError,
    InvalidBody,
    InvalidKey,
    KeyTooOld,
    MissingKey,
    RequestError,
    RequestTooLarge,
    SemelError,
)
from semel.http.headers import OPERATION_RELATION
from semel.quota import NEW_KEYS, OPEN, UNKNOWN

KeyAction = Literal["keep", "new", "query"]
Refusal = (
    InProgress | KeyReused | OutcomeUnknown | KeyExpired | NotReplayable | ReferenceTaken | QuotaExceeded | Unreadable
)


class Kind(NamedTuple):
    """One kind of problem: the parts that are the same in every occurrence."""

    code: str
    status: int
    title: str
    key_action: KeyAction
    retryable: bool = False


MISSING_KEY: Final = Kind("MISSING_IDEMPOTENCY_KEY", 400, "An Idempotency-Key is required", "new")
INVALID_KEY: Final = Kind("INVALID_IDEMPOTENCY_KEY", 400, "The Idempotency-Key is malformed", "new")
KEY_REUSED: Final = Kind(
    "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", 422, "The key belongs to another request", "query"
)
IN_PROGRESS: Final = Kind(
    "IDEMPOTENCY_REQUEST_IN_PROGRESS", 409, "The command is still running", "keep", retryable=True
)
OUTCOME_UNKNOWN: Final = Kind("IDEMPOTENCY_OUTCOME_UNKNOWN", 409, "The outcome is not known", "keep")
RECORD_EXPIRED: Final = Kind("IDEMPOTENCY_RECORD_EXPIRED", 409, "The answer is no longer kept", "query")
NOT_REPLAYABLE: Final = Kind(
    "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE", 409, "It was done; its answer was not kept", "query"
)
REFERENCE_TAKEN: Final = Kind("IDEMPOTENCY_REFERENCE_TAKEN", 409, "The business reference is taken", "keep")
QUOTA_EXCEEDED: Final = Kind("IDEMPOTENCY_KEY_QUOTA_EXCEEDED", 429, "Too many new keys", "keep", retryable=True)
TOO_LARGE: Final = Kind("IDEMPOTENCY_REQUEST_TOO_LARGE", 413, "The request is too large", "keep")
RECORD_UNREADABLE: Final = Kind("IDEMPOTENCY_RECORD_UNREADABLE", 500, "The record cannot be read", "keep")
STORE_UNAVAILABLE: Final = Kind(
    "IDEMPOTENCY_STORE_UNAVAILABLE", 503, "The command store is unavailable", "keep", retryable=True
)
# Not in the design's table, which implies these situations.
INVALID_BODY: Final = Kind("IDEMPOTENCY_REQUEST_INVALID", 400, "The request contradicts itself", "keep")
TOO_EARLY: Final = Kind("IDEMPOTENCY_TOO_EARLY", 425, "Commands are not accepted as early data", "keep", retryable=True)
BODY_TOO_SLOW: Final = Kind("IDEMPOTENCY_BODY_TOO_SLOW", 408, "The body took too long", "keep", retryable=True)
CALLER_UNKNOWN: Final = Kind("IDEMPOTENCY_CALLER_UNKNOWN", 401, "The caller is not known", "keep")
ANSWER_TOO_LARGE: Final = Kind("IDEMPOTENCY_ANSWER_TOO_LARGE", 500, "The answer is too large to be kept", "keep")

# Refusals of a middleware alone: it runs before the application has routed, authorised or read the request.
MISSPELLED: Final = Kind(
    "IDEMPOTENCY_OPERATION_MISSPELLED", 400, "The method or the path is not spelled as declared", "keep"
)
UNCOVERED: Final = Kind("IDEMPOTENCY_OPERATION_NOT_DECLARED", 400, "No operation is declared for this request", "keep")
NOT_ALLOWED: Final = Kind("IDEMPOTENCY_CALLER_NOT_ALLOWED", 403, "The caller may not do this", "keep")
MIDDLEWARE_KINDS: Final = (MISSPELLED, UNCOVERED, NOT_ALLOWED)

# Only a reverse proxy sends these, in place of the service behind it.
UPSTREAM_AWAY: Final = Kind(
    "IDEMPOTENCY_UPSTREAM_UNREACHABLE", 502, "The service cannot be reached", "keep", retryable=True
)
UPSTREAM_BROKEN: Final = Kind("IDEMPOTENCY_UPSTREAM_BROKE_OFF", 502, "The service's answer broke off", "keep")
UPSTREAM_SLOW: Final = Kind("IDEMPOTENCY_UPSTREAM_TIMEOUT", 504, "The service did not answer in time", "keep")
NOT_PASSED: Final = Kind("IDEMPOTENCY_NOT_PASSED_ON", 501, "The proxy does not pass this on", "keep")
PROXY_KINDS: Final = (UPSTREAM_AWAY, UPSTREAM_BROKEN, UPSTREAM_SLOW, NOT_PASSED)

KINDS: Final = (
    MISSING_KEY,
    INVALID_KEY,
    KEY_REUSED,
    IN_PROGRESS,
    OUTCOME_UNKNOWN,
    RECORD_EXPIRED,
    NOT_REPLAYABLE,
    REFERENCE_TAKEN,
    QUOTA_EXCEEDED,
    TOO_LARGE,
    RECORD_UNREADABLE,
    STORE_UNAVAILABLE,
    INVALID_BODY,
    TOO_EARLY,
    CALLER_UNKNOWN,
    BODY_TOO_SLOW,
    ANSWER_TOO_LARGE,
)

_KEEP: Final = "Nothing was done. Keep the key and ask again after Retry-After; keys that are on record are answered."
_QUOTAS: Final = {
    NEW_KEYS: f"You have started as many commands as your quota allows for now. {_KEEP}",
    OPEN: f"Too many of your commands are unfinished. {_KEEP}",
    UNKNOWN: f"Too many of your commands have an unknown outcome: query them first. {_KEEP}",
}
_STANDING: Final[Mapping[State | None, str]] = {
    None: "may still be running",
    State.CLAIMED: "is not over",
    State.PROCESSING: "is not over",
    State.SUCCEEDED: "has succeeded",
    State.FAILED_REPLAYABLE: "was refused",
    State.FAILED_NOT_REPLAYABLE: "had no effect",
    State.UNKNOWN: "its outcome cannot be proven",
}
_QUERY_FIRST: Final = "Query that operation before you use a new key: both could take effect."
STORE_RETRY_SECONDS: Final = 5  # retries of clients that were refused together are spread over this many seconds
PAGE_RELATION: Final = "describedby"  # draft-ietf-httpapi-idempotency-key-header-07, 2.7: a link to documentation
PAGE_NAME: Final = "problems"  # in place of an operation's id: the page about all codes
_PLACE: Final = "/operations"  # the status of operations, unless the settings name another path
_ID: Final = "{id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """Writes the problem documents of one surface.

    Parameters: ``type_base`` is the ``type`` member without the code, which follows in lower case with hyphens;
    ``operations_path`` of the operations' status, with ``{id}`` (None: not served, so no links);
    ``page`` the path or URL of a page that explains the codes, with an anchor for each, which every problem links to
    with ``rel="describedby"`` (None: the ``type`` itself if it is a URL, otherwise Semel's own page, served beside
    the operations as ``/operations/problems``; "": no page and no link);
    ``resource_paths`` of the resources that handlers name with ``permit.result(type, id)``, by type, each with
    ``{id}``; ``challenge`` the WWW-Authenticate value for unknown callers.

    >>> Problems(type_base="https://api.example/problems/").of_verdict(KeyReused()).status
    422
    """

    type_base: str = "urn:semel:problem:"
    operations_path: str | None = "/operations/{id}"
    resource_paths: Mapping[str, str] = field(default_factory=dict)
    challenge: str = "Bearer"
    page: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("type_base", self.type_base), ("challenge", self.challenge), ("page", self.page or "")):
            _check_field(name, text)
            if name != "challenge" and set(text) & set("<> "):
                raise ConfigurationError(f"{name} must be a path or a URL, without spaces, < and >; it is {text!r}")
        paths = {f"resource_paths[{kind!r}]": path for kind, path in self.resource_paths.items()}
        if self.operations_path is not None:
            paths["operations_path"] = self.operations_path
        for name, path in paths.items():
            _check_field(name, path)
            if path.count(_ID) != 1 or "<" in path or ">" in path:
                raise ConfigurationError(f"{name} must contain {_ID} once, as in /operations/{_ID}; it is {path!r}")

    def of_verdict(self, verdict: Refusal) -> Answer:
        """Return the answer to an attempt that may not proceed and has nothing to replay."""
        match verdict:
            case KeyReused(operation_id, state):
                return self.key_reused(operation_id, state)
            case InProgress(operation_id):
                after = max(1, -(-verdict.retry_us // 1_000_000))
                text = "Keep the key and ask again, or query the operation."
                return self.answer(IN_PROGRESS, text, operation_id=operation_id, retry_after=after)
            case OutcomeUnknown(operation_id):
                return self.unknown(operation_id)
            case KeyExpired(operation_id):
                text = "This key was used, and its answer is no longer stored. Query by your business reference first."
                return self.answer(RECORD_EXPIRED, text, operation_id=operation_id)
            case NotReplayable(operation_id, kind, id):
                text = "The command was done. Query the operation or its resource; do not send it again."
                return self.answer(NOT_REPLAYABLE, text, operation_id=operation_id, resource=self._resource(kind, id))
            case Unreadable(operation_id, "steps"):
                text = (
                    "It began with steps, which this version of the server does not declare. Nothing was done for this "
                    "attempt. Keep the key, and tell the operator: a version that declares them continues it."
                )
                return self.answer(RECORD_UNREADABLE, text, operation_id=operation_id)
            case ReferenceTaken():
                text = "Another caller's command has this business reference. Nothing was done for this one."
                return self.answer(REFERENCE_TAKEN, text)
            case QuotaExceeded(limit, retry_us):
                return self.answer(QUOTA_EXCEEDED, _QUOTAS[limit], retry_after=max(1, -(-retry_us // 1_000_000)))
            case Unreadable(operation_id):
                text = "The stored record cannot be read by this server. The command is not run again; keep the key."
                return self.answer(RECORD_UNREADABLE, text, operation_id=operation_id)

    def of_error(self, error: SemelError, *, maybe_done: bool = False) -> Answer:
        """Return the answer to a request that is not a command, or to a command that the store could not take.

        Parameters: ``maybe_done`` if an ATOMIC command may nevertheless have been committed, with its answer.
        """
        match error:
            case MissingKey():
                return self.answer(MISSING_KEY, str(error))
            case KeyTooOld():
                return self.answer(INVALID_KEY, str(error), key_action="query")
            case InvalidKey():
                return self.answer(INVALID_KEY, str(error))
            case RequestTooLarge():
                return self.answer(TOO_LARGE, str(error))
            case InvalidBody() | RequestError():
                return self.answer(INVALID_BODY, str(error))
            case _:
                # The error's own text may name hosts and files; it is for the log.
                text = "Nothing was done. Retry with the same key."
                if maybe_done:
                    text = (
                        "The commit was not confirmed: all of it was done, or nothing. Retry with the same key: that "
                        "gets the first answer, or runs the command."
                    )
                after = 1 + secrets.randbelow(STORE_RETRY_SECONDS)
                return self.answer(STORE_UNAVAILABLE, text, retry_after=after, maybe_done=maybe_done)

    def key_reused(self, operation_id: bytes | None, state: State | None, what: str = "request") -> Answer:
        """Return the answer if another ``what`` of the same caller holds the key, with that one's state."""
        is_over = state in OVER_STATES
        first = f"Another {what} of yours has this key, and {_STANDING[state]}. Nothing was done for this one."
        then = f"Use a new key if you want this {what} as well." if is_over else _QUERY_FIRST
        action: KeyAction = "new" if is_over else KEY_REUSED.key_action
        return self.answer(KEY_REUSED, f"{first} {then}", operation_id=operation_id, state=state, key_action=action)

    def unknown(self, operation_id: bytes) -> Answer:
        """Return the answer to a command whose outcome is unknown."""
        text = "The outcome of this command cannot be proven. Keep the key, query the operation, do not retry blindly."
        return self.answer(OUTCOME_UNKNOWN, text, operation_id=operation_id)

    def between_steps(self, operation_id: bytes) -> Answer:
        """Return the answer after the store failed between two steps, none of which is in doubt."""
        text = (
            "The command store failed before the command had ended. Retry with the same key: finished steps are not "
            "repeated, and the command continues after them."
        )
        after = 1 + secrets.randbelow(STORE_RETRY_SECONDS)
        return self.answer(STORE_UNAVAILABLE, text, operation_id=operation_id, retry_after=after, maybe_done=True)

    def rolled_back(self) -> Answer:
        """Return the answer after a transient failure stopped an ATOMIC command, which was rolled back."""
        text = (
            "The command did not end in time, another transaction was in its way, or its connection to the database "
            "ended. It was rolled back: nothing was done. Retry with the same key."
        )
        return self.answer(STORE_UNAVAILABLE, text, retry_after=1 + secrets.randbelow(STORE_RETRY_SECONDS))

    def too_early(self) -> Answer:
        """Return the answer to a command in TLS early data, which an attacker can replay (RFC 8470)."""
        return self.answer(TOO_EARLY, "Send the command again once the handshake is complete.")

    def caller_unknown(self) -> Answer:
        """Return the answer to a command without a caller: a key means something only for its caller."""
        text = "A key means something only for its caller. Authenticate and send the command again."
        extra = ((b"www-authenticate", self.challenge.encode()),)
        return self.answer(CALLER_UNKNOWN, text, extra=extra)

    def not_allowed(self) -> Answer:
        """Return the answer to a known caller who may not do this (any more)."""
        return self.answer(NOT_ALLOWED, "Nothing was done, and nothing about earlier requests is shown.")

    def body_too_slow(self, seconds: float, *, closes: bool = False) -> Answer:
        """Return the answer to a request whose body has not arrived in time.

        Parameters: ``closes`` asks the server to close the connection; only HTTP/1 over ASGI has a header for that.
        """
        text = (
            f"The body has not arrived within {seconds:g} seconds. Nothing was done: send it again with the same key."
        )
        return self.answer(BODY_TOO_SLOW, text, extra=((b"connection", b"close"),) if closes else ())

    def answer_too_large(self) -> Answer:
        """Return the answer after an ATOMIC handler's answer could not be kept and everything was rolled back."""
        text = "The answer is larger than the server keeps, so everything was rolled back: nothing happened."
        return self.answer(ANSWER_TOO_LARGE, text)

    def check_place(self, given: str | None) -> str | None:
        """Return the path at which an application serves the operations' status, which its answers link to; "" at its
        root. None: nowhere.

        Parameters: ``given`` its path, below the application's mount point; "/operations" means the path of the links,
        or nowhere if there are none.

        Raises ConfigurationError: the links lead elsewhere.

        >>> Problems(operations_path="/status/{id}").check_place("/operations")
        '/status'
        >>> Problems(operations_path="/eu/status/{id}").check_place("/status")  # of an application mounted at /eu
        '/status'
        """
        linked = self.operations_path
        if linked is None and given == _PLACE:
            return None
        if given is None or linked is None or not linked.startswith("/") or not linked.endswith(f"/{_ID}"):
            return given
        place, asked = linked.removesuffix(f"/{_ID}"), given.rstrip("/")
        if place.endswith(asked) and (asked or not place):
            return asked
        if asked == _PLACE:
            return place
        raise ConfigurationError(
            f"operations_path={given!r} serves the status of operations, and every answer links to {linked!r}; write "
            f"Semel(..., problems=Problems(operations_path={asked + '/' + _ID!r}))"
        )

    def operation_link(self, operation_id: bytes) -> tuple[bytes, bytes] | None:
        """Return the ``Link`` header to the operation, or None if operations are not served."""
        if self.operations_path is None:
            return None
        return b"link", _link(self.operations_path.replace(_ID, uuid_text(operation_id)), OPERATION_RELATION)

    def page_link(self, kind: Kind) -> tuple[bytes, bytes] | None:
        """Return the ``Link`` header to the page about a kind of problem, or None if there is no page."""
        anchor, page = anchor_of(kind.code), self.page
        if page is None and self.type_base.startswith(("https://", "http://")):
            return b"link", _link(self.type_base + anchor, PAGE_RELATION)
        path = self.operations_path or ""
        if page is None and path.startswith("/") and path.endswith(f"/{_ID}"):  # Semel serves them itself there
            page = path.replace(_ID, PAGE_NAME)
        return (b"link", _link(f"{page}#{anchor}", PAGE_RELATION)) if page else None

    def answer(
        self,
        kind: Kind,
        detail: str,
        *,
        operation_id: bytes | None = None,
        retry_after: int | None = None,
        resource: str | None = None,
        state: State | None = None,
        key_action: KeyAction | None = None,
        maybe_done: bool = False,
        extra: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Answer:
        """Return the answer for one occurrence of a problem; ``key_action`` if it differs from the kind's."""
        document: dict[str, str | int | bool] = {
            "type": self.type_base + anchor_of(kind.code),
            "title": kind.title,
            "status": kind.status,
            "detail": detail,
            "code": kind.code,
            "retryable": kind.retryable,
            "keyAction": key_action or kind.key_action,
        }
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"cache-control", b"no-store"),
            (b"semel-code", kind.code.encode()),
            *extra,
        ]
        if retry_after is not None:
            document["retryAfter"] = retry_after
            headers.append((b"retry-after", b"%d" % retry_after))
        if operation_id is not None:
            document["operationId"] = uuid_text(operation_id)
            link = self.operation_link(operation_id)
            if link is not None and self.operations_path is not None:
                document["operation"] = self.operations_path.replace(_ID, uuid_text(operation_id))
                headers.append(link)
        if state is not None:
            document["state"] = state.name
        if maybe_done:
            document["mayHaveHappened"] = True
        if resource is not None:
            document["resource"] = resource
            headers.append((b"link", _link(resource, "related")))
        page = self.page_link(kind)
        if page is not None:
            headers.append(page)
        body = json.dumps(document, separators=(",", ":")).encode()
        headers.append((b"content-length", b"%d" % len(body)))
        return Answer(kind.status, tuple(headers), body)

    def _resource(self, kind: str | None, id: str | None) -> str | None:
        path = self.resource_paths.get(kind or "")
        return None if path is None or id is None else path.replace(_ID, quote(id, safe=""))


def anchor_of(code: str) -> str:
    """Return a code as the end of a ``type``, and as an anchor of the page about problems.

    >>> anchor_of("MISSING_IDEMPOTENCY_KEY")
    'missing-idempotency-key'
    """
    return code.lower().replace("_", "-")


def _link(path: str, relation: str) -> bytes:
    return f'<{path}>; rel="{relation}"'.encode()


def _check_field(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise ConfigurationError(f"{name} must be a text of visible ASCII characters; it is {text!r}")
