"""The status resource of commands, by operation id, key or business reference, for the own caller only.

Another caller's operation is not found, exactly like one that never existed. The document names states and
times; it never contains a stored answer, a key or a fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from semel.bulk.rules import Tally, is_bulk
from semel.bulk.store import Items
from semel.core.flow import Flow
from semel.core.identity import record_id, uuid_bytes, uuid_text
from semel.core.model import ANSWERABLE, OPEN_STATES, Answer, Operation, Record, Scope, State, Unreadable, pause_us
from semel.core.record import is_sound, state_of, uuid_of
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.errors import InvalidKey, SemelError
from semel.http.asgi.call import Receive, Send, send_answer
from semel.http.caller import Caller
from semel.http.outage import NO_STORE
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME, Kind
from semel.http.settings import AnyEngine, HttpSettings, Wanted
from semel.keys import parse_key
from semel.operations.flow import find_operation, find_operations
from semel.operations.references import reference_id
from semel.steps.doubts import DOUBT, names_a_step
from semel.stores.clock import system_clock
from semel.stores.sql.damage import damage_of

NOT_FOUND: Final = Kind("OPERATION_NOT_FOUND", 404, "No such operation", "keep")
BAD_QUERY: Final = Kind("OPERATION_QUERY_INVALID", 400, "The query cannot be answered", "keep")
_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class StatusQuery(NamedTuple):
    """A status query that can be answered: by one operation id, or by a key or a reference of several operations."""

    caller: Caller
    what: str
    ids: tuple[bytes, ...]


class FoundOperation(NamedTuple):
    """The parts of one operation: its record, its long-lived row, its bulk's progress."""

    row: Record | None
    kept: Operation | None
    progress: Tally | None = None


