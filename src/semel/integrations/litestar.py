"""Litestar: a plugin. The operation is declared on the route handler's function, claimed after its guards, its
dependencies and validation, and captured around the handler.

    semel = Semel(AsyncEngine.connect("sqlite:///app.db"), caller=lambda request: Caller(request.user.id))

    @post("/payments")
    @semel.command("payments.create", effects="external")
    async def create_payment(data: Payment, permit: Permit = semel.permit) -> Receipt: ...

    app = Litestar([create_payment], plugins=[semel])
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from litestar import Litestar, Request, Response, get, post
from litestar.concurrency import sync_to_thread
from litestar.config.app import AppConfig
from litestar.exceptions import InternalServerException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.middleware import DefineMiddleware
from litestar.openapi.spec import Components, Operation
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.response import Stream
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, Empty, Receive, Scope, Send

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.http.asgi.request import AsgiRequest, pieces_until
from semel.http.asgi.route import CALL_KEY, CaptureMiddleware
from semel.http.caller import Caller, single_caller
from semel.http.openapi import add_schemas, describe_operation, operation_responses
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import UNSAFE_METHODS
from semel.http.settings import EndpointSettings
from semel.http.spelling import without_slashes
from semel.integrations.asgi_endpoint import EndpointCommands, Served, may_claim
from semel.integrations.endpoint import (
    DECLARED,
    DeclaredEndpoint,
    annotations_of,
    bulk_used_by,
    plain_function,
)
from semel.operations.http import BAD_QUERY, NOT_FOUND, Operations
from semel.policy import Policy
from semel.resuming.asgi import completer_for
from semel.resuming.worker import running
from semel.retention.worker import Reaper

if TYPE_CHECKING:
    from semel.bulk.endpoint import AsyncTold
    from semel.imports.endpoint import ImportEndpoint
    from semel.imports.run import Imports

_QUERY: Final = (
    "The status of the caller's own command with this key or business reference; `operation` where several fit."
)
_REQUEST: Final = "request"  # the name by which Litestar gives a handler its request


class Semel(EndpointCommands[Response[Any]], InitPlugin, ReceiveRoutePlugin):
    """Protects the commands of a Litestar application, handler by handler: give it to the application's ``plugins``.

    Parameters: ``engine``; ``caller``, a function of the request that returns a :class:`~semel.http.caller.Caller`,
    called after guards and dependencies; ``operations_path`` where the status of operations is served (None: nowhere),
    behind ``guards``; ``reap`` runs a :class:`~semel.retention.worker.Reaper` with the application, ``complete`` a
    :class:`~semel.resuming.worker.Completer` of its resumable operations; further settings as
    :class:`~semel.http.settings.HttpSettings`.

    >>> from litestar import Litestar, post
    >>> from litestar.params import JSONBody
    >>> from semel import AsyncEngine
    >>> from semel.http.caller import single_caller
    >>> semel = Semel(AsyncEngine.connect("memory://?persistence=none"), caller=single_caller)
    >>> @post("/notes")
    ... @semel.command("notes.create", effects="idempotent")
    ... async def create_note(data: JSONBody[dict[str, str]]) -> dict[str, str]:
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
        self._operations_path = self.surface.problems.check_place(operations_path)
        self._guards = list(guards)
        self._reap = reap
        self._templates: dict[str, set[str]] = {}  # the paths that each operation is routed to by
        self.completes = complete
        self.operations = Operations(
            self.surface, engine, lambda: (*self.declared, *self._bulks), lambda scope: _Asked(Request(scope))
        )

    # --- endpoints --------------------------------------------------------------------------------

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        if isinstance(endpoint, BaseRouteHandler):
            raise ConfigurationError(
                f"the operation {declared.name!r} is not protected: write @semel.command below @post, next to the "
                "function"
            )
        filled = self.fill_parameters(endpoint, declared)
        hints = annotations_of(endpoint)
        has_request = _REQUEST in hints

        @functools.wraps(endpoint)
        async def serve_claimed(*args: Any, **kwargs: Any) -> Any:
            request = kwargs[_REQUEST] if has_request else kwargs.pop(_REQUEST)
            return await self.serve(endpoint, declared, request, args, kwargs, filled)

        signature = inspect.signature(endpoint)
        ours = (*filled.permits, *filled.sessions)
        kept = [each for each in signature.parameters.values() if each.name not in ours]
        if not has_request:
            kept.append(inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request[Any, Any, Any]))
        kept.sort(key=lambda each: each.kind)  # a parameter may follow the permit
        shown = [each.replace(annotation=hints.get(each.name, each.annotation)) for each in kept]
        serve_claimed.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=shown, return_annotation=hints["return"]
        )
        seen = {each.name: each.annotation for each in shown if each.annotation is not inspect.Parameter.empty}
        if hints["return"] is not inspect.Signature.empty:
            seen["return"] = hints["return"]
        serve_claimed.__annotations__ = seen
        setattr(serve_claimed, DECLARED, declared)
        return serve_claimed

    async def _in_thread(self, endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await sync_to_thread(endpoint, *args, **kwargs)

    def _response(self, answer: Answer) -> Response[bytes]:
        return _response_of(answer)

    def _endpoint(self, respond: Callable[[AsgiRequest], Awaitable[Answer | AsyncTold]]) -> Served[Response[Any]]:
        async def answer(request: Request[Any, Any, Any]) -> Response[Any]:
            told = await respond(
                AsgiRequest(
                    request,
                    _Asked(request),
                    request.scope["headers"],
                    request.path_params,
                    request.scope.get("query_string", b""),
                    lambda: pieces_until(request.stream(), InternalServerException),
                )
            )
            if isinstance(told, Answer):
                return _response_of(told)
            headers, media_type = _headers_of(told.headers)
            return Stream(told.pieces, status_code=told.status, headers=headers, media_type=media_type)

        return answer

    def imports(
        self,
        app: Litestar,
        imports: Imports,
        *,
        path: str,
        supplier: str | Callable[[Request[Any, Any, Any]], object],
        may: Callable[[Request[Any, Any, Any], str], Any],
        jobs_path: str = "/imports",
        idle_seconds: float = 60.0,
        guards: Sequence[Any] = (),
    ) -> ImportEndpoint:
        """Take files at a path, report on their jobs, and run the jobs beside the application.

        Parameters: ``app`` that this plugin was given to; ``imports`` on this engine, with a handler; ``path`` of
        uploads, such as ``"/suppliers/{supplier}/imports"``; ``supplier`` where its code is: ``"path:supplier"``,
        ``"header:NAME"``, ``"query:NAME"`` or a function of the request; ``may`` a function of the request and the
        supplier's code that says whether this caller may send and see its files; ``jobs_path`` of the questions;
        ``idle_seconds`` how long a client may send nothing; ``guards`` that every request passes first.

        Raises ConfigurationError, when the application is built.
        """
        from semel.imports.endpoint import add_imports  # which only applications with imports need

        if not isinstance(app, Litestar) or self not in app.plugins:
            raise ConfigurationError(f"semel.imports takes the application of this plugin; {self.way}")

        def add(path: str, method: str, respond: Any, endpoint: ImportEndpoint | None) -> None:
            kind: Any = post if method == "POST" else get
            described = _describe_kind(Operation, lambda operation: _describe_import(operation, path, endpoint))
            app.register(
                kind(
                    re.sub(r"\{(\w+)\}", r"{\1:str}", path),
                    guards=list(guards),
                    status_code=200,
                    tags=["imports"],
                    description=inspect.cleandoc(respond.__doc__),
                    operation_class=described,
                    request_max_body_size=None,  # file_bytes_max says more, and an upload is read piece by piece
                )(self._serve(respond.__name__, respond, endpoint))
            )

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

    def _scope_of(self, request: Request[Any, Any, Any]) -> Mapping[str, Any]:
        return _Asked(request)

    # --- the plugin -------------------------------------------------------------------------------

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the capture, the engine's life, the status of operations and the problems' schema to an application."""
        app_config.middleware.insert(0, DefineMiddleware(_Capture, semel=self))
        app_config.lifespan.insert(0, self._lifespan)
        if self._operations_path is not None:
            path, guards = self._operations_path, self._guards

            described: dict[str, Any] = {"guards": guards, "tags": ["operations"]}

            @get(
                path,
                name="semel.operations",
                description=_QUERY,
                operation_class=_describe_kind(Operation, _describe_query),
                **described,
            )
            async def find_operation(request: Request[Any, Any, Any]) -> Response[bytes]:
                return _response_of(
                    await self.operations.by_key(request.scope.get("query_string", b""), _Asked(request))
                )

            @get(f"{path}/{PAGE_NAME}", include_in_schema=False, name="semel.problems")
            async def tell_problems() -> Response[bytes]:
                return _response_of(problem_page())

            @get(
                f"{path}/{{operation_id:str}}",
                name="semel.operation",
                description="The status of one of the caller's own operations.",
                operation_class=_describe_kind(Operation, _describe_status),
                **described,
            )
            async def read_operation(request: Request[Any, Any, Any]) -> Response[bytes]:
                operation_id = str(request.path_params["operation_id"])
                return _response_of(await self.operations.by_id(operation_id, _Asked(request)))

            app_config.route_handlers.extend([find_operation, tell_problems, read_operation])
        if app_config.openapi_config is not None:
            app_config.openapi_config = copy.copy(app_config.openapi_config)  # the default one is all applications'
            app_config.openapi_config.components = _Components.of(app_config.openapi_config.components)
        return app_config

    @asynccontextmanager
    async def _lifespan(self, app: Litestar) -> AsyncIterator[None]:
        engine = self.engine
        try:
            await engine.open()
            routes = [each.route for each in self.declared.values()] if self.completes else []
            # Litestar and Semel declare the same protocol with different types.
            completer = completer_for(engine, app, routes, lambda: {})  # type: ignore[arg-type]
            async with Reaper(engine) if self._reap else nullcontext(), running(completer), self._importing():
                yield
        finally:
            await self._kept_alive.close()
            await engine.close()

    def receive_route(self, route: BaseRoute) -> None:
        """Check a route that the application registers.

        Raises ConfigurationError if a command would be unprotected or could not be called: GET, HEAD or OPTIONS route
        to it; Litestar caches its answers; or the route has the undecorated function.
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
            bulk = bulk_used_by(endpoint)
            if bulk is not None:
                self._prepare_list(handler, bulk, path)
            return
        reads = sorted(str(method) for method in set(handler.http_methods).difference(UNSAFE_METHODS))
        if reads:
            raise ConfigurationError(
                f"the operation {declared.name!r} is routed to by {', '.join(reads)}, which is not a command; use one "
                f"of {', '.join(UNSAFE_METHODS)}, and serve reads from another handler"
            )
        if handler.cache:
            raise ConfigurationError(
                f"the operation {declared.name!r} has cache=, which would give one caller's answer to another; leave "
                "it out: a retry is answered by its key"
            )
        recipe = declared.route.fingerprinter.recipe
        handler.operation_class = _describe_kind(
            handler.operation_class,
            lambda operation: describe_operation(operation, declared.name, declared.policy, counts=recipe.headers),
        )
        if declared.paths is None:
            spellings = self._templates.setdefault(declared.name, set())
            spellings.add(without_slashes(path))
            if len(spellings) > 1:
                declared.route.count_path()

    def _prepare_list(self, handler: HTTPRouteHandler, bulk: Any, path: str) -> None:
        if not handler.http_methods <= set(UNSAFE_METHODS):
            return  # a page about the list, such as its progress
        spellings = self._templates.setdefault(bulk.bulk.policy.operation, set())
        spellings.add(without_slashes(path))
        bulk.counts_path |= len(spellings) > 1
        if handler.request_max_body_size is Empty:
            handler.request_max_body_size = bulk.taken.read_max  # it is read piece by piece

        def describe(operation: dict[str, Any]) -> None:
            operation.get("responses", {}).pop("201", None)  # Litestar's own guess
            bulk.describe(operation)

        handler.operation_class = _describe_kind(handler.operation_class, describe)


class _Asked(Mapping[str, Any]):
    """A Litestar request as a mapping of its scope, which Semel needs."""

    def __init__(self, request: Request[Any, Any, Any]) -> None:
        self.request = request

    def __getitem__(self, name: str) -> Any:
        return cast("Mapping[str, Any]", self.request.scope)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.request.scope)

    def __len__(self) -> int:
        return len(self.request.scope)


