"""Bulks over HTTP, without IO: decides how to read a request's body, and builds the answer from the outcome.

One key in the header names the whole list; a member of its own names each item. The answer is built from the stored
items, a page at a time, so that a replay is the same answer, and memory does not grow with its length.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from semel.bulk.body import Form, ItemReader
from semel.bulk.declaration import BulkPolicy, BulkResult
from semel.bulk.rules import PATH, ItemOutcome, item_document
from semel.core.identity import uuid_bytes
from semel.core.model import Answer, Effects, State
from semel.errors import (
    BulkRefused,
    CommandError,
    ConfigurationError,
    IdentityMismatch,
    InProgressError,
    KeyExpiredError,
    KeyReusedError,
    NotReplayableError,
    OutcomeUnknownError,
    QuotaExceededError,
    RecordUnreadableError,
    RequestError,
    RequestTooLarge,
    SchemaError,
    StoreError,
    SupersededError,
)
from semel.http.caller import Caller
from semel.http.exchange import read_counted_headers, read_joined
from semel.http.fingerprint.fingerprinter import BodyCheck, media_parameters
from semel.http.headers import Honoured, parse_wait, prefers_async
from semel.http.openapi import GUARANTEES, describe_key, describe_responses
from semel.http.problems import (
    BODY_TOO_SLOW,
    IN_PROGRESS,
    NOT_REPLAYABLE,
    OUTCOME_UNKNOWN,
    QUOTA_EXCEEDED,
    RECORD_EXPIRED,
    RECORD_UNREADABLE,
    TOO_LARGE,
    Kind,
)
from semel.http.problems import KINDS as PROBLEMS
from semel.http.routing import Params
from semel.http.settings import HttpSettings
from semel.http.spelling import without_slashes
from semel.keys import parse_key
from semel.policy import RETRY_BYTES_MAX

ARRAY_TYPE: Final = "application/json"
LINES_TYPES: Final = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines", "application/ndjson")
MALFORMED: Final = Kind("ITEM_MALFORMED", 400, "An item of the list is malformed", "keep")
DUPLICATE: Final = Kind("DUPLICATE_ITEM_ID", 400, "Two items of the list have one name", "keep")
NO_ITEMS: Final = Kind("NO_ITEMS", 400, "The list has no items", "keep")
ITEM_TOO_LARGE: Final = Kind("ITEM_TOO_LARGE", 413, "An item of the list is too large", "keep")
TOO_MANY: Final = Kind("TOO_MANY_ITEMS", 413, "The list has too many items", "keep")
NO_LIST: Final = Kind("LIST_MEDIA_TYPE", 415, "The body is not a list of items", "keep")
KINDS: Final = (MALFORMED, DUPLICATE, NO_ITEMS, ITEM_TOO_LARGE, TOO_MANY, NO_LIST)
_BY_CODE: Final = {kind.code: kind for kind in (*KINDS, TOO_LARGE)}
TOO_LONG: Final = "its body is larger than {} bytes; send it in parts, each with its own key"
_NO_STORE: Final = (b"cache-control", b"no-store")
_READ: Final = frozenset(
    {
        *(b"content-type", b"content-length", b"content-encoding", b"content-digest"),
        *(b"accept", b"prefer", b"early-data"),
    }
)
_GOES_ON: Final = "Send the same list with the same key again: finished items do not run again."


class BulkRequest(NamedTuple):
    """A request that may become a bulk: its caller, and how to read and answer it.

    ``in_lines``: the answer has one item a line; ``wait_seconds`` the client waits for a running bulk; ``head`` is the
    part of the request's head that counts beside the list; ``check`` compares the body with its Content-Digest.
    """

    key: str
    caller: Caller
    reader: ItemReader
    in_lines: bool
    wants_async: bool
    wait_seconds: float | None
    head: Mapping[str, str] = MappingProxyType({})
    check: BodyCheck = BodyCheck(None)
    honoured: Honoured = Honoured()

    def counts(self) -> dict[str, str]:
        """Return the values that count beside the list, once its body is read: head and envelope."""
        envelope = self.reader.envelope
        return dict(self.head) if not envelope else {**self.head, "envelope": envelope.decode()}


class ListForm(NamedTuple):
    """How an endpoint takes its lists: ``items_at`` is where in an object they may be, member by member; ``honoured``
    the headers of every answer that follows a claim."""

    body_bytes_max: int
    item_bytes_max: int
    items_at: tuple[str, ...] = ()
    headers: tuple[bytes, ...] = ()
    honoured: Honoured = Honoured()

    @property
    def read_max(self) -> int:
        """The number of body bytes to read: a list over the limit may be the retry of a known one."""
        return max(self.body_bytes_max, RETRY_BYTES_MAX)

    def refuse_size(self, size: int) -> BulkRefused | None:
        """Return the limit that a body of this many bytes breaks."""
        if size <= self.body_bytes_max:
            return None
        return BulkRefused(None, None, TOO_LONG.format(self.body_bytes_max), TOO_LARGE.code)


def items_pointer(items_at: object) -> tuple[str, ...]:
    """Parse a JSON pointer to the items in an object; empty for None. Raises ConfigurationError.

    >>> items_pointer("/data/items")
    ('data', 'items')
    """
    if items_at is None:
        return ()
    if not isinstance(items_at, str) or not items_at.startswith("/"):
        raise ConfigurationError(f"items_at must be a JSON pointer, such as '/items'; it is {items_at!r}")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in items_at[1:].split("/"))


def parse_request(
    surface: HttpSettings,
    headers: Iterable[tuple[bytes, bytes]],
    request: Mapping[str, Any],
    taken: ListForm,
    *,
    params: Params = (),
    query: bytes = b"",
    path: str | None = None,
    mount: str = "",
) -> BulkRequest | Answer:
    """Parse a request's head, or return the answer that refuses it.

    Parameters: ``headers`` with lower-case names; ``request`` for the surface's ``caller`` function; ``params`` of its
    path; ``query`` unparsed; ``path`` if the list is taken at several paths, so that it counts; ``mount`` the
    application's own prefix.
    """
    problems = surface.problems
    keys, read = read_joined(surface.key_name, headers, _READ, taken.headers)
    if b"1" in read.get(b"early-data", b""):
        return problems.too_early()
    assert surface.caller is not None
    caller = surface.caller(request)
    if caller is None:
        return problems.caller_unknown()
    try:
        key = parse_key(keys)
        check_size(_length(read), taken.read_max)
        digest = read.get(b"content-digest")
        check = BodyCheck(None if digest is None else digest.decode("latin-1"))
    except RequestError as error:
        return problems.of_error(error)
    form = _form(read.get(b"content-type", b""))
    if form is None or read.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        text = "Send a JSON array as application/json, or JSON lines as application/jsonl, uncompressed."
        return problems.answer(NO_LIST, text)
    prefer = (read[b"prefer"],) if b"prefer" in read else ()
    wait = parse_wait(prefer)
    return BulkRequest(
        key,
        caller,
        ItemReader(form, max(taken.item_bytes_max, RETRY_BYTES_MAX), taken.items_at),
        any(name.encode() in read.get(b"accept", b"").lower() for name in LINES_TYPES),
        prefers_async(prefer),
        None if wait is None else min(wait, surface.wait_seconds_max),
        _counted_parts(read, params, query, taken.headers, path, mount),
        check,
        taken.honoured,
    )


def _counted_parts(
    read: Mapping[bytes, bytes], params: Params, query: bytes, headers: Sequence[bytes], path: str | None, mount: str
) -> Mapping[str, str]:
    """Return what counts of a request's head: as for any command, but a list is the same in both forms."""
    counts = {f"path.{name}": value for name, value in params}
    counts |= {f"header.{name}": value for name, value in read_counted_headers(headers, read)}
    if path is not None:
        counts[PATH] = path
    if place := without_slashes(mount):
        counts["mount"] = place
    if query:
        counts["query"] = query.decode("latin-1")
    parameters = media_parameters(read.get(b"content-type", b"").decode("latin-1"))
    if parameters:
        counts["media"] = parameters
    return counts


