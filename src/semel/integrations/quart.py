"""Quart: the operation is declared on the view, claimed inside it, and captured around the application.

    semel = Semel(app, AsyncEngine.connect("sqlite:///shop.db"), caller=lambda: g.user)

    @app.post("/orders")
    @semel.command("orders.create", effects="external")
    async def create_order(permit: Permit = semel.permit): ...

Quart reads a request's body in its own task, and cancels the view when the client disconnects; but a view that has
claimed runs to its end.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

from quart import Quart, Request, Response, got_request_exception, has_request_context, request
from quart.asgi import ASGIHTTPConnection
from quart.cli import ScriptInfo
from quart.utils import cancel_tasks, raise_task_exceptions, run_sync
from quart.wrappers.request import Body
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from semel.core.model import Answer, Effects
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError, InvalidBody
from semel.http.asgi.request import CUT, AsgiRequest, path_of
from semel.http.asgi.route import CALL_KEY, CaptureMiddleware, RouteCall
from semel.http.exchange import body_too_slow
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import UNSAFE_METHODS, Params
from semel.integrations.asgi_endpoint import EndpointCommands, Served, may_claim
from semel.integrations.endpoint import DECLARED, SERVED, DeclaredEndpoint, bulk_used_by
from semel.integrations.werkzeug import (
    WHO,
    check_routes,
    check_unrouted,
    find_status,
    params_of,
    read_caller,
    read_headers,
    semel_commands,
)
from semel.operations.http import Operations
from semel.policy import Policy
from semel.resuming.asgi import completer_for
from semel.resuming.worker import running
from semel.retention.worker import Reaper

if TYPE_CHECKING:
    from semel.bulk.endpoint import AsyncTold
    from semel.imports.endpoint import ImportEndpoint
    from semel.imports.run import Imports

_EXTENSION: Final = "semel"  # in app.extensions
_HELD_BYTES: Final = 64 * 1024  # of a list's or an upload's body before it is read


class Semel(EndpointCommands[Response]):
    """Protects the commands of Quart applications, view by view.

    Parameters: ``app`` and ``engine``, or ``Semel(None, engine, ...)`` and :meth:`init_app` later; ``caller``, a
    function without parameters or of the ASGI scope, called inside the view: it returns a text, a number, a UUID or a
    :class:`~semel.http.caller.Caller`, or None where the caller is not known; ``tenant`` of texts, numbers and UUIDs;
    ``operations_path`` where the status of operations is served (None: nowhere); ``reap`` runs a
    :class:`~semel.retention.worker.Reaper` with the application, ``complete`` a
    :class:`~semel.resuming.worker.Completer` of its resumable operations; further settings as
    :class:`~semel.http.settings.HttpSettings`.

    Raises ConfigurationError for a missing caller, an engine of the other colour, or an invalid setting.

    >>> from quart import Quart
    >>> from semel import AsyncEngine, Permit
    >>> from semel.http.caller import single_caller
    >>> app = Quart("notes")
    >>> semel = Semel(app, AsyncEngine.connect("memory://?persistence=none"), caller=single_caller)
    >>> @app.post("/notes")
    ... @semel.command("notes.create", effects="idempotent")
    ... async def create_note(permit: Permit = semel.permit):
    ...     return {"attempt": permit.attempt}, 201
    >>> async def main():
    ...     answer = await app.test_client().post("/notes", headers={"Idempotency-Key": "note-1"})
    ...     print(answer.status_code, await answer.get_json())
    >>> asyncio.run(main())
    201 {'attempt': 1}
    """

    way = "give the application to Semel(app, engine, caller=...), or call semel.init_app(app)"

    def __init__(
        self,
        app: Quart | None,
        engine: AsyncEngine,
        *,
        caller: Callable[..., Any] | None = None,
        tenant: str = "single",
        operations_path: str | None = "/operations",
        reap: bool = True,
        complete: bool = True,
        **settings: Any,
    ) -> None:
        _check_app(app, or_none=True)
        if caller is None:
            raise ConfigurationError(WHO.format(example="current_user.auth_id with Quart-Auth"))
        super().__init__(engine, caller=read_caller(caller, tenant), **settings)
        self._apps: weakref.WeakSet[Quart] = weakref.WeakSet()
        self._operations_path = self.surface.problems.check_place(operations_path)
        self._reap = reap
        self.completes = complete
        self.operations = Operations(self.surface, engine, lambda: (*self.declared, *self._bulks))
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Quart) -> None:
        """Capture the application's answers, open and close the engine with it, serve the operations' status, and add
        the commands ``quart semel``.

        Raises ConfigurationError.
        """
        _check_app(app)
        if _EXTENSION in app.extensions:
            raise ConfigurationError(f"the application {app.name!r} has a Semel already; one protects it")
        app.extensions[_EXTENSION] = self
        self._apps.add(app)
        capture = CaptureMiddleware(
            cast("Any", app.asgi_app), self.engine, may_claim, self._kept_alive, self.surface, self._bytes_max, _Reach()
        )
        app.asgi_app = _Checked(capture, lambda: check_routes(app, self._plain, self.declared))  # type: ignore[method-assign]
        app.asgi_http_class = type("SemelConnection", (_Connection, app.asgi_http_class), {})
        _note_exceptions(app)
        if self._operations_path is not None:
            self._serve_operations(app, self._operations_path)
        app.cli.add_command(_commands)

        @app.while_serving
        async def live() -> AsyncGenerator[None, None]:
            async for _ in self._live(app):
                yield

    async def _live(self, app: Quart) -> AsyncIterator[None]:
        check_routes(app, self._plain, self.declared)
        try:
            await self.engine.open()
            routes = [each.route for each in self.declared.values()] if self.completes else []
            completer = completer_for(self.engine, app, routes, lambda: {})  # type: ignore[arg-type]
            async with Reaper(self.engine) if self._reap else nullcontext(), running(completer), self._importing():
                yield
        finally:
            await self._kept_alive.close()
            await self.engine.close()

    def _serve_operations(self, app: Quart, path: str) -> None:
        async def by_key() -> Response:
            return _response_of(await self.operations.by_key(request.query_string, request.scope))

        async def by_id(operation_id: str) -> Response:
            return _response_of(await self.operations.by_id(operation_id, request.scope))

        async def tell_problems() -> Response:
            return _response_of(problem_page())

        root = path.rstrip("/")
        app.add_url_rule(f"{root}/{PAGE_NAME}", "semel_problems", tell_problems)
        app.add_url_rule(root or "/", "semel_operation_by_key", by_key)
        app.add_url_rule(f"{root}/<operation_id>", "semel_operation_by_id", by_id)

    def imports(
        self,
        app: Quart,
        imports: Imports,
        *,
        path: str,
        supplier: str | Callable[[Request], object],
        may: Callable[[Request, str], Any],
        jobs_path: str = "/imports",
        idle_seconds: float = 60.0,
    ) -> ImportEndpoint:
        """Take files at a path of an application, report on their jobs, and run the jobs beside it.

        Parameters: ``imports`` on this engine, with a handler; ``path`` of uploads, such as
        ``"/suppliers/{supplier}/imports"``; ``supplier`` where its code is: ``"path:supplier"``, ``"header:NAME"``,
        ``"query:NAME"`` or a function of Quart's request; ``may`` a function of the request and the supplier's code
        that says whether this caller may send and see its files; ``jobs_path`` of the questions; ``idle_seconds`` how
        long a client may send nothing. The application's ``before_request`` runs first.

        Raises ConfigurationError, when the application is built.
        """
        from semel.imports.endpoint import add_imports  # which only applications with imports need

        _check_app(app)

        def add(path: str, method: str, respond: Any, endpoint: ImportEndpoint | None) -> None:
            rule = path.replace("{", "<").replace("}", ">")
            view = self._serve(respond.__name__, respond, endpoint)
            app.add_url_rule(rule, f"semel_import {path}", view, methods=[method])

        return add_imports(
            self,
            add,
            imports,
            path=path,
            supplier=supplier,
            may=may,
            jobs_path=jobs_path,
            idle_seconds=idle_seconds,
        )

    # --- views ------------------------------------------------------------------------------------

    def _endpoint(self, respond: Callable[[AsgiRequest], Awaitable[Answer | AsyncTold]]) -> Served[Response]:
        async def answer(**_: Any) -> Response:
            here = cast("Any", request)._get_current_object()
            scope, params = here.scope, here.view_args or {}
            told = await respond(
                AsgiRequest(here, scope, scope["headers"], params, scope["query_string"], here.body.__aiter__)
            )
            if isinstance(told, Answer):
                return _response_of(told)
            return Response(told.pieces, told.status, Headers(read_headers(told.headers)))

        return answer

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        if isinstance(getattr(endpoint, DECLARED, None), DeclaredEndpoint):
            raise ConfigurationError(f"{endpoint.__qualname__} is declared twice; one view is one operation")
        kind = getattr(endpoint, "view_class", None)
        if kind is not None:
            raise ConfigurationError(
                f"@semel.command was given {kind.__name__}.as_view(...): write it on the method, such as post"
            )
        check_unrouted(iter(self._apps), endpoint, declared.name)
        filled = self.fill_parameters(endpoint, declared)

        @functools.wraps(endpoint)
        async def serve_claimed(*args: Any, **kwargs: Any) -> Any:
            if not has_request_context():
                raise ConfigurationError(f"the operation {declared.name!r} is called outside of a request")
            here = cast("Any", request)._get_current_object()  # its debugger renders what frames hold
            try:
                async with asyncio.timeout(self.surface.body_seconds_max):
                    # Quart's own task receives the body, which must be whole before it is compared.
                    data = await here.get_data()
            except TimeoutError:
                return self._response(body_too_slow(self.surface, here.scope))
            here.body = Body(None, None)  # from Quart 0.23 on, an awaited body cannot be read as a form
            here.body.set_result(data)
            return await self.serve(endpoint, declared, here, args, kwargs, filled)

        setattr(serve_claimed, DECLARED, declared)
        return serve_claimed

    async def _in_thread(self, endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await run_sync(endpoint)(*args, **kwargs)

    def _response(self, answer: Answer) -> Response:
        return _response_of(answer)

    def _scope_of(self, request: Any) -> Mapping[str, Any]:
        scope: Mapping[str, Any] = request.scope
        return scope

    def _params(self, request: Any, declared: DeclaredEndpoint, kwargs: dict[str, Any]) -> Params:
        return params_of(request, declared.route, path_of(request.scope))

    def _own_status(self, error: BaseException, declared: DeclaredEndpoint) -> int | None:
        # Any exception rolls back an ATOMIC view's rows, so its answer is not a success.
        return None if declared.policy.terms.effects is Effects.ATOMIC else find_status(error)


class _Connection(ASGIHTTPConnection):
    """Quart's connection. Its view continues when the client disconnects, and ends with its call."""

    async def __call__(self, receive: Any, send: Any) -> None:
        made = self._create_request_from_scope(send)
        listening = asyncio.ensure_future(self.handle_messages(made, receive))
        handling = asyncio.ensure_future(self.handle_request(made, send))
        done: set[asyncio.Task[None]] = set()
        try:
            done, _ = await asyncio.wait({listening, handling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_tasks({listening, handling} - done)
        if handling in done and handling.cancelled():
            raise asyncio.CancelledError  # a command that another one has taken over
        raise_task_exceptions(done)

    async def handle_messages(self, request: Any, receive: Any, *_: Any) -> None:
        # From 0.23 on, Quart's own method gets the view's task, cancels it here, and then sends no answer.
        view = self._view_of(request)
        is_streamed = hasattr(view, SERVED) or _uses_bulk(view)
        if is_streamed or _is_command(view, request.method):  # from 0.23 on, Quart's own body holds any length
            request.body = _StreamedBody(self.app.config["MAX_CONTENT_LENGTH"], request.content_length)
            receive = request.body.pace(receive)
        while (message := await receive())["type"] != "http.disconnect":
            await _add_to_body(request.body, message)
        if is_streamed:  # a view that waits for a whole body is cancelled
            request.body.cut()
        call = self.scope.get(CALL_KEY)
        if isinstance(call, RouteCall):
            await call.outlive_client()

    def _view_of(self, request: Any) -> Any:
        """Find the view of a request with a body; None if there is none."""
        if request.method not in UNSAFE_METHODS:
            return None
        try:
            adapter = self.app.create_url_adapter(request)
            name, _ = adapter.match() if adapter is not None else ("", None)
        except HTTPException:  # Quart will report it
            return None
        return self.app.view_functions.get(name)


async def _add_to_body(body: Any, message: Any) -> None:
    """Add received bytes to the body: Quart's own (0.23 has a queue: ``put``) or a streamed one."""
    if message["type"] != "http.request":
        return
    data = message.get("body", b"")
    if hasattr(body, "put"):
        await body.put(data)
    else:
        body.append(data)
    if not message.get("more_body", False):
        body.set_complete()


@functools.lru_cache(maxsize=1024)
def _uses_bulk(view: Callable[..., Any] | None) -> bool:
    return view is not None and bulk_used_by(view) is not None


def _is_command(view: Any, method: str) -> bool:
    """Return whether a view, or its class's method, is declared."""
    return hasattr(view, DECLARED) or hasattr(
        getattr(getattr(view, "view_class", None), method.lower(), None), DECLARED
    )


class _StreamedBody:
    """A replacement for Quart's body: receives only as fast as it is read, so that memory does not grow with it.

    Parameters: ``whole_max`` its longest length for a function that awaits it whole, such as ``request.get_data()``;
    ``announced`` the length that the client declared.
    """

    def __init__(self, whole_max: int | None, announced: int | None) -> None:
        self._held = bytearray()
        self._announced = announced or 0
        self._whole_max = whole_max
        self._is_awaited = False
        self._is_over = False
        self._error: Exception | None = None
        self._news = asyncio.Event()  # bytes, the end or an error
        self._room = asyncio.Event()
        self._room.set()

    def __aiter__(self) -> _StreamedBody:
        return self

    async def __anext__(self) -> bytes:
        while not self._held and not self._is_over:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        if not self._held:
            raise StopAsyncIteration
        piece = bytes(self._held)
        self.clear()
        return piece

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._whole().__await__()

    async def _whole(self) -> bytes:
        self._is_awaited = True
        self._room.set()
        self._check_whole()
        while not self._is_over:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        return bytes(self._held)

    def _check_whole(self) -> None:
        length = max(len(self._held), self._announced)
        if self._is_awaited and self._whole_max is not None and length > self._whole_max:
            self._end(RequestEntityTooLarge())

    def append(self, data: bytes) -> None:
        """Add received bytes."""
        self._held += data
        self._check_whole()
        if len(self._held) >= _HELD_BYTES and not self._is_awaited:
            self._room.clear()
        self._news.set()

    def set_complete(self) -> None:
        """Mark the body as complete."""
        self._end(None)

    def cut(self) -> None:
        """Note that the client has gone; a body that is already complete stays valid."""
        if not self._is_over:
            self._end(InvalidBody(CUT))

    def _end(self, error: Exception | None) -> None:
        self._is_over, self._error = True, self._error or error
        if self._error is None:
            self._room.set()
        else:
            self._room.clear()  # a refused body is not received
        self._news.set()

    def clear(self) -> None:
        """Release the bytes that were read."""
        self._held.clear()
        self._room.set()

    def pace(self, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Make a ``receive`` that waits until earlier bytes have been read."""

        async def receive_paced() -> Any:
            await self._room.wait()
            return await receive()

        return receive_paced


class _Checked:
    """The application; refuses every request if it would not be protected as declared."""

    def __init__(self, app: CaptureMiddleware, check: Callable[[], None]) -> None:
        self.app = app
        self._check = check
        self._is_checked = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self._is_checked and scope["type"] != "lifespan":
            self._check()
            self._is_checked = True
        await self.app(scope, receive, send)


class _Reach:
    """Decides whether a request may reach a command: always, since Quart routes inside."""

    def __call__(self, scope: Any) -> bool:
        return True

    def learn(self) -> None:
        """Do nothing: no request was missed."""


def _check_app(app: Any, *, or_none: bool = False) -> None:
    if not (isinstance(app, Quart) or (or_none and app is None)):
        raise ConfigurationError(f"Semel(app, engine, caller=...): app must be a Quart, not {type(app).__name__}")


def _response_of(answer: Answer) -> Response:
    """Make an answer into a response for the application's own ``after_request``; the capture sends it."""
    return Response(answer.body, 200 if answer.status is None else answer.status, Headers(read_headers(answer.headers)))


def _note_exceptions(app: Quart) -> None:
    """Report exceptions from outside the view to the capture, even if an error handler answers them."""
    handle = app.handle_user_exception

    async def handle_noted(*args: Any) -> Any:  # the error alone; from Quart 0.23 on, the context before it
        _note(args[-1])
        return await handle(*args)

    async def note(sender: Any, exception: BaseException, **_: Any) -> None:
        _note(exception)

    app.handle_user_exception = handle_noted  # type: ignore[method-assign,assignment]
    got_request_exception.connect(note, app, weak=False)


def _note(error: BaseException) -> None:
    call = request.scope.get(CALL_KEY) if has_request_context() else None
    if isinstance(call, RouteCall):
        call.note(error)


_commands = semel_commands(ScriptInfo, lambda app: app.extensions[_EXTENSION].engine.backend.url)

__all__ = ["Policy", "Semel"]
