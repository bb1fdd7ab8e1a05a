"""Litestar: a plugin. The operation is declared on the route handler's function, claimed after its guards, its
dependencies and validation, and captured around the handler.

    semel = Semel(AsyncEngine.connect("sqlite:///app.db"), caller=lambda request: Caller(request.user.id))

    @post("/payments")
    @semel.command("payments.create", effects="external")
    async def create_payment(data: Payment, permit: Permit = semel.permit) -> Receipt: ...

    app = Litestar([create_payment], plugins=[semel])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, Unpack, cast

from litestar import Litestar, Request, Response, get
from litestar.concurrency import sync_to_thread
from litestar.config.app import AppConfig
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.middleware import DefineMiddleware
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.http.asgi.route import CALL_KEY, CaptureMiddleware
from semel.http.caller import Caller, single_caller
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import UNSAFE_METHODS
from semel.http.settings import EndpointSettings
from semel.integrations.asgi_endpoint import EndpointCommands, may_claim
from semel.integrations.endpoint import DECLARED, DeclaredEndpoint, annotations_of, plain_function, without_slashes
from semel.operations.http import Operations
from semel.policy import Policy
from semel.resuming.asgi import completer_for
from semel.resuming.worker import running
from semel.workers.reaper import Reaper

_REQUEST: Final = "request"  # the name by which Litestar gives a handler its request


class Semel(EndpointCommands[Response[Any]], InitPlugin, ReceiveRoutePlugin):
    """Protects the commands of a Litestar application, handler by handler: give it to the application's ``plugins``.

        Parameters: ``engine``; ``caller``, a function of the request that returns a
        :class:`~semel.http.caller.Caller`, asked when guards and dependencies are over; ``operations_path`` where the
        status of operations is served (None: nowhere), behind ``guards``; ``reap`` runs a
        :class:`~semel.workers.reaper.Reaper` with the application, ``complete`` a
        :class:`~semel.resuming.worker.Completer` of its resumable operations; further settings as
        :class:`~semel.http.settings.HttpSettings`.

        >>> from litestar import Litestar, post
        >>> from semel import AsyncEngine
        >>> from semel.http.caller import Caller, single_caller
    from semel.http.settings import EndpointSettings
        >>> semel = Semel(AsyncEngine.connect("memory://?persistence=none"), caller=single_caller)
        >>> @post("/notes")
        ... @semel.command("notes.create", effects="idempotent")
        ... async def create_note(data: dict[str, str]) -> dict[str, str]:
        ...     return data
        >>> app = Litestar([create_note], plugins=[semel])
    """

    way = "give the Semel object to the application: Litestar(..., plugins=[semel])"

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        caller: Callable[[Any], Caller | None] | None = None,
        operations_path: str | None = "/operations",
        guards: Sequence[Any] = (),
        reap: bool = True,
        complete: bool = True,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        super().__init__(engine, caller=_reading(caller), **settings)
        self._operations_path = operations_path
        self._guards = list(guards)
        self._reap = reap
        self._templates: dict[str, set[str]] = {}  # the paths that each operation is routed to by
        self.completes = complete
        self.operations = Operations(
            self.surface, engine, lambda: tuple(self.declared), lambda scope: _Asked(Request(scope))
        )

    # --- endpoints --------------------------------------------------------------------------------

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        if isinstance(endpoint, BaseRouteHandler):
            raise ConfigurationError(
                f"the operation {declared.name!r} is not protected: write @semel.command below @post, next to the "
                "function"
            )
        filled = self.filled(endpoint, declared)
        hints = annotations_of(endpoint)
        has_request = _REQUEST in hints

        @functools.wraps(endpoint)
        async def claimed(*args: Any, **kwargs: Any) -> Any:
            request = kwargs[_REQUEST] if has_request else kwargs.pop(_REQUEST)
            return await self.serve(endpoint, declared, request, args, kwargs, filled)

        signature = inspect.signature(endpoint)
        ours = (*filled.permits, *filled.sessions)
        kept = [each for each in signature.parameters.values() if each.name not in ours]
        if not has_request:
            kept.append(inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request[Any, Any, Any]))
        kept.sort(key=lambda each: each.kind)  # a parameter may follow the permit
        shown = [each.replace(annotation=hints.get(each.name, each.annotation)) for each in kept]
        claimed.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=shown, return_annotation=hints["return"]
        )
        seen = {each.name: each.annotation for each in shown if each.annotation is not inspect.Parameter.empty}
        if hints["return"] is not inspect.Signature.empty:
            seen["return"] = hints["return"]
        claimed.__annotations__ = seen
        setattr(claimed, DECLARED, declared)
        return claimed

    async def _in_thread(self, endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await sync_to_thread(endpoint, *args, **kwargs)

    def _response(self, answer: Answer) -> Response[bytes]:
        return _response_of(answer)

    def _asked(self, request: Request[Any, Any, Any]) -> Mapping[str, Any]:
        return _Asked(request)

    # --- the plugin -------------------------------------------------------------------------------

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the capture, the engine's life and the status of operations to an application."""
        app_config.middleware.insert(0, DefineMiddleware(_Capture, semel=self))
        app_config.lifespan.insert(0, self._lifespan)
        if self._operations_path is not None:
            path, guards = self._operations_path, self._guards

            @get(path, include_in_schema=False, guards=guards, name="semel.operations")
            async def find_operation(request: Request[Any, Any, Any]) -> Response[bytes]:
                return _response_of(
                    await self.operations.by_key(request.scope.get("query_string", b""), _Asked(request))
                )

            @get(f"{path}/{PAGE_NAME}", include_in_schema=False, name="semel.problems")
            async def tell_problems() -> Response[bytes]:
                return _response_of(problem_page())

            @get(f"{path}/{{operation_id:str}}", include_in_schema=False, guards=guards, name="semel.operation")
            async def read_operation(request: Request[Any, Any, Any]) -> Response[bytes]:
                operation_id = str(request.path_params["operation_id"])
                return _response_of(await self.operations.by_id(operation_id, _Asked(request)))

            app_config.route_handlers.extend([find_operation, tell_problems, read_operation])
        return app_config

    @asynccontextmanager
    async def _lifespan(self, app: Litestar) -> AsyncIterator[None]:
        engine = self.engine
        try:
            await engine.open()
            routes = [each.route for each in self.declared.values()] if self.completes else []
            # Litestar and Semel write down the same protocol, each in its own words.
            completer = completer_for(engine, app, routes, lambda: {})  # type: ignore[arg-type]
            async with Reaper(engine) if self._reap else nullcontext(), running(completer):
                yield
        finally:
            await self._kept_alive.close()
            await engine.close()

    def receive_route(self, route: BaseRoute) -> None:
        """Look at a route that the application registers.

        Raises ConfigurationError where a command would not be protected, or could not be called: it is routed to by
        GET, HEAD or OPTIONS; its answers are cached by Litestar; or the function is as it was before
        ``@semel.command`` wrapped it.
        """
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            self._check(route.path, handler)

    def _check(self, path: str, handler: HTTPRouteHandler) -> None:
        endpoint = plain_function(handler.fn)
        found = self._plain.get(id(endpoint))
        if found is not None and found[0] is endpoint:
            raise ConfigurationError(
                f"the operation {found[1]!r} is not protected: write @semel.command below @post, next to the function"
            )
        declared = getattr(endpoint, DECLARED, None)
        if not isinstance(declared, DeclaredEndpoint):
            return
        reads = sorted(str(method) for method in set(handler.http_methods).difference(UNSAFE_METHODS))
        if reads:
            raise ConfigurationError(
                f"the operation {declared.name!r} is routed to by {', '.join(reads)}, which is no command; use one of "
                f"{', '.join(UNSAFE_METHODS)}, and serve what only reads from another handler"
            )
        if handler.cache:
            raise ConfigurationError(
                f"the operation {declared.name!r} has cache=, which would give one caller's answer to another; leave "
                "it out: a retry is answered by its key"
            )
        if declared.paths is None:
            spellings = self._templates.setdefault(declared.name, set())
            spellings.add(without_slashes(path))
            if len(spellings) > 1:
                declared.route.count_path()


