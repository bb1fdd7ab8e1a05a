"""Where a command stands: the status resource, by operation id and by key, for its own caller only.

Another caller's operation is not found, exactly like one that never was. The document names states and
times; it never contains a stored answer, a key or a fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

from semel.engine.aio import AsyncEngine
from semel.errors import InvalidKey, StoreError
from semel.model import OPEN_STATES, Answer, AnswerKind, Record, Scope, State, Unreadable
from semel.rules.identity import record_id, uuid_bytes, uuid_text
from semel.rules.keys import parse_key
from semel.rules.stored import is_sound, state_of, uuid_of
from semel.web.asgi_call import Receive, Send, send_answer
from semel.web.caller import Caller
from semel.web.problem import Kind
from semel.web.surface import Surface

NOT_FOUND: Final = Kind("OPERATION_NOT_FOUND", 404, "No such operation", "keep")
BAD_QUERY: Final = Kind("OPERATION_QUERY_INVALID", 400, "The query cannot be answered", "keep")
_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class Operations:
    """Answers status queries of one surface, for any web framework.

    Parameters: ``surface`` whose operations these are; ``engine`` that runs them; ``names`` of the operations
    that a key is looked for in; ``request_of`` makes of an ASGI scope what the surface's ``caller`` function reads.
    """

    def __init__(
        self,
        surface: Surface,
        engine: AsyncEngine,
        names: Callable[[], Iterable[str]],
        request_of: Callable[[Any], Mapping[str, Any]] = dict,
    ) -> None:
        self.request_of = request_of
        self._surface = surface
        self._engine = engine
        self._names = names

    async def by_id(self, operation_id: str, request: Mapping[str, Any]) -> Answer:
        """The status of one operation; ``request`` is what the surface's ``caller`` function reads."""
        caller = self._caller(request)
        if isinstance(caller, Answer):
            return caller
        raw = uuid_bytes(operation_id)
        if raw is None:
            return self._problem(BAD_QUERY, "An operation id is a UUID, such as the last part of an operation's link.")
        try:
            [row] = await self._engine.perform("read", lambda: self._engine.store.read_operations((raw,)))
        except StoreError as error:
            return self._surface.problems.of_error(error)
        return await self._status(row, caller)

    async def by_key(self, query: bytes, request: Mapping[str, Any]) -> Answer:
        """The status of the command with ``?key=…&operation=…``; the operation is needed where there are several."""
        caller = self._caller(request)
        if isinstance(caller, Answer):
            return caller
        asked = parse_qs(query.decode("latin-1"), keep_blank_values=True)
        keys = [key.encode("utf-8", "replace") for key in asked.get("key", [])]
        try:
            key = parse_key(keys) if keys else None
        except InvalidKey as error:
            return self._problem(BAD_QUERY, str(error))
        if key is None:
            return self._problem(BAD_QUERY, "Give the command's key: ?key=… (and &operation=… to name the operation).")
        names = asked.get("operation") or list(self._names())
        secret = self._engine.core.id_secret
        ids = tuple(record_id(Scope(caller.tenant, caller.id, name), key, secret) for name in names if name)
        try:
            rows = await self._engine.perform("read", lambda: self._engine.store.read(ids))
        except StoreError as error:
            return self._surface.problems.of_error(error)
        found = [row for row in rows if row is not None]
        if len(found) > 1:
            several = ", ".join(sorted(row.operation for row in found))
            return self._problem(
                BAD_QUERY, f"This key was used with several operations; add &operation= one of {several}."
            )
        return await self._status(found[0] if found else None, caller)

    def _caller(self, request: Mapping[str, Any]) -> Caller | Answer:
        assert self._surface.caller is not None
        caller = self._surface.caller(request)
        return self._surface.problems.caller_unknown() if caller is None else caller

    async def _status(self, row: Record | None, caller: Caller) -> Answer:
        if row is None or (row.tenant, row.caller) != (caller.tenant, caller.id):
            return self._problem(NOT_FOUND, "There is no such operation of yours.")
        if not is_sound(row):
            return self._surface.problems.of_verdict(Unreadable(uuid_of(row), "corrupt"))
        now = self._engine.core.store_time()
        headers = [_JSON, _NO_STORE]
        document = describe(row, now)
        if row.state in OPEN_STATES and row.lease_until > now:
            headers.append((b"retry-after", b"%d" % max(1, -(-(row.lease_until - now) // 1_000_000))))
        return Answer(200, tuple(headers), json.dumps(document).encode())

    def _problem(self, kind: Kind, detail: str) -> Answer:
        return self._surface.problems.answer(kind, detail)


def describe(row: Record, now: int) -> dict[str, Any]:
    """A record as its own caller may see it."""
    state = state_of(row)
    document: dict[str, Any] = {
        "operationId": uuid_text(row.operation_id),
        "operation": row.operation,
        "state": "UNREADABLE" if state is None else state.name,
        "running": row.state in OPEN_STATES and row.lease_until > now,
        "answerKept": row.answer_kind == AnswerKind.KEPT and (row.answer_until is None or now < row.answer_until),
        "attempt": row.attempt,
        "createdAt": _time(row.created_at),
        "settledAt": _time(row.settled_at),
        "answerUntil": _time(row.answer_until),
    }
    if row.state == State.UNKNOWN or row.doubt is not None:
        document["doubt"] = row.doubt
    if row.status is not None:
        document["status"] = row.status
    if row.resource_id is not None:
        document["resource"] = {"type": row.resource_type, "id": row.resource_id}
    return document


def _time(at: int | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(timespec="milliseconds")


class OperationsApp:
    """The status resource as an ASGI application, to be mounted at ``/operations`` in any other."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve ``GET /{id}`` and ``GET /?key=…``."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = self._operations.request_of(scope)
        root = scope.get("root_path", "")
        path = scope["path"]
        rest = (path[len(root) :] if root and path.startswith(root) else path).strip("/")
        if scope["method"] not in ("GET", "HEAD"):
            await send_answer(send, Answer(405, ((b"allow", b"GET, HEAD"), (b"content-length", b"0")), b""))
        elif rest:
            await send_answer(send, await self._operations.by_id(rest, request))
        else:
            await send_answer(send, await self._operations.by_key(scope.get("query_string", b""), request))