def check_size(size: int, body_bytes_max: int) -> None:
    """Raise RequestTooLarge if a body is too large."""
    if size > body_bytes_max:
        raise RequestTooLarge(f"The list: {TOO_LONG.format(body_bytes_max)}.")


def _length(read: Mapping[bytes, bytes]) -> int:
    length = read.get(b"content-length", b"")
    return int(length[:20]) if length.isdigit() else 0


def _form(content_type: bytes) -> Form | None:
    kind = content_type.decode("latin-1").partition(";")[0].strip().lower()
    return "array" if kind == ARRAY_TYPE else "lines" if kind in LINES_TYPES else None


def refuse(surface: HttpSettings, error: Exception, how: BulkRequest) -> Answer | None:
    """Return the answer to a refused list, or to a bulk that could not finish; None: the error is not for the client.

    A malformed list is refused as a whole: no item was run, and the key is free.
    """
    problems = surface.problems
    match error:
        case BulkRefused():
            members = {"place": error.place, "line": None, "member": error.member}
            if error.place is not None:
                members["line"] = how.reader.line_of(error.place)
            return _with(problems.answer(_BY_CODE.get(error.code, MALFORMED), _sentence(str(error))), members)
        case RequestError():
            return problems.of_error(error)
        case StoreError() | SchemaError() | IdentityMismatch():
            surface.outage.tell(error)
            return _with(problems.of_error(error), {"detail": f"The store failed. {_GOES_ON}"})
        case SupersededError():
            text = "Another run of this list has taken over. Ask again with the same key."
            return problems.answer(IN_PROGRESS, text, retry_after=1, extra=how.honoured.lifetime)
        case KeyReusedError():
            other = None if error.operation_id is None else uuid_bytes(error.operation_id)
            reused = problems.key_reused(other, None if error.state is None else State[error.state], "list")
            return reused._replace(headers=reused.headers + how.honoured.lifetime)
        case CommandError() if type(error) in _VERDICTS:
            kind, text = _VERDICTS[type(error)]
            id = None if error.operation_id is None else uuid_bytes(error.operation_id)
            after = None if error.retry_after_seconds is None else max(1, ceil(error.retry_after_seconds))
            lifetime = () if kind in (RECORD_UNREADABLE, QUOTA_EXCEEDED) else how.honoured.lifetime
            return problems.answer(kind, text, operation_id=id, retry_after=after, extra=lifetime)
        case _:
            return None