def _reading(caller: Any) -> Any:
    """Make a caller function of the scope; the application's own function gets Litestar's request."""
    if not callable(caller) or getattr(caller, "__module__", None) == single_caller.__module__:
        return caller

    @functools.wraps(caller)
    def read(asked: _Asked) -> Any:
        return caller(asked.request)

    return read


class _Capture:
    """The capture around one route, after Litestar has found the handler."""

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
    """Decides whether a request may reach a command, by its known handler."""

    _anywhere = False

    def __call__(self, scope: Any) -> bool:
        return self._anywhere or hasattr(scope.get("endpoint"), DECLARED) or CALL_KEY in scope

    def learn(self) -> None:
        """Note that a handler has called a command's function."""
        self._anywhere = True


def _response_of(answer: Answer) -> Response[bytes]:
    """Make an answer into a Litestar response."""
    headers, media_type = _headers_of(answer.headers)
    status = 200 if answer.status is None else answer.status
    return Response(answer.body, status_code=status, headers=headers, media_type=media_type)


def _headers_of(fields: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], str]:
    headers: dict[str, str] = {}
    for raw, value in fields:
        name = raw.decode("latin-1")
        headers[name] = ", ".join((*([headers[name]] if name in headers else []), value.decode("latin-1")))
    headers.pop("content-length", None)
    return headers, headers.pop("content-type", "application/octet-stream")


