"""FastAPI: declare the operation on the path operation. Semel claims after dependencies and validation, captures the
answer around the application, and completes the OpenAPI document.

    semel = Semel(AsyncEngine.connect("sqlite:///app.db"), caller=from_state("caller"))

    @app.post("/payments", status_code=201)
    @semel.command("payments.create", effects="external")
    async def create_payment(payment: Payment, permit: Permit = semel.permit) -> Receipt: ...

    semel.install(app, dependencies=[Depends(authenticate)])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from semel.articles import name_type
from semel.errors import ConfigurationError
from semel.http.openapi import add_schemas, describe_operation, operation_responses
from semel.http.problems import PAGE_NAME
from semel.http.routing import UNSAFE_METHODS
from semel.integrations.endpoint import DECLARED, SERVED, DeclaredEndpoint, Filled, annotations_of, bulk_used_by
from semel.integrations.starlette import Semel as StarletteSemel
from semel.integrations.starlette import response_of, tell_problems
from semel.operations.http import BAD_QUERY, NOT_FOUND
from semel.policy import Policy

if TYPE_CHECKING:
    from semel.imports.endpoint import AddRoute, ImportEndpoint

_REQUEST: Final = "semel_request"


class Semel(StarletteSemel):
    """Protects the commands of a FastAPI application, path operation by path operation.

    Parameters: as :class:`semel.integrations.starlette.Semel`.
    """

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        filled = self.fill_parameters(endpoint, declared)
        hints = annotations_of(endpoint)
        # FastAPI fills one parameter with the request: the endpoint's own, where it has one.
        own = next((name for name, hint in hints.items() if _is_request(hint)), None)

        @functools.wraps(endpoint)
        async def serve_claimed(**kwargs: Any) -> Any:
            request = kwargs.pop(_REQUEST) if own is None else kwargs[own]
            return await self.serve(endpoint, declared, request, (), kwargs, filled)

        serve_claimed.__signature__ = _signature(endpoint, filled, hints, own)  # type: ignore[attr-defined]
        serve_claimed.__name__ = getattr(endpoint, "__name__", type(endpoint).__name__)
        setattr(serve_claimed, DECLARED, declared)
        return serve_claimed

    def install(
        self,
        app: Starlette,
        *,
        operations_path: str | None = "/operations",
        reap: bool = True,
        complete: bool = True,
        dependencies: Sequence[Any] = (),
    ) -> None:
        """Capture answers, open and close the engine with the application, serve the operations' status, and
        complete the OpenAPI document.

        Parameters: ``operations_path`` where the status resource is served: where the answers link to, by
        ``Problems(operations_path=...)`` (None: by the application itself, or nowhere); ``reap`` runs a
        :class:`~semel.retention.worker.Reaper` with the application, ``complete`` a
        :class:`~semel.resuming.worker.Completer` of its resumable operations; ``dependencies`` of that resource, such
        as the one that authenticates: ``[Depends(authenticate)]``.
        """
        if not isinstance(app, FastAPI):
            raise ConfigurationError(f"install takes a FastAPI application, not {name_type(app)}")
        operations_path = self.surface.problems.check_place(operations_path)
        super().install(app, operations_path=None, reap=reap, complete=complete)
        if operations_path is not None:
            settings: dict[str, Any] = {
                "methods": ["GET"],
                "dependencies": list(dependencies),
                "tags": ["operations"],
                "responses": operation_responses((BAD_QUERY, NOT_FOUND)),
            }
            app.add_api_route(
                operations_path or "/",
                self._find_operation,
                summary="The status of the command with this key or business reference",
                **settings,
            )
            app.add_api_route(f"{operations_path}/{PAGE_NAME}", tell_problems, methods=["GET"], include_in_schema=False)
            app.add_api_route(
                f"{operations_path}/{{operation_id}}",
                self._read_operation,
                summary="The status of an operation",
                **settings,
            )
        _complete_openapi(app)

    def _read_params(self, request: Request, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        # A dependency may take the parameter instead of the endpoint, and each by its own name.
        route = request.scope.get("route")
        if not isinstance(route, APIRoute):
            return kwargs
        included = request.scope.get("fastapi", {}).get("effective_route_context")  # has what include_router(...) adds
        return _read_by(getattr(included, "dependant", route.dependant), request.path_params)

    def _adder(
        self, app: Starlette, dependencies: Sequence[Any], responses: Mapping[int | str, dict[str, Any]]
    ) -> AddRoute:
        if not isinstance(app, FastAPI):
            return super()._adder(app, dependencies, responses)
        from semel.imports.http import describe_path

        def add(path: str, method: str, respond: Any, endpoint: ImportEndpoint | None) -> None:
            app.add_api_route(
                path,
                self._serve(respond.__name__, respond, endpoint),
                methods=[method],
                dependencies=list(dependencies),
                tags=["imports"],
                response_model=None,
                responses=dict(responses),
                description=respond.__doc__,
                openapi_extra=describe_path(path, reads=method == "GET"),
            )

        return add

    async def _find_operation(
        self, request: Request, key: str | None = None, reference: str | None = None, operation: str | None = None
    ) -> Response:
        """The status of the caller's own command with this key or business reference; `operation` where several fit."""
        return response_of(await self.operations.by_key(request.scope.get("query_string", b""), request))

    async def _read_operation(self, request: Request, operation_id: str) -> Response:
        """The status of one of the caller's own operations."""
        return response_of(await self.operations.by_id(operation_id, request))


