"""Starlette: the operation is declared on the endpoint, claimed inside it, and captured outside.

So Semel never records requests that authentication or validation refuse, and replays nothing to a caller whom the
application would refuse. ``integrations.fastapi`` builds on this file.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router, compile_path

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.http.asgi.disconnects import KeptAlive
from semel.http.asgi.middleware import route_path
from semel.http.asgi.request import AsgiRequest, pieces_until
from semel.http.asgi.route import HEADERS_KEY, CaptureMiddleware
from semel.http.caller import Caller
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import UNSAFE_METHODS
from semel.http.settings import EndpointSettings
from semel.http.spelling import without_slashes
from semel.integrations.asgi_endpoint import EndpointCommands, Served, call_endpoint, may_claim
from semel.integrations.endpoint import (
    DECLARED,
    DeclaredEndpoint,
    count_bulk_paths,
)
from semel.operations.http import Operations
from semel.resuming.asgi import completer_for
from semel.resuming.worker import running
from semel.retention.worker import Reaper

if TYPE_CHECKING:
    from semel.bulk.endpoint import AsyncTold
    from semel.imports.endpoint import AddRoute, ImportEndpoint
    from semel.imports.run import Imports

F = TypeVar("F", bound=Callable[..., Any])

_METHODS: Final = ("GET", "HEAD", "OPTIONS", *UNSAFE_METHODS)  # those of an HTTPEndpoint


class Semel(EndpointCommands[Response]):
    """Protects the commands of a Starlette application, endpoint by endpoint.

    Parameters: ``engine``; ``caller``, a function of the request that returns a
    :class:`~semel.http.caller.Caller`, called after authentication; further settings as
    :class:`~semel.http.settings.HttpSettings`.

    >>> from semel import AsyncEngine
    >>> from semel.http.caller import single_caller
    >>> semel = Semel(AsyncEngine.connect("memory://"), caller=single_caller)
    >>> @semel.command("notes.create", effects="idempotent")
    ... async def create_note(request: Request, permit: Permit = semel.permit) -> Response:
    ...     return Response(status_code=201)
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        caller: Callable[[Request], Caller | None] | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        super().__init__(engine, caller=caller, **settings)
        self.operations = Operations(self.surface, engine, lambda: (*self.declared, *self._bulks), Request)

    async def _in_thread(self, endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await in_threadpool(endpoint, args, kwargs)

    def _response(self, answer: Answer) -> Response:
        return response_of(answer)

    # --- declaring ------------------------------------------------------------------------------

    def imports(
        self,
        app: Starlette,
        imports: Imports,
        *,
        path: str,
        supplier: str | Callable[[Request], object],
        may: Callable[[Request, str], Any],
        jobs_path: str = "/imports",
        idle_seconds: float = 60.0,
        dependencies: Sequence[Any] = (),
        responses: Mapping[int | str, dict[str, Any]] = MappingProxyType({}),
    ) -> ImportEndpoint:
        """Take files at a path, report on their jobs, and run the jobs beside the application.

        Parameters: ``imports`` on this engine, with a handler; ``path`` of uploads, such as
        ``"/suppliers/{supplier}/imports"``; ``supplier`` where its code is: ``"path:supplier"``, ``"header:NAME"``,
        ``"query:NAME"`` or a function of the request; ``may`` a function of the request and the supplier's code that
        says whether this caller may send and see its files; ``jobs_path`` of the questions; ``idle_seconds`` how long a
        client may send nothing; ``dependencies`` of FastAPI, such as the one that authenticates, and ``responses`` that
        they may give, for the document.

        Raises ConfigurationError, when the application is built.
        """
        from semel.imports.endpoint import add_imports  # which only applications with imports need

        return add_imports(
            self,
            self._adder(app, dependencies, responses),
            imports,
            path=path,
            supplier=supplier,
            may=may,
            jobs_path=jobs_path,
            idle_seconds=idle_seconds,
        )

    def _adder(
        self, app: Starlette, dependencies: Sequence[Any], responses: Mapping[int | str, dict[str, Any]]
    ) -> AddRoute:
        if dependencies or responses:
            raise ConfigurationError(
                "dependencies and responses are FastAPI's; in Starlette a middleware authenticates"
            )

        def add(path: str, method: str, respond: Any, endpoint: ImportEndpoint | None) -> None:
            app.router.routes.append(StarletteRoute(path, self._serve("import", respond, endpoint), methods=[method]))

        return add

    def _endpoint(self, respond: Callable[[AsgiRequest], Awaitable[Answer | AsyncTold]]) -> Served[Response]:
        async def answer(request: Request) -> Response:
            told = await respond(
                AsgiRequest(
                    request,
                    request,
                    request.scope["headers"],
                    request.path_params,
                    request.scope.get("query_string", b""),
                    lambda: pieces_until(request.stream(), ClientDisconnect),
                )
            )
            if isinstance(told, Answer):
                return response_of(told)
            response = StreamingResponse(told.pieces, status_code=told.status)
            response.raw_headers = list(told.headers)
            return response

        return answer

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        filled = self.fill_parameters(endpoint, declared)

        @functools.wraps(endpoint)
        async def serve_claimed(*args: Any) -> Any:
            # The request comes last: methods, such as HTTPEndpoint.post, get the instance first.
            return await self.serve(endpoint, declared, args[-1], args, {}, filled)

        setattr(serve_claimed, DECLARED, declared)
        return serve_claimed

    # --- installing -----------------------------------------------------------------------------

    def install(
        self,
        app: Starlette,
        *,
        operations_path: str | None = "/operations",
        reap: bool = True,
        complete: bool = True,
    ) -> None:
        """Capture the application's answers, open and close the engine with it, and serve the operations' status.

        Parameters: ``operations_path`` where the status resource is served: where the answers link to, by
        ``Problems(operations_path=...)`` (None: by the application itself, or nowhere). The caller function
        must know the caller there too: an authentication *middleware* has run, a dependency has not. ``reap``
        runs a :class:`~semel.retention.worker.Reaper` with the application; False where another process does.
        ``complete`` runs a :class:`~semel.resuming.worker.Completer` of its resumable operations likewise; False where
        ``semel worker --complete`` does.
        """
        if any(each.kwargs.get("kept_alive") is self._kept_alive for each in app.user_middleware):
            raise ConfigurationError("semel.install(app) was called for this application already; call it once")
        operations_path = self.surface.problems.check_place(operations_path)
        self.completes = complete
        self.check_routes(app)
        app.add_middleware(
            CaptureMiddleware,
            engine=self.engine,
            may_claim=may_claim,
            kept_alive=self._kept_alive,
            surface=self.surface,
            bytes_max=self._bytes_max,
            may_reach=Reach(app),
        )
        _link_errors(app, self)
        _manage(app, self, self._kept_alive, reap=reap, complete=complete)
        if operations_path is not None:
            one = f"{operations_path}/{{operation_id}}"
            app.router.routes.append(StarletteRoute(f"{operations_path}/{PAGE_NAME}", tell_problems, methods=["GET"]))
            app.router.routes.append(StarletteRoute(operations_path or "/", self._by_key, methods=["GET"]))
            app.router.routes.append(StarletteRoute(one, self._by_id, methods=["GET"]))

    def check_routes(self, app: Starlette) -> None:
        """Refuse an application that routes to an endpoint without its ``@command``, or to a command by a read method.

        Raises ConfigurationError if the two decorators are in the wrong order, so that nothing would be protected, or
        if GET, HEAD or OPTIONS would reach a command, and each such request would fail.
        """
        templates: dict[str, set[str]] = {}
        if self._bulks:
            count_bulk_paths(
                (endpoint, path)
                for endpoint, methods, path in endpoints_of(app.routes)
                if not methods or methods.intersection(UNSAFE_METHODS)
            )
        for endpoint, methods, path in endpoints_of(app.routes):
            declared = getattr(endpoint, DECLARED, None)
            if isinstance(declared, DeclaredEndpoint) and declared.paths is None:
                spellings = templates.setdefault(declared.name, set())
                spellings.add(without_slashes(path))
                if len(spellings) > 1:
                    declared.route.count_path()
            reads = sorted(methods.difference(UNSAFE_METHODS))
            if reads and isinstance(declared, DeclaredEndpoint):
                raise ConfigurationError(
                    f"the operation {declared.name!r} is routed to by {', '.join(reads)}, which is not a command; "
                    f"route to it by one of {', '.join(UNSAFE_METHODS)}, such as methods=['POST'], and serve reads "
                    "from another endpoint"
                )
            found = self._plain.get(id(endpoint))
            if found is not None and found[0] is endpoint:
                raise ConfigurationError(
                    f"the operation {found[1]!r} is not protected: write @semel.command below the framework's "
                    "decorator, next to the function"
                )

    async def _by_key(self, request: Request) -> Response:
        return response_of(await self.operations.by_key(request.scope.get("query_string", b""), request))

    async def _by_id(self, request: Request) -> Response:
        return response_of(await self.operations.by_id(request.path_params["operation_id"], request))


async def tell_problems(request: Request) -> Response:
    """Serve the public page about the codes of problem documents."""
    return response_of(problem_page())


def endpoints_of(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[object, frozenset[str], str]]:
    """Yield every endpoint that an application routes to, mounted and included ones too, with its HTTP methods and the
    template of its path.
    """
    for route in routes:
        path = prefix + (getattr(route, "path", None) or "")
        endpoint = getattr(route, "endpoint", None)
        if inspect.isclass(endpoint):
            yield endpoint, frozenset(), path
            for method in _METHODS:
                if hasattr(endpoint, method.lower()):
                    yield getattr(endpoint, method.lower()), frozenset({method}), path
        elif endpoint is not None:
            yield endpoint, frozenset(getattr(route, "methods", None) or ()), path
        inner = getattr(getattr(route, "original_router", route), "routes", None)  # FastAPI keeps routers whole
        if inner:
            yield from endpoints_of(
                inner, path + (getattr(getattr(route, "include_context", None), "prefix", "") or "")
            )


class Reach:
    """Decides whether a request may reach an endpoint that claims, by its method and path before it is routed.

    It errs on the side of yes: for a mounted application whose routes cannot be read, and for a route of an unknown
    kind. Once an unforeseen endpoint has claimed (a function that calls a command), it says yes to everything.
    """

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._known = -1  # how many routes the application had when they were looked at
        self._places: list[tuple[frozenset[str], re.Pattern[str]]] = []
        self._anywhere = False

    def __call__(self, scope: MutableMapping[str, Any]) -> bool:
        router = self._app.router
        if len(router.routes) != self._known:
            self._known = len(router.routes)
            self._look(router)
        if self._anywhere:
            return True
        method, path = scope["method"], route_path(scope)
        return any((not methods or method in methods) and regex.match(path) for methods, regex in self._places)

    def _look(self, router: Router) -> None:
        try:
            self._places = [(methods, compile_path(path)[0]) for path, methods in _places(router.routes, "")]
        except ValueError:  # one name twice on a way through several mounts
            self._anywhere = True
        if getattr(router.default, "__func__", None) is not Router.not_found:
            self._anywhere = True

    def learn(self) -> None:
        """Note that an unforeseen endpoint has claimed."""
        self._anywhere = True


_REST: Final = "/{semel_rest:path}"


def _places(routes: Iterable[Any], prefix: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Find the path templates, and the methods if only some, under which an endpoint may claim."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        router = getattr(route, "original_router", None)  # FastAPI keeps included routers whole
        if router is not None:
            yield from _places(router.routes, prefix + getattr(route.include_context, "prefix", ""))
        elif getattr(route, "endpoint", None) is not None:
            claiming = [
                methods
                for endpoint, methods, _ in endpoints_of([route])
                if may_claim(endpoint) and not (inspect.isclass(endpoint) and issubclass(endpoint, HTTPEndpoint))
            ]
            if claiming:
                yield path, frozenset().union(*claiming) if all(claiming) else frozenset()
        elif getattr(route, "routes", None):
            yield from _places(route.routes, path)
        else:
            yield path.rstrip("/") + _REST, frozenset()


def _link_errors(app: Starlette, semel: Semel) -> None:
    """Add the headers of a command's other answers to the framework's own 500, which is made outside the capture.

    It also checks the application's routes before the first request, even without a lifespan.
    """
    build = app.build_middleware_stack

    def build_linked() -> Any:
        outermost = build()
        if isinstance(outermost, ServerErrorMiddleware):
            if outermost.handler is not None:
                outermost.handler = _link_async(outermost.handler)
            outermost.error_response = _link_sync(outermost.error_response)  # type: ignore[method-assign,assignment]
            outermost.debug_response = _link_sync(outermost.debug_response)  # type: ignore[method-assign,assignment]
        try:
            semel.check_routes(app)
        except ConfigurationError as error:
            return _Refusing(outermost, error)
        return outermost

    app.build_middleware_stack = build_linked  # type: ignore[method-assign]


class _Refusing:
    """Fails an application that is not protected as declared: at its lifespan, otherwise at each request."""

    def __init__(self, app: Any, error: ConfigurationError) -> None:
        self.app = app
        self._error = error

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            raise ConfigurationError(str(self._error))
        await self.app(scope, receive, send)


def _link_sync(respond: Callable[[Request, Exception], Response]) -> Callable[[Request, Exception], Response]:
    def respond_linked(request: Request, error: Exception) -> Response:
        return _with_link(request, respond(request, error))

    return respond_linked


def _link_async(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def handle_linked(request: Request, error: Exception) -> Response:
        return _with_link(request, await call_endpoint(handler, (request, error), {}, in_threadpool))

    return handle_linked


def _with_link(request: Request, response: Response) -> Response:
    if not (headers := request.scope.get(HEADERS_KEY, ())):
        return response
    linked = copy.copy(response)  # an application may answer every failure with the same one
    linked.raw_headers = [*response.raw_headers, *headers]
    return linked


def _manage(app: Starlette, semel: Semel, kept_alive: KeptAlive, *, reap: bool, complete: bool) -> None:
    inner = app.router.lifespan_context
    engine = semel.engine

    @asynccontextmanager
    async def lifespan(scope: Any) -> AsyncIterator[Any]:
        semel.check_routes(app)
        try:
            await engine.open()
            async with Reaper(engine) if reap else nullcontext(), inner(scope) as state:
                routes = [each.route for each in semel.declared.values()] if complete else []
                async with running(completer_for(engine, app, routes, lambda: state)), semel._importing():
                    yield state
        finally:
            await kept_alive.close()
            await engine.close()

    app.router.lifespan_context = lifespan


async def in_threadpool(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function in the framework's threads."""
    return await run_in_threadpool(function, *args, **kwargs)


def response_of(answer: Answer) -> Response:
    """Make an answer into a Starlette response, with exactly its own headers."""
    response = Response(answer.body, status_code=200 if answer.status is None else answer.status)
    if not answer.body or b"content-length" in dict(answer.headers):
        response.raw_headers = list(answer.headers)
    else:
        response.raw_headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    return response