_VERDICTS: Final[Mapping[type[CommandError], tuple[Kind, str]]] = {
    InProgressError: (IN_PROGRESS, "The list is running. Keep the key and ask again, or query the operation."),
    OutcomeUnknownError: (OUTCOME_UNKNOWN, "The outcome of this command cannot be proven. Query the operation."),
    KeyExpiredError: (
        RECORD_EXPIRED,
        "This key was used, and its answer is no longer stored. Query before you send it again.",
    ),
    NotReplayableError: (NOT_REPLAYABLE, "The list was done. Query the operation; do not send it again."),
    QuotaExceededError: (
        QUOTA_EXCEEDED,
        (
            "You have started as many commands as your quota allows for now. Nothing was done. Keep the key and ask "
            "again later."
        ),
    ),
    RecordUnreadableError: (RECORD_UNREADABLE, "The stored record cannot be read by this server. Keep the key."),
}


_ITEM_ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "place": {"type": "integer", "minimum": 0},
        "id": {"type": "string"},
        "state": {"type": "string", "enum": ["SUCCEEDED", "FAILED", "UNKNOWN"]},
        "targetId": {"type": ["string", "null"]},
        "resultId": {"type": ["string", "null"]},
        "errorCode": {"type": ["string", "null"]},
        "retryable": {"type": "boolean"},
    },
    "required": ["place", "id", "state", "retryable"],
}
_SUMS: Final = ("total", "done", "succeeded", "failed", "retryable", "unknown")
_LIST_ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "operationId": {"type": "string", "format": "uuid"},
        **{name: {"type": "integer", "minimum": 0} for name in _SUMS},
        "items": {"type": "array", "items": _ITEM_ANSWER},
    },
    "required": ["operationId", *_SUMS, "items"],
}
_ACCEPTED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "operationId": {"type": "string", "format": "uuid"},
        "state": {"type": "string"},
        "operation": {"type": "string"},
    },
    "required": ["operationId", "state"],
}


