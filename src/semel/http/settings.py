"""An application's HTTP settings: one frozen value, validated when it is created."""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, get_args

from semel.engine.requirements import NO_STEPS
from semel.engine.state import Core
from semel.errors import ConfigurationError
from semel.http.caller import Caller, CallerOf, CallerOfScope
from semel.http.headers import Honoured
from semel.http.outage import Outage
from semel.http.problems import Problems
from semel.http.routing import Operation, Params, Route, Routes
from semel.operations.flow import check_kept
from semel.policy import Policy
from semel.recipe import check_headers
from semel.stores.backend import Backend

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}").fullmatch
WAIT_SECONDS_MAX: Final = 3600

_WHO = """who is calling? A key means something only for its caller. Paste the import and one of the two:
    from semel.http import from_state, single_caller
    caller=from_state("user"),  # what your authentication put into request.state.user
    caller=single_caller,  # a tool with one tenant and one user: all clients share all keys"""


Uncovered = Literal["pass", "refuse-keyed", "refuse"]


class Wanted(NamedTuple):
    """A caller's request: the operation's name, the caller, and the parameters of its path.

    For the status resource ``params`` is empty: ``may`` decides on the operation that was found.
    """

    operation: str
    caller: Caller
    params: Params = ()


May = Callable[[Any, Wanted], bool | Awaitable[bool]]
"""A function of the ASGI scope or the WSGI environ and the wanted request; returns whether it is allowed."""