# --- the OpenAPI document ---------------------------------------------------------------------------


def _describe_kind(kind: type[Operation], describe: Callable[[dict[str, Any]], None]) -> type[Operation]:
    """Make an operation class whose objects are completed when they become part of the document."""
    if hasattr(kind, "is_semels"):
        return kind  # a handler under several paths

    class Described(kind):  # type: ignore[valid-type,misc]
        is_semels = True

        def to_schema(self) -> dict[str, Any]:
            operation: dict[str, Any] = super().to_schema()
            describe(operation)
            return operation

    return Described


class _Components(Components):
    """An application's components and the schemas that described operations refer to."""

    @classmethod
    def of(cls, given: Components | list[Components]) -> _Components:
        """These components, several as Litestar merges them."""
        merged = cls()
        for each in given if isinstance(given, list) else [given]:
            for name in (field.name for field in dataclasses.fields(each)):
                if value := getattr(each, name, None):
                    setattr(merged, name, {**(getattr(merged, name) or {}), **value})
        return merged

    def to_schema(self) -> dict[str, Any]:
        document = {"components": super().to_schema()}
        add_schemas(document)
        return document["components"]


def _describe_query(operation: dict[str, Any]) -> None:
    _describe_status(operation)
    for name in ("key", "reference", "operation"):
        operation.setdefault("parameters", []).append({"name": name, "in": "query", "schema": {"type": "string"}})


def _describe_status(operation: dict[str, Any]) -> None:
    found = operation_responses((BAD_QUERY, NOT_FOUND))
    operation["responses"] = {str(status): response for status, response in found.items()}


def _describe_import(operation: dict[str, Any], path: str, endpoint: ImportEndpoint | None) -> None:
    from semel.imports.http import describe_path

    operation |= describe_path(path, reads=endpoint is None)
    if endpoint is not None:
        endpoint.describe(operation)


__all__ = ["Policy", "Semel"]