def describe_bulk(operation: dict[str, Any], policy: BulkPolicy, taken: ListForm, key_header: str) -> None:
    """Complete the operation object of a bulk's endpoint in an OpenAPI document: its list, answers and refusals."""
    describe_key(operation, policy.policy, key_header, [name.decode() for name in taken.headers])
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": policy.items_max, "items": {}}
    if taken.items_at:
        around = schema
        for name in reversed(taken.items_at):
            around = {"type": "object", "properties": {name: around}, "required": [name]}
        schema = {"oneOf": [schema, around]}
    lines = {"schema": {"type": "string", "description": "One JSON value a line"}}
    content = {ARRAY_TYPE: {"schema": schema}, **dict.fromkeys(LINES_TYPES[:2], lines)}
    operation.setdefault("requestBody", {"required": True, "content": content})
    responses = operation.setdefault("responses", {})
    whole = {ARRAY_TYPE: {"schema": _LIST_ANSWER}, LINES_TYPES[0]: lines}
    for status, description, answered in (
        ("200", "Every item succeeded", whole),
        ("202", "The list is running (Prefer: respond-async)", {ARRAY_TYPE: {"schema": _ACCEPTED}}),
        ("207", "The items had different outcomes", whole),
    ):
        responses[status] = {**responses.get(status, {}), "description": description, "content": answered}
    describe_responses(operation, (*(kind for kind in PROBLEMS if kind is not BODY_TOO_SLOW), *KINDS))
    operation["x-semel"] = {
        "operation": policy.operation,
        "effects": "BULK",
        "itemEffects": policy.effects.upper(),
        "guarantee": f"each item: {GUARANTEES[Effects[policy.effects.upper()]]}",
        "answerRetentionSeconds": policy.answer_seconds,
        "tombstoneRetentionSeconds": policy.tombstone_seconds,
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}. Nothing of the list was done."


def _with(answer: Answer, members: Mapping[str, str | int | None]) -> Answer:
    """Return a problem document with members added or replaced."""
    document = json.loads(answer.body)
    document.update((name, value) for name, value in members.items() if value is not None)
    body = json.dumps(document, separators=(",", ":")).encode()
    kept = [field for field in answer.headers if field[0] != b"content-length"]
    return Answer(answer.status, (*kept, (b"content-length", b"%d" % len(body))), body)


def accept(surface: HttpSettings, operation_id: str, how: BulkRequest) -> Answer:
    """Return 202: the list is running, with a link to its progress."""
    problems = surface.problems
    document = {"operationId": operation_id, "state": State.CLAIMED.name}
    headers = [(b"content-type", b"application/json"), _NO_STORE, (b"retry-after", b"1")]
    if problems.operations_path is not None:
        document["operation"] = problems.operations_path.replace("{id}", operation_id)
        headers.append((b"location", document["operation"].encode()))
    headers += how.honoured.headers(uuid_bytes(operation_id) or bytes(16))
    if how.wants_async:
        headers.append((b"preference-applied", b"respond-async"))
    return Answer(202, tuple(headers), json.dumps(document).encode())


def status_of(result: BulkResult) -> int:
    """Return 200 if every item succeeded, else 207: each item has its own outcome."""
    return 200 if result.tally.succeeded == result.tally.total else 207


def headers_of(surface: HttpSettings, result: BulkResult, how: BulkRequest) -> list[tuple[bytes, bytes]]:
    """Return the headers of a whole answer, without a length: its items are read while it is sent."""
    headers = [(b"content-type", (LINES_TYPES[0] if how.in_lines else ARRAY_TYPE).encode()), _NO_STORE]
    if result.replayed:
        headers.append(surface.replayed)
    return headers + list(how.honoured.headers(uuid_bytes(result.operation_id) or bytes(16)))


class Telling:
    """The body of a whole answer, page by page.

    As JSON one document with the sums and the ``items``; as JSON lines the sums on the first line, then the items.
    """

    def __init__(self, result: BulkResult, how: BulkRequest) -> None:
        self._in_lines = how.in_lines
        self._head: dict[str, Any] = {"operationId": result.operation_id, **result.tally._asdict()}
        self._told = 0

    def begin(self) -> bytes:
        """Return the part of the answer before the items."""
        head = json.dumps(self._head)
        return f"{head}\n".encode() if self._in_lines else f'{head[:-1]}, "items": ['.encode()

    def page(self, outcomes: Sequence[ItemOutcome]) -> bytes:
        """Return the next page of items."""
        written = [json.dumps(item_document(outcome)) for outcome in outcomes]
        if self._in_lines:
            return "".join(f"{each}\n" for each in written).encode()
        before = ", " if self._told and written else ""
        self._told += len(written)
        return (before + ", ".join(written)).encode()

    def end(self) -> bytes:
        """Return the part of the answer after the items."""
        return b"" if self._in_lines else b"]}"