def is_async(function: object) -> bool:
    """Return whether calling a function, a method or an object gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def is_allowed(answer: object) -> bool:
    """Return whether a plain ``may`` function allows it. A coroutine, which is truthy, is no answer.

    Raises TypeError for a coroutine; it reaches the server like the function's own errors.
    """
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # otherwise Python warns that the coroutine was never awaited
        raise TypeError("may= returned a coroutine, which is not awaited here: make it a plain function")
    return bool(answer)


class AnyEngine(Protocol):
    """The part of both engines that a surface needs."""

    core: Core
    backend: Backend


class EndpointSettings(TypedDict, total=False):
    """The settings of :class:`HttpSettings` for an application whose endpoints are declared one by one."""

    problems: Problems
    key_header: str
    replayed_header: str
    lifetime_header: str | None
    wait_seconds_max: float
    fingerprint_secret: bytes | None
    counts: Sequence[str]
    body_seconds_max: float


class MiddlewareSettings(EndpointSettings, total=False):
    """The settings of :class:`HttpSettings` that a middleware takes."""

    caller: CallerOfScope | None
    operations: Sequence[Operation]
    default: Policy | None
    uncovered: Uncovered
    may: May | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The HTTP protection of an application's commands.

    Parameters:
        engine: a :class:`~semel.engine.sync_engine.Engine` or :class:`~semel.engine.async_engine.AsyncEngine`.
        caller: a function of the ASGI scope or WSGI environ that returns a :class:`~semel.http.caller.Caller`,
            or None for an unknown caller (a command is then refused with 401).
        operations: the declared operations.
        default: the policy of other POST and PATCH requests that carry a key; its key is always optional.
        problems: how problem documents are written.
        key_header: the name of the request header with the key.
        replayed_header: the name of the response header that marks a replay.
        lifetime_header: the name of the response header that says for how many seconds the key is honoured; None: not
            sent.
        wait_seconds_max: how long ``Prefer: wait=N`` may make a duplicate wait.
        fingerprint_secret: the secret of fingerprints made with ``hmac-sha256``.
        counts: names of request headers that count, for operations that name none themselves.
        uncovered: what a middleware does with unsafe requests that no operation and no default covers: "pass" them to
            the application (those with a key are counted), "refuse-keyed" the ones with a key, or "refuse" all of them.
        may: a function of the request and a :class:`Wanted` that says whether this caller may do this now. A middleware
            asks it before the store, so that nothing stored reaches a caller whose rights were revoked. It may be a
            coroutine function over ASGI; another one runs in a thread there.
        body_seconds_max: how long a body of a declared operation may take to arrive.

    Raises ConfigurationError: a missing caller, an impossible value, or operations that collide.
    """

    engine: AnyEngine
    caller: CallerOf | None = None
    operations: Sequence[Operation] = ()
    default: Policy | None = None
    problems: Problems = field(default_factory=Problems)
    key_header: str = "Idempotency-Key"
    replayed_header: str = "Idempotency-Replayed"
    lifetime_header: str | None = "Idempotency-Key-Lifetime"
    wait_seconds_max: float = 30
    fingerprint_secret: bytes | None = field(default=None, repr=False)
    counts: Sequence[str] = ()
    uncovered: Uncovered = "pass"
    may: May | None = None
    body_seconds_max: float = 60
    routes: Routes = field(init=False, repr=False, compare=False)
    key_name: bytes = field(init=False, repr=False)
    replayed: tuple[bytes, bytes] = field(init=False, repr=False)
    outage: Outage = field(default_factory=Outage, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.caller is None:
            raise ConfigurationError(_WHO)
        if not callable(self.caller):
            raise ConfigurationError(f"caller must be a function of the request; it is {self.caller!r}")
        for name in ("key_header", "replayed_header", "lifetime_header"):
            value = getattr(self, name)
            if name == "lifetime_header" and value is None:
                continue
            if not isinstance(value, str) or _TOKEN(value) is None:
                raise ConfigurationError(f"{name} must be a header name; it is {value!r}")
        for name, least in (("wait_seconds_max", 0), ("body_seconds_max", 1)):
            span = getattr(self, name)
            if isinstance(span, bool) or not isinstance(span, (int, float)) or not least <= span <= WAIT_SECONDS_MAX:
                raise ConfigurationError(f"{name} must be {least} to {WAIT_SECONDS_MAX} seconds; it is {span!r}")
        if self.uncovered not in get_args(Uncovered):
            allowed = ", ".join(repr(each) for each in get_args(Uncovered))
            raise ConfigurationError(f"uncovered must be one of {allowed}; it is {self.uncovered!r}")
        if self.may is not None and not callable(self.may):
            raise ConfigurationError(
                f"may must be a function of the request and the intended operation; it is {self.may!r}"
            )
        object.__setattr__(self, "counts", check_headers(self.counts))
        policies = [operation.policy for operation in self.operations]
        if self.default is not None:
            policies.append(self.default)
        if any(policy.effects.name == "ATOMIC" for policy in policies if not isinstance(policy.effects, str)):
            self.engine.backend.check_atomic()
        if any(policy.steps for policy in policies) and not self.engine.core.emits:
            raise ConfigurationError(NO_STEPS.format(operation="an operation"))
        for policy in policies:
            check_kept(self.engine.backend.store, policy)
        for operation in self.operations:
            self.engine.core.needs.declare(operation.name or operation.template, operation.policy)
        if self.default is not None:
            self.engine.core.needs.declare("every other operation", self.default)
        object.__setattr__(self, "routes", self._routes())
        object.__setattr__(self, "key_name", self.key_header.lower().encode())
        object.__setattr__(self, "replayed", (self.replayed_header.lower().encode(), b"true"))

    @classmethod
    def of(cls, engine: AnyEngine, options: Mapping[str, Any], own: Sequence[str] = ()) -> HttpSettings:
        """Make settings from keyword options; refuse an unknown option with a suggestion.

        Parameters: ``own`` options of the calling surface, to suggest as well.
        """
        known = [f.name for f in fields(cls) if f.init and f.name != "engine"] + list(own)
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known options: {', '.join(known)}"
                raise ConfigurationError(f"unknown option {name!r}{hint}")
        return cls(engine=engine, **options)

    def route(self, name: str, policy: Policy) -> Route:
        """Make a route, for integrations that know the operation from their own router."""
        return self._check(Route(name, policy, self.fingerprint_secret, tuple(self.counts)))

    def _routes(self) -> Routes:
        routes = Routes(self.operations, self.default, self.fingerprint_secret, tuple(self.counts))
        for route in routes.all():
            self._check(route)
        return routes

    def _check(self, route: Route) -> Route:
        key_name = self.key_header.lower().encode()
        if key_name in route.counted:
            raise ConfigurationError(f"{route.name}: counts must not name {self.key_header}: the key never counts")
        route.surface = self
        route.honoured = self.honour_headers(route.policy.answer_seconds)
        if not route.is_bare or route.counted:  # each head then has further fields to read
            route.rare |= {key_name}
        return route

    def honour_headers(self, answer_seconds: float) -> Honoured:
        """Return the headers about the key on every answer of an operation after a claim."""
        return Honoured(self.lifetime_header, answer_seconds, self.problems.operations_path)

    def allows(self, request: Any, wanted: Wanted) -> bool:
        """Return whether a plain ``may`` function allows the request; True without one."""
        return self.may is None or is_allowed(self.may(request, wanted))

    async def allows_async(self, request: Any, wanted: Wanted) -> bool:
        """As :meth:`allows`, on an event loop: a plain function runs in a thread."""
        if self.may is None:
            return True
        if is_async(self.may):
            return bool(await self.may(request, wanted))  # type: ignore[misc]
        allowed = await asyncio.to_thread(self.may, request, wanted)
        return bool(await allowed if inspect.isawaitable(allowed) else allowed)

    def tell_unprotected(self, operation: str, reason: str) -> None:
        """Count a request that runs without protection."""
        self.engine.core.tell("unprotected", operation, reason=reason)
