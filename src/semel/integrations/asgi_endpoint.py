"""The shared part of the ASGI frameworks: declares an operation on an endpoint, and claims inside it.

A framework's own file defines how an endpoint gets its arguments, the type of an answer, and how to run a function in a
thread.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, Unpack, cast

from semel.core.model import Answer, Effects
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import ConfigurationError
from semel.http.asgi.disconnects import KeptAlive
from semel.http.asgi.request import AsgiRequest, path_of
from semel.http.asgi.route import CALL_KEY, RouteCall
from semel.http.caller import Caller
from semel.http.routing import PATH, UNSAFE_METHODS, Params
from semel.http.settings import EndpointSettings, HttpSettings
from semel.integrations.endpoint import (
    DECLARED,
    SERVED,
    DeclaredEndpoint,
    Filled,
    PermitHere,
    SessionHere,
    check_endpoint,
    check_sessions,
    declare_endpoint,
    find_filled,
    parameter_text,
    plain_function,
)
from semel.policy import Policy, PolicyOptions
from semel.stores.deadline import run_within

if TYPE_CHECKING:
    from semel.bulk.endpoint import AsyncTold, BulkEndpoint
    from semel.bulk.run_async import AsyncBulk, AsyncHandler

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")  # the framework's response
Served = Callable[..., Coroutine[Any, Any, R]]
InThread = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Awaitable[Any]]
WAY: Final = "call semel.install(app) once"


class EndpointCommands(Generic[R]):
    """The commands of one application, endpoint by endpoint. A framework's ``Semel`` builds on it."""

    permit: Any = PermitHere()
    atomic_session: Any = SessionHere()
    way = WAY  # the remedy if the application lacks its capture

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        caller: Callable[[Any], Caller | None] | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
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
        self.import_jobs: dict[str, Any] = {}  # by the path of their jobs
        self.completes = False  # whether the application runs a completer
        self._kept_alive = KeptAlive()
        self._on_loop: set[int] = set()  # the declared endpoints that are coroutine functions, by id
        self._plain: dict[int, tuple[Any, str]] = {}  # endpoints as they were before they were declared

    # --- declaring ------------------------------------------------------------------------------

    def command(
        self,
        name: str,
        policy: Policy | None = None,
        *,
        paths: Literal["apart", "one"] | None = None,
        **options: Unpack[PolicyOptions],
    ) -> Callable[[F], F]:
        """Declare an endpoint as an operation; ``options`` are those of :class:`~semel.policy.Policy`.

        Parameters: ``name`` of the operation, stable when paths and functions are renamed; ``policy``, or its options;
        ``paths`` whether the path counts in the fingerprint: "apart"; "one" if all of its paths mean the same; None:
        only if the application routes several templates to the endpoint. Write it *below* the framework's own
        decorator.

        Raises PolicyError and ConfigurationError, when the application is built.
        """
        declared = declare_endpoint(
            self.engine, self.surface, name, policy, options, paths=paths, taken=(*self.declared, *self._bulks)
        )
        self.declared[name] = declared
        endpoints: list[object] = []

        def declare(endpoint: F) -> F:
            if endpoints:
                raise ConfigurationError(f"duplicate operation name {name!r}: their keys would collide")
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
    ) -> BulkEndpoint[R]:
        """Declare a list of items as one command: ``semel.bulk(approvals, approve).answer`` is an endpoint.

        Parameters: ``bulk`` on this engine; ``handler`` a coroutine function of an item; ``body_bytes_max`` of a list;
        ``items_at`` where its items are in an object, such as ``"/items"`` for ``{"items": [...]}`` (a plain array
        is taken, too); ``counts`` names of request headers that count, by default the application's.

        Raises ConfigurationError, when the application is built.
        """
        from semel.bulk.endpoint import bulk_endpoint

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
            raise ConfigurationError(f"duplicate operation name {name!r}: their keys would collide")
        self._bulks.append(name)
        made.answer = self._serve(name, made.respond, made)
        return made

    @asynccontextmanager
    async def _importing(self) -> AsyncIterator[None]:
        """Run the application's imports during the block."""
        async with AsyncExitStack() as stack:
            for jobs in self.import_jobs.values():
                from semel.imports.worker import ImportWorker

                for endpoint in jobs.endpoints.values():
                    await stack.enter_async_context(ImportWorker(endpoint.imports))
            yield

    def _serve(
        self, name: str, respond: Callable[[AsgiRequest], Awaitable[Answer | AsyncTold]], owner: Any = None
    ) -> Served[R]:
        """Make an endpoint for the framework that answers with ``respond`` and records its owner."""
        made = self._endpoint(respond)
        made.__name__ = name.replace(".", "_")
        setattr(made, SERVED, owner)
        return made

    def _endpoint(self, respond: Callable[[AsgiRequest], Awaitable[Answer | AsyncTold]]) -> Served[R]:
        """Make a coroutine function that the framework can route to."""
        raise NotImplementedError

    def fill_parameters(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Filled:
        """Find the parameters of an endpoint that Semel fills. Raises ConfigurationError if it cannot fill them."""
        filled = find_filled(endpoint)
        atomic = declared.policy.terms.effects is Effects.ATOMIC
        check_sessions(endpoint, filled.sessions, atomic=atomic, blocking=self.engine.store.capabilities.blocking_units)
        if inspect.iscoroutinefunction(plain_function(endpoint)):
            self._on_loop.add(id(endpoint))  # which _plain keeps alive
        return filled

    def _wrap(self, endpoint: Callable[..., Any], declared: DeclaredEndpoint) -> Callable[..., Any]:
        raise NotImplementedError

    async def _in_thread(self, endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _response(self, answer: Answer) -> Any:
        raise NotImplementedError

    def _scope_of(self, request: Any) -> Mapping[str, Any]:
        """Return the request as a mapping of its scope, the argument of the ``caller`` function."""
        return request  # type: ignore[no-any-return]

    def _bytes_max(self, endpoint: Any, method: str) -> tuple[int, bool]:
        """Return the longest body of this endpoint's command, and whether the endpoint is known to be a command."""
        if inspect.isclass(endpoint):
            endpoint = getattr(endpoint, method.lower(), None)
        declared = getattr(endpoint, DECLARED, None)
        if isinstance(declared, DeclaredEndpoint):
            return declared.policy.body_bytes_max, True
        return max((each.policy.body_bytes_max for each in self.declared.values()), default=0), False

    # --- serving --------------------------------------------------------------------------------

    async def serve(
        self,
        endpoint: Callable[..., Any],
        declared: DeclaredEndpoint,
        request: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        filled: Filled,
    ) -> Any:
        """Claim, then call the endpoint; or return the answer that prevents it."""
        call = request.scope.get(CALL_KEY)
        if request.method not in UNSAFE_METHODS:
            raise ConfigurationError(
                f"the operation {declared.name!r} is called by {request.method}, "
                f"but {request.method} is not a command; commands are {', '.join(UNSAFE_METHODS)}"
            )
        if not isinstance(call, RouteCall):
            raise ConfigurationError(f"the operation {declared.name!r} is called without its capture; {self.way}")
        params = self._params(request, declared, kwargs)
        claimed = await call.claim(self.surface, declared.route, params, self._scope_of(request))
        if isinstance(claimed, Answer):
            return self._response(claimed)
        for name in filled.permits:
            kwargs = {**kwargs, name: claimed}
        try:
            if claimed is None:
                return await self._call(endpoint, args, {**kwargs, **dict.fromkeys(filled.sessions)})
            if declared.route.atomic:
                return await self._call_in_unit(endpoint, claimed, args, kwargs, filled.sessions)
            return await self._call(endpoint, args, kwargs)
        except BaseException as error:
            call.note_failure(error, self._own_status(error, declared))
            raise

    def _params(self, request: Any, declared: DeclaredEndpoint, kwargs: dict[str, Any]) -> Params:
        """Read the path's parameters, and the path itself if it counts."""
        values = request.path_params
        if not values and not declared.route.counts_path:
            return ()
        if declared.policy.key_from is not None or declared.policy.reference_from is not None:
            # Converted as for the endpoint: 7 and 07 name one invoice, as do a UUID's upper and lower case.
            read = self._read_params(request, kwargs)
            texts = {name: parameter_text(read.get(name, value)) for name, value in values.items()}
            values = {name: value if texts[name] is None else texts[name] for name, value in values.items()}
        params = tuple(sorted((name, str(value)) for name, value in values.items()))
        return (*params, (PATH, path_of(request.scope))) if declared.route.counts_path else params

    def _read_params(self, request: Any, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the path's parameters as the framework has read them for the endpoint, by their names in the path."""
        return kwargs

    def _own_status(self, error: BaseException, declared: DeclaredEndpoint) -> int | None:
        """Return the status of an exception that is an answer without a ``status_code``."""
        return None

    async def _call_in_unit(
        self,
        endpoint: Callable[..., Any],
        permit: Permit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sessions: tuple[str, ...],
    ) -> Any:
        """Call the endpoint of an ATOMIC command, limited to the time that its transaction may be open."""
        called: Awaitable[Any]
        if not sessions:
            called = self._call(endpoint, args, kwargs)
        else:
            blocking = self.engine.store.capabilities.blocking_units
            call = self._call_with_session if blocking else self._call_with_async_session
            called = call(endpoint, permit.connection, args, kwargs, sessions)
        return await run_within(called, max(0.0, permit.deadline_monotonic - time.monotonic()))

    def _call(self, endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        if id(endpoint) in self._on_loop:
            return endpoint(*args, **kwargs)  # type: ignore[no-any-return]  # a coroutine function
        return call_endpoint(endpoint, args, kwargs, self._in_thread)

    async def _call_with_session(
        self,
        endpoint: Callable[..., Any],
        connection: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        names: tuple[str, ...],
    ) -> Any:
        """Call the endpoint with an SQLAlchemy session, and flush it when the endpoint returns."""
        from semel.stores.sql.sqlalchemy import session_on

        with session_on(connection, expire_on_commit=False) as session:
            result = await self._call(endpoint, args, {**kwargs, **dict.fromkeys(names, session)})
            session.commit()  # SQLite's: it waits for nothing inside the unit
            return result

    async def _call_with_async_session(
        self,
        endpoint: Callable[..., Any],
        connection: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        names: tuple[str, ...],
    ) -> Any:
        """As ``_call_with_session``, with an AsyncSession."""
        from semel.stores.sql.sqlalchemy_async import async_session_on

        async with async_session_on(connection) as session:
            result = await self._call(endpoint, args, {**kwargs, **dict.fromkeys(names, session)})
            await session.commit()
            return result


def may_claim(endpoint: object) -> bool:
    """Return whether to keep the body for this endpoint: it is not yet known, declared, or itself an application."""
    return hasattr(endpoint, DECLARED) or not inspect.isroutine(endpoint)


async def call_endpoint(
    endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_thread: InThread
) -> Any:
    """Call an endpoint: a coroutine function on the loop, any other in a thread."""
    if inspect.iscoroutinefunction(plain_function(endpoint)):
        return await endpoint(*args, **kwargs)
    result = await in_thread(endpoint, args, kwargs)
    return await result if inspect.isawaitable(result) else result
