"""Starlette: the operation is declared on the endpoint, claimed inside it, and captured outside.

So what authentication and validation refuse is never recorded, and nothing is replayed to anybody whom the
application would not have let in. ``integrations.fastapi`` builds on this file.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast
from uuid import UUID

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router, compile_path

from semel.core.model import Answer, Effects
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import ConfigurationError
from semel.http.asgi.middleware import route_path
from semel.http.asgi.route import CALL_KEY, HEADERS_KEY, CaptureMiddleware, RouteCall
from semel.http.asgi.tasks import KeptAlive
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import PATH, UNSAFE_METHODS
from semel.http.settings import HttpSettings
from semel.integrations.endpoint import (
    DECLARED,
    DeclaredEndpoint,
    Filled,
    PermitHere,
    SessionHere,
    check_endpoint,
    check_sessions,
    declare_endpoint,
    filled_parameters,
    plain_function,
    without_slashes,
)
from semel.operations.http import Operations
from semel.policy import Policy
from semel.resuming.asgi import completer_for
from semel.resuming.worker import running
from semel.workers.reaper import Reaper

if TYPE_CHECKING:
    from semel.bulk.endpoint import BulkEndpoint
    from semel.bulk.run_async import AsyncBulk, AsyncHandler
    from semel.imports.endpoint import ImportEndpoint
    from semel.imports.run import Imports

F = TypeVar("F", bound=Callable[..., Any])

_METHODS: Final = ("GET", "HEAD", "OPTIONS", *UNSAFE_METHODS)  # those of an HTTPEndpoint


class Semel:
    """Protects the commands of a Starlette application, endpoint by endpoint.

    Parameters: ``engine``; ``caller``, a function of the request that returns a
    :class:`~semel.http.caller.Caller`, asked when authentication is over; further settings as
    :class:`~semel.http.settings.HttpSettings`.

    >>> from semel import AsyncEngine
    >>> from semel.http.caller import single_caller
    >>> semel = Semel(AsyncEngine.connect("memory://"), caller=single_caller)
    >>> @semel.command("notes.create", effects="idempotent")
    ... async def create_note(request: Request, permit: Permit = semel.permit) -> Response:
    ...     return Response(status_code=201)
    """

    permit: Any = PermitHere()
    atomic_session: Any = SessionHere()

    def __init__(self, engine: AsyncEngine, *, caller: Any = None, **settings: Any) -> None:
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError(f"an ASGI application needs an AsyncEngine, not {type(engine).__name__}")
        if "may" in settings:
            raise ConfigurationError(
                "may= is for the middlewares, which claim before the application decides; here an endpoint claims "
                "after its dependencies: let one of them refuse"
            )
        self.engine = engine
        self.surface = HttpSettings.of(engine, {"caller": caller, **settings})
        self.declared: dict[str, DeclaredEndpoint] = {}
        self._bulks: list[str] = []
        self.import_jobs: dict[str, Any] = {}  # by the path that their jobs are asked for at
        self.operations = Operations(self.surface, engine, lambda: (*self.declared, *self._bulks), Request)
        self.completes = False  # whether the application that this is installed in runs a completer
        self._kept_alive = KeptAlive()
        self._plain: dict[int, tuple[Any, str]] = {}  # endpoints as they were before they were declared

    # --- declaring ------------------------------------------------------------------------------

    def command(
        self, name: str, policy: Policy | None = None, *, paths: Literal["apart", "one"] | None = None, **options: Any
    ) -> Callable[[F], F]:
        """Declare an endpoint as an operation; ``options`` are those of :class:`~semel.policy.Policy`.

        Parameters: ``name`` of the operation, stable when paths and functions are renamed; ``policy``, or its
        options; ``paths`` whether the path counts in what is asked for: "apart", "one" where all of its paths mean the
        same, or None: it counts where the application routes to the endpoint by several templates. Write it *below* the
        framework's own decorator.

        Raises PolicyError and ConfigurationError, when the application is built.
        """
        declared = declare_endpoint(
            self.engine, self.surface, name, policy, options, paths=paths, taken=(*self.declared, *self._bulks)
        )
        self.declared[name] = declared
        endpoints: list[object] = []

        def declare(endpoint: F) -> F:
            if endpoints:
                raise ConfigurationError(f"two operations are named {name!r}: their keys would meet")
            endpoints.append(endpoint)
            self._plain[id(endpoint)] = (endpoint, name)
            check_endpoint(endpoint)
            return cast(F, self._wrap(endpoint, declared))

        return declare

    def bulk(
        self,
        bulk: AsyncBulk,
        handler: AsyncHandler,
        *,
        body_bytes_max: int = 64 * 1024 * 1024,
        items_at: str | None = None,
        counts: Sequence[str] | None = None,
    ) -> BulkEndpoint:
        """A list of items as one command: ``semel.bulk(approvals, approve).answer`` is an endpoint.

        Parameters: ``bulk`` on this engine; ``handler`` a coroutine function of an item; ``body_bytes_max`` of a list;
        ``items_at`` where its items are in an object, such as ``"/items"`` for ``{"items": [...]}`` (an array by itself
        is taken, too); ``counts`` names of request headers that count, by default the application's.

        Raises ConfigurationError, when the application is built.
        """
        from semel.bulk.endpoint import bulk_endpoint  # which answers in Starlette's terms

        made = bulk_endpoint(
            self.engine,
            self.surface,
            self._kept_alive,
            bulk,
            handler,
            body_bytes_max=body_bytes_max,
            items_at=items_at,
            counts=counts,
        )
        name = bulk.policy.operation
        if name in self.declared or name in self._bulks:
            raise ConfigurationError(f"two operations are named {name!r}: their keys would meet")
        self._bulks.append(name)
        return made

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
        """Take files at a path, answer questions about their jobs, and run the jobs beside the application.

        Parameters: ``imports`` on this engine, with a handler; ``path`` of uploads, such as
        ``"/suppliers/{supplier}/imports"``; ``supplier`` where its code is: ``"path:supplier"``, ``"header:NAME"``,
        ``"query:NAME"`` or a function of the request; ``may`` a function of the request and the supplier's code that
        says whether this caller may send and see its files; ``jobs_path`` of the questions; ``idle_seconds`` how long a
        client may send nothing; ``dependencies`` of FastAPI, such as the one that authenticates, and ``responses`` that
        they may give, for the document.

        Raises ConfigurationError, when the application is built.
        """
        from semel.imports.endpoint import add_imports  # which answers in Starlette's terms

        return add_imports(
            self,
            app,
            imports,
            path=path,
            supplier=supplier,
            may=may,
            jobs_path=jobs_path,
            idle_seconds=idle_seconds,
            dependencies=dependencies,
            responses=responses,
        )

    def filled(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Filled:
        """The parameters of an endpoint that Semel fills. Raises ConfigurationError where it cannot."""
        filled = filled_parameters(endpoint)
        atomic = declared.policy.terms.effects is Effects.ATOMIC
        check_sessions(endpoint, filled.sessions, atomic=atomic, on_sqlite=self.engine.backend.name == "sqlite")
        return filled

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        filled = self.filled(endpoint, declared)

        @functools.wraps(endpoint)
        async def claimed(*args: Any) -> Any:
            # The request comes last: of a method, such as HTTPEndpoint.post, the instance comes first.
            return await self.serve(endpoint, declared, args[-1], args, {}, filled)

        setattr(claimed, DECLARED, declared)
        return claimed

    # --- serving --------------------------------------------------------------------------------

    async def serve(
        self,
        endpoint: Callable[..., Any],
        declared: DeclaredEndpoint,
        request: Request,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        filled: Filled,
    ) -> Any:
        """Claim, then call the endpoint; or return the answer that stands in its way."""
        call = request.scope.get(CALL_KEY)
        if request.method not in UNSAFE_METHODS:
            raise ConfigurationError(
                f"the operation {declared.name!r} is called by {request.method}, "
                f"but {request.method} is no command; commands are {', '.join(UNSAFE_METHODS)}"
            )
        if not isinstance(call, RouteCall):
            raise ConfigurationError(
                f"the operation {declared.name!r} is called without its capture; call semel.install(app) once"
            )
        values = request.path_params
        if declared.policy.key_from is not None or declared.policy.reference_from is not None:
            # As the endpoint gets them: 7 and 07 name one invoice, and so does a UUID in upper and in lower case.
            values = {**values, **{name: kwargs[name] for name in values if type(kwargs.get(name)) in (int, UUID)}}
        params = tuple(sorted((name, str(value)) for name, value in values.items()))
        if declared.route.counts_path:
            params = (*params, (PATH, _path_of(request.scope)))
        claimed = await call.claim(self.surface, declared.route, params, request)
        if isinstance(claimed, Answer):
            return response_of(claimed)
        kwargs = {**kwargs, **dict.fromkeys(filled.permits, claimed)}
        try:
            if claimed is None:
                return await _call(endpoint, args, {**kwargs, **dict.fromkeys(filled.sessions)})
            return await self._run(endpoint, claimed, args, kwargs, filled.sessions)
        except BaseException as error:
            call.failed(error)
            raise

    async def _run(
        self,
        endpoint: Callable[..., Any],
        permit: Permit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sessions: tuple[str, ...],
    ) -> Any:
        if permit.effects is not Effects.ATOMIC:
            return await _call(endpoint, args, kwargs)
        async with asyncio.timeout(max(0.0, permit.deadline_monotonic - time.monotonic())):
            if not sessions:
                return await _call(endpoint, args, kwargs)
            on_sqlite = self.engine.backend.name == "sqlite"
            call = _call_with_session if on_sqlite else _call_with_async_session
            return await call(endpoint, permit.connection, args, kwargs, sessions)

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

        Parameters: ``operations_path`` where the status resource is served (None: nowhere). The caller function
        must know the caller there too: an authentication *middleware* has run, a dependency has not. ``reap``
        runs a :class:`~semel.workers.reaper.Reaper` with the application; False where another process does.
        ``complete`` runs a :class:`~semel.resuming.worker.Completer` of its resumable operations likewise; False where
        ``semel worker --complete`` does.
        """
        self.completes = complete
        self.check_routes(app)
        app.add_middleware(
            CaptureMiddleware,
            engine=self.engine,
            may_claim=_may_claim,
            kept_alive=self._kept_alive,
            surface=self.surface,
            bytes_max=self._bytes_max,
            may_reach=Reach(app),
        )
        _link_errors(app)
        _manage(app, self, self._kept_alive, reap=reap, complete=complete)
        if operations_path is not None:
            one = f"{operations_path}/{{operation_id}}"
            app.router.routes.append(StarletteRoute(f"{operations_path}/{PAGE_NAME}", tell_problems, methods=["GET"]))
            app.router.routes.append(StarletteRoute(operations_path, self._by_key, methods=["GET"]))
            app.router.routes.append(StarletteRoute(one, self._by_id, methods=["GET"]))

    def check_routes(self, app: Starlette) -> None:
        """Refuse an application that routes to an endpoint as it was before ``@command`` wrapped it, or to a command
        by a method that is none.

        Raises ConfigurationError: the two decorators stand in the wrong order, so nothing would be protected; or GET,
        HEAD or OPTIONS would reach a command, and each such request would fail.
        """
        templates: dict[str, set[str]] = {}
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
                    f"the operation {declared.name!r} is routed to by {', '.join(reads)}, which is no command; "
                    f"route to it by one of {', '.join(UNSAFE_METHODS)}, such as methods=['POST'], and serve what "
                    "only reads from another endpoint"
                )
            found = self._plain.get(id(endpoint))
            if found is not None and found[0] is endpoint:
                raise ConfigurationError(
                    f"the operation {found[1]!r} is not protected: write @semel.command below the framework's "
                    "decorator, next to the function"
                )

    def _bytes_max(self, endpoint: Any, method: str) -> tuple[int, bool]:
        """The longest body that a command of this endpoint may have, and whether the endpoint is known to be one."""
        if inspect.isclass(endpoint):
            endpoint = getattr(endpoint, method.lower(), None)
        declared = getattr(endpoint, DECLARED, None)
        if isinstance(declared, DeclaredEndpoint):
            return declared.policy.body_bytes_max, True
        return max((each.policy.body_bytes_max for each in self.declared.values()), default=0), False

    async def _by_key(self, request: Request) -> Response:
        return response_of(await self.operations.by_key(request.scope.get("query_string", b""), request))

    async def _by_id(self, request: Request) -> Response:
        return response_of(await self.operations.by_id(request.path_params["operation_id"], request))