class _Asked(Mapping[str, Any]):
    """A request of Litestar's, which is no mapping of its scope as Semel asks for."""

    def __init__(self, request: Request[Any, Any, Any]) -> None:
        self.request = request

    def __getitem__(self, name: str) -> Any:
        return cast("Mapping[str, Any]", self.request.scope)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.request.scope)

    def __len__(self) -> int:
        return len(self.request.scope)


def _reading(caller: Any) -> Any:
    """A caller function of the application's gets Litestar's request; one of Semel's own reads the scope."""
    if not callable(caller) or getattr(caller, "__module__", None) == single_caller.__module__:
        return caller

    @functools.wraps(caller)
    def read(asked: _Asked) -> Any:
        return caller(asked.request)

    return read


class _Capture:
    """The capture around one route. Litestar has found the handler by then: it says whether a command may follow."""

    def __init__(self, app: ASGIApp, semel: Semel) -> None:
        self._capture = CaptureMiddleware(
            app,  # type: ignore[arg-type]
            semel.engine,
            may_claim,
            semel._kept_alive,
            semel.surface,
            semel._bytes_max,
            _Reach(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        handler = scope.get("route_handler")
        fn = plain_function(handler.fn) if isinstance(handler, HTTPRouteHandler) else None
        await self._capture({**scope, "endpoint": fn}, receive, send)  # type: ignore[arg-type]


class _Reach:
    """Whether a request may reach a command: its handler is known."""

    _anywhere = False

    def __call__(self, scope: Any) -> bool:
        return self._anywhere or hasattr(scope.get("endpoint"), DECLARED) or CALL_KEY in scope

    def learn(self) -> None:
        """A handler has called a command's function."""
        self._anywhere = True


def _response_of(answer: Answer) -> Response[bytes]:
    """An answer as a Litestar response."""
    headers: dict[str, str] = {}
    for raw, value in answer.headers:
        name = raw.decode("latin-1")
        headers[name] = ", ".join((*([headers[name]] if name in headers else []), value.decode("latin-1")))
    media_type = headers.pop("content-type", "application/octet-stream")
    headers.pop("content-length", None)
    status = 200 if answer.status is None else answer.status
    return Response(answer.body, status_code=status, headers=headers, media_type=media_type)


__all__ = ["Policy", "Semel"]