class _Queries:
    """Status queries of one surface, without IO: what to look up, and how to answer."""

    def __init__(
        self,
        surface: HttpSettings,
        engine: AnyEngine,
        names: Callable[[], Iterable[str]],
        request_of: Callable[[Any], Mapping[str, Any]] = dict,
    ) -> None:
        self.request_of = request_of
        self._surface = surface
        self._core = engine.core
        self._store = engine.backend.store
        self._names = names

    def _query_by_id(self, operation_id: str, request: Mapping[str, Any]) -> StatusQuery | Answer:
        caller = self._caller(request)
        if isinstance(caller, Answer):
            return caller
        raw = uuid_bytes(operation_id)
        if raw is None:
            return self._problem(BAD_QUERY, "An operation id is a UUID, such as the last part of an operation's link.")
        return StatusQuery(caller, "id", (raw,))

    def _query_by_key(self, query: bytes, request: Mapping[str, Any]) -> StatusQuery | Answer:
        caller = self._caller(request)
        if isinstance(caller, Answer):
            return caller
        asked = parse_qs(query.decode("latin-1"), keep_blank_values=True)
        names = tuple(dict.fromkeys(name for name in asked.get("operation") or self._names() if name))
        secret = self._core.id_secret
        if "reference" in asked:
            ref, whose = asked["reference"][0], (caller.id, None)  # the caller's own, or the tenant's
            refs = tuple(
                reference_id(caller.tenant, name, ref, secret, caller=each) for name in names for each in whose
            )
            return StatusQuery(caller, "reference", refs)
        keys = [key.encode("utf-8", "replace") for key in asked.get("key", [])]
        try:
            key = parse_key(keys) if keys else None
        except InvalidKey as error:
            return self._problem(BAD_QUERY, str(error))
        if key is None:
            return self._problem(
                BAD_QUERY,
                "Give the command's key or reference: ?key=… or ?reference=… (and &operation=… to name the operation).",
            )
        return StatusQuery(
            caller, "key", tuple(record_id(Scope(caller.tenant, caller.id, name), key, secret) for name in names)
        )

    def _look(self, asked: StatusQuery) -> Flow[list[FoundOperation]]:
        """Find this caller's operations with these names, in one run of the driver."""
        store = self._store
        seen: list[tuple[Record | None, Operation | None]] = []
        if asked.what == "key":
            seen = yield from find_operations(store, asked.ids)
        elif asked.what == "reference":
            for own, shared in zip(asked.ids[::2], asked.ids[1::2], strict=True):
                of_caller = yield from find_operation(store, ref_id=own)
                seen.append(of_caller if of_caller[1] else (yield from find_operation(store, ref_id=shared)))
        else:
            seen.append((yield from find_operation(store, operation_id=asked.ids[0])))
        found: list[FoundOperation] = []
        for row, kept in seen:
            told = row or kept
            if told is None or not _is_of(told, asked.caller):
                continue
            progress = None
            if row is not None and is_bulk(row.recipe) and is_sound(row):
                progress = yield from Items(store).tally(row.operation_id)
            found.append(FoundOperation(row, kept, progress))
        return found

    def _answer_found(self, asked: StatusQuery, found: list[FoundOperation]) -> Answer:
        """Return the status of this caller's only operation with one of these names."""
        if len(found) > 1:
            several = ", ".join(sorted({told.operation for row, kept, _ in found if (told := row or kept) is not None}))
            return self._problem(
                BAD_QUERY, f"This {asked.what} was used with several operations; add &operation= one of {several}."
            )
        return self._status(*(found[0] if found else (None, None, None)))

    def _answer_failure(self, error: SemelError) -> Answer:
        self._surface.outage.tell(error)
        return self._surface.problems.of_error(error)

    def _caller(self, request: Mapping[str, Any]) -> Caller | Answer:
        assert self._surface.caller is not None
        caller = self._surface.caller(request)
        return self._surface.problems.caller_unknown() if caller is None else caller

    def _status(self, row: Record | None, kept: Operation | None, progress: Tally | None) -> Answer:
        told = row or kept
        if told is None:
            return self._problem(NOT_FOUND, "There is no such operation of yours.")
        if row is not None and not is_sound(row):
            return self._surface.problems.of_verdict(Unreadable(uuid_of(row), "corrupt"))
        if row is None and kept is not None and damage_of("operations", kept._asdict()) is not None:
            id = kept.operation_id
            return self._surface.problems.of_verdict(Unreadable(id if isinstance(id, bytes) else bytes(16), "corrupt"))
        now = system_clock()  # close to the store's time: it is only shown, and not worth a round trip
        headers = [_JSON, _NO_STORE]
        document = _operation_document(kept) if row is None and kept is not None else describe(told, now)  # type: ignore[arg-type]
        if kept is not None and kept.business_ref is not None:
            document["businessReference"] = kept.business_ref
        if progress is not None:
            document["progress"] = progress._asdict()
        if row is not None and row.state in OPEN_STATES and row.lease_until > now:
            after = pause_us(row.lease_until - now, now - row.created_at)
            headers.append((b"retry-after", b"%d" % max(1, -(-after // 1_000_000))))
        return Answer(200, tuple(headers), json.dumps(document).encode())

    def _problem(self, kind: Kind, detail: str) -> Answer:
        return self._surface.problems.answer(kind, detail)


class Operations(_Queries):
    """Answers status queries of one surface, for any web framework on an event loop.

    Parameters: ``surface`` whose operations these are; ``engine`` that runs them; ``names`` of the operations in which
    a key is looked up; ``request_of`` turns an ASGI scope into the object that the surface's ``caller`` function reads.
    """

    def __init__(
        self,
        surface: HttpSettings,
        engine: AsyncEngine,
        names: Callable[[], Iterable[str]],
        request_of: Callable[[Any], Mapping[str, Any]] = dict,
    ) -> None:
        super().__init__(surface, engine, names, request_of)
        self._engine = engine

    async def by_id(self, operation_id: str, request: Mapping[str, Any]) -> Answer:
        """Return the status of one operation; the ``caller`` function reads ``request``."""
        return await self._answer(self._query_by_id(operation_id, request), request)

    async def by_key(self, query: bytes, request: Mapping[str, Any]) -> Answer:
        """Return the status of the command with ``?key=…`` or ``?reference=…``; ``&operation=…`` if several."""
        return await self._answer(self._query_by_key(query, request), request)

    async def _answer(self, asked: StatusQuery | Answer, request: Mapping[str, Any]) -> Answer:
        if isinstance(asked, Answer):
            return asked
        try:
            found = await self._engine.perform("operation", lambda: self._look(asked))
        except NO_STORE as error:
            return self._answer_failure(error)
        allowed = [
            each for each in found if await self._surface.allows_async(request, _make_wanted(each, asked.caller))
        ]
        return self._answer_found(asked, allowed)


class SyncOperations(_Queries):
    """As :class:`Operations`, on an :class:`~semel.engine.sync_engine.Engine`."""

    def __init__(self, surface: HttpSettings, engine: Engine, names: Callable[[], Iterable[str]]) -> None:
        super().__init__(surface, engine, names)
        self._engine = engine

    def by_id(self, operation_id: str, request: Mapping[str, Any]) -> Answer:
        """As :meth:`Operations.by_id`."""
        return self._answer(self._query_by_id(operation_id, request), request)

    def by_key(self, query: bytes, request: Mapping[str, Any]) -> Answer:
        """As :meth:`Operations.by_key`."""
        return self._answer(self._query_by_key(query, request), request)

    def _answer(self, asked: StatusQuery | Answer, request: Mapping[str, Any]) -> Answer:
        if isinstance(asked, Answer):
            return asked
        try:
            found = self._engine.perform("operation", lambda: self._look(asked))
        except NO_STORE as error:
            return self._answer_failure(error)
        allowed = [each for each in found if self._surface.allows(request, _make_wanted(each, asked.caller))]
        return self._answer_found(asked, allowed)


def _make_wanted(found: FoundOperation, caller: Caller) -> Wanted:
    told = found.row or found.kept
    assert told is not None
    return Wanted(told.operation, caller)


def _is_of(told: Record | Operation, caller: Caller) -> bool:
    return (told.tenant, told.caller) == (caller.tenant, caller.id)


def _operation_document(kept: Operation) -> dict[str, Any]:
    """Describe an operation whose key is forgotten, as its own caller may see it."""
    document: dict[str, Any] = {
        "operationId": uuid_text(kept.operation_id),
        "operation": kept.operation,
        "state": State(kept.state).name,
        "running": False,
        "answerKept": False,
        "createdAt": _time(kept.created_at),
        "settledAt": _time(kept.settled_at),
    }
    if kept.error_code is not None:
        document["errorCode"] = kept.error_code
    if kept.resource_id is not None:
        document["resource"] = {"type": kept.resource_type, "id": kept.resource_id}
    return document


def describe(row: Record, now: int) -> dict[str, Any]:
    """Describe a record as its own caller may see it."""
    state = state_of(row)
    document: dict[str, Any] = {
        "operationId": uuid_text(row.operation_id),
        "operation": row.operation,
        "state": "UNREADABLE" if state is None else state.name,
        "running": row.state in OPEN_STATES and row.lease_until > now,
        "answerKept": row.answer_kind in ANSWERABLE and (row.answer_until is None or now < row.answer_until),
        "attempt": row.attempt,
        "createdAt": _time(row.created_at),
        "settledAt": _time(row.settled_at),
        "answerUntil": _time(row.answer_until),
    }
    if row.state == State.UNKNOWN or row.doubt is not None:
        document["doubt"] = row.doubt
    if document["running"] and names_a_step(row.doubt):
        document["step"] = str(document.pop("doubt")).removeprefix(DOUBT)  # the step is under way, and not in doubt yet
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
        """Serve ``GET /{id}``, ``GET /?key=…``, ``GET /?reference=…``, and ``GET /problems``, the page of codes."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = self._operations.request_of(scope)
        root = scope.get("root_path", "")
        path = scope["path"]
        rest = (path[len(root) :] if root and path.startswith(root) else path).strip("/")
        if scope["method"] not in ("GET", "HEAD"):
            await send_answer(send, Answer(405, ((b"allow", b"GET, HEAD"), (b"content-length", b"0")), b""))
        elif rest == PAGE_NAME:
            await send_answer(send, problem_page())
        elif rest:
            await send_answer(send, await self._operations.by_id(rest, request))
        else:
            await send_answer(send, await self._operations.by_key(scope.get("query_string", b""), request))