def _read_by(dependant: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the path parameters as a function and its dependencies get them; prefer a value that is not a text.

    FastAPI has validated each of them before.
    """
    read: dict[str, Any] = {}
    for inner in dependant.dependencies:
        read |= _read_by(inner, given)
    for field in dependant.path_params:
        if field.alias in given:
            value, errors = field.validate(given[field.alias], {}, loc=())
            if not errors and (field.alias not in read or not isinstance(value, str)):
                read[field.alias] = value
    return read


def _is_request(hint: Any) -> bool:
    kind = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    return inspect.isclass(kind) and issubclass(kind, Request)


def _signature(
    endpoint: Callable[..., Any], filled: Filled, hints: dict[str, Any], own: str | None
) -> inspect.Signature:
    """Make the signature for FastAPI: without the parameters that Semel fills, with the request."""
    signature = inspect.signature(endpoint)
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in signature.parameters.values()):
        raise ConfigurationError(f"{endpoint!r} has positional-only parameters, which FastAPI cannot fill")
    kept = [
        # All by keyword, as FastAPI calls them, so that the order without the permit does not matter.
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name not in (*filled.permits, *filled.sessions)
    ]
    if own is None:
        kept.append(inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request))
    return signature.replace(parameters=kept, return_annotation=hints["return"])


def _complete_openapi(app: FastAPI) -> None:
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        if "x-semel" not in document:
            for path, methods, endpoint in _endpoints(app.routes, ""):
                for method in methods:
                    operation = document.get("paths", {}).get(path, {}).get(method.lower())
                    if operation is not None and method in UNSAFE_METHODS:
                        _describe(operation, endpoint)
            add_schemas(document)
            document["x-semel"] = {"documentation": "Commands are safe to retry with the same Idempotency-Key."}
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(operation: dict[str, Any], endpoint: Any) -> None:
    declared = getattr(endpoint, DECLARED, None)
    if isinstance(declared, DeclaredEndpoint):
        counts = declared.route.fingerprinter.recipe.headers
        describe_operation(operation, declared.name, declared.policy, counts=counts)
        return
    described = getattr(endpoint, SERVED, None) or bulk_used_by(endpoint)
    if described is not None:
        described.describe(operation)


def _endpoints(routes: Any, prefix: str) -> Iterator[tuple[str, set[str], Any]]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield prefix + route.path_format, route.methods or set(), route.endpoint
        elif hasattr(route, "original_router"):  # FastAPI keeps included routers whole since 0.13x
            inner = route.original_router
            yield from _endpoints(inner.routes, prefix + getattr(route.include_context, "prefix", ""))


__all__ = ["Policy", "Semel"]