async def tell_problems(request: Request) -> Response:
    """The page about the codes of problem documents, for everybody."""
    return response_of(problem_page())


def endpoints_of(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[object, frozenset[str], str]]:
    """Every endpoint that an application routes to, mounted and included ones too, with the methods it is called by and
    the template of its path.
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


def _path_of(scope: Any) -> str:
    """The path within the application."""
    root = scope.get("app_root_path", scope.get("root_path", ""))
    return without_slashes(scope["path"].removeprefix(root))


def _may_claim(endpoint: object) -> bool:
    """Whether the body must be kept for this endpoint: not yet known, declared, or itself an application."""
    return hasattr(endpoint, DECLARED) or not inspect.isroutine(endpoint)


class Reach:
    """Whether a request may reach an endpoint that claims, judged by its method and path before it is routed.

    It errs on the side of yes: an application mounted whose routes nobody can see, a route of a kind of its own. Where
    an endpoint that it did not foresee has claimed (a function that calls a command), it says yes to everything.
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
        """An endpoint has claimed that was not foreseen."""
        self._anywhere = True


_REST: Final = "/{semel_rest:path}"


def _places(routes: Iterable[Any], prefix: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The path templates, and the methods if only some, under which an endpoint may claim."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        router = getattr(route, "original_router", None)  # FastAPI keeps included routers whole
        if router is not None:
            yield from _places(router.routes, prefix + getattr(route.include_context, "prefix", ""))
        elif getattr(route, "endpoint", None) is not None:
            claiming = [
                methods
                for endpoint, methods, _ in endpoints_of([route])
                if _may_claim(endpoint) and not (inspect.isclass(endpoint) and issubclass(endpoint, HTTPEndpoint))
            ]
            if claiming:
                yield path, frozenset().union(*claiming) if all(claiming) else frozenset()
        elif getattr(route, "routes", None):
            yield from _places(route.routes, path)
        else:
            yield path.rstrip("/") + _REST, frozenset()


def _link_errors(app: Starlette) -> None:
    """Give the framework's own 500 of a command the headers of its other answers: it is made outside the capture."""
    build = app.build_middleware_stack

    def build_linked() -> Any:
        outermost = build()
        if isinstance(outermost, ServerErrorMiddleware):
            if outermost.handler is not None:
                outermost.handler = _linked_handler(outermost.handler)
            outermost.error_response = _linked(outermost.error_response)  # type: ignore[method-assign,assignment]
            outermost.debug_response = _linked(outermost.debug_response)  # type: ignore[method-assign,assignment]
        return outermost

    app.build_middleware_stack = build_linked  # type: ignore[method-assign]


def _linked(respond: Callable[[Request, Exception], Response]) -> Callable[[Request, Exception], Response]:
    def respond_linked(request: Request, error: Exception) -> Response:
        return _with_link(request, respond(request, error))

    return respond_linked


def _linked_handler(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def handle_linked(request: Request, error: Exception) -> Response:
        return _with_link(request, await _call(handler, (request, error), {}))

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
                async with running(completer_for(engine, app, routes, lambda: state)), _importing(semel):
                    yield state
        finally:
            await kept_alive.close()
            await engine.close()

    app.router.lifespan_context = lifespan


@asynccontextmanager
async def _importing(semel: Semel) -> AsyncIterator[None]:
    """Run the application's imports meanwhile."""
    async with AsyncExitStack() as stack:
        for jobs in semel.import_jobs.values():
            from semel.imports.worker import ImportWorker

            for endpoint in jobs.endpoints.values():
                await stack.enter_async_context(ImportWorker(endpoint.imports))
        yield


async def _call(endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(plain_function(endpoint)):
        return await endpoint(*args, **kwargs)
    result = await run_in_threadpool(endpoint, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def _call_with_session(
    endpoint: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> Any:
    """Call the endpoint with a session of SQLAlchemy's; what the session holds is flushed when the endpoint returns."""
    from semel.stores.sql.sqlalchemy import session_on

    with session_on(connection, expire_on_commit=False) as session:
        result = await _call(endpoint, args, {**kwargs, **dict.fromkeys(names, session)})
        session.commit()  # of SQLite, which waits for nothing inside the unit
        return result


async def _call_with_async_session(
    endpoint: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> Any:
    """As ``_call_with_session``, with an AsyncSession."""
    from semel.stores.sql.sqlalchemy_async import async_session_on

    async with async_session_on(connection) as session:
        result = await _call(endpoint, args, {**kwargs, **dict.fromkeys(names, session)})
        await session.commit()
        return result


def response_of(answer: Answer) -> Response:
    """An answer as a Starlette response, with exactly its own headers."""
    response = Response(answer.body, status_code=200 if answer.status is None else answer.status)
    if any(name == b"content-length" for name, _ in answer.headers) or not answer.body:
        response.raw_headers = list(answer.headers)
    else:
        response.raw_headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    return response
