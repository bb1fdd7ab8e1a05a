"""What an application says once about how it is protected over HTTP: one frozen value, checked when it is made."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from semel.engine.backend import Backend
from semel.engine.core import Core
from semel.engine.needs import NO_STEPS
from semel.errors import ConfigurationError
from semel.policy import Policy
from semel.protocol.operations import check_kept
from semel.rules.recipe import check_headers
from semel.web.caller import CallerOf
from semel.web.outage import Outage
from semel.web.problem import Problems
from semel.web.routing import Operation, Route, Routes

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}").fullmatch
WAIT_SECONDS_MAX: Final = 3600

_WHO = """who is calling? A key means something only for its caller. Paste the import and one of the two:
    from semel.web.caller import from_state, single_caller
    caller=from_state("user"),  # what your authentication put into request.state.user
    caller=single_caller,  # a tool with one tenant and one user: all clients share all keys"""


class AnyEngine(Protocol):
    """What both engines have and a surface needs."""

    core: Core
    backend: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """How an application's commands are protected over HTTP.

    Parameters:
        engine: a :class:`~semel.engine.sync.Engine` or :class:`~semel.engine.aio.AsyncEngine`.
        caller: a function of the ASGI scope or WSGI environ that returns a :class:`~semel.web.caller.Caller`,
            or None where nobody is known (a command is then refused with 401).
        operations: the declared operations.
        default: the policy of other POST and PATCH requests that carry a key; its key is always optional.
        problems: how problem documents are written.
        key_header: the name of the request header with the key.
        replayed_header: the name of the response header that marks a replay.
        wait_seconds_max: how long ``Prefer: wait=N`` may make a duplicate wait.
        fingerprint_secret: the secret of fingerprints made with ``hmac-sha256``.
        counts: names of request headers that count, for operations that name none themselves.

    Raises ConfigurationError: a missing caller, an impossible value, or operations that collide.
    """

    engine: AnyEngine
    caller: CallerOf | None = None
    operations: Sequence[Operation] = ()
    default: Policy | None = None
    problems: Problems = field(default_factory=Problems)
    key_header: str = "Idempotency-Key"
    replayed_header: str = "Idempotency-Replayed"
    wait_seconds_max: float = 30
    fingerprint_secret: bytes | None = field(default=None, repr=False)
    counts: Sequence[str] = ()
    routes: Routes = field(init=False, repr=False, compare=False)
    key_name: bytes = field(init=False, repr=False)
    replayed: tuple[bytes, bytes] = field(init=False, repr=False)
    outage: Outage = field(default_factory=Outage, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.caller is None:
            raise ConfigurationError(_WHO)
        if not callable(self.caller):
            raise ConfigurationError(f"caller must be a function of the request; it is {self.caller!r}")
        for name in ("key_header", "replayed_header"):
            value = getattr(self, name)
            if not isinstance(value, str) or _TOKEN(value) is None:
                raise ConfigurationError(f"{name} must be a header name; it is {value!r}")
        wait: object = self.wait_seconds_max
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait <= WAIT_SECONDS_MAX:
            raise ConfigurationError(f"wait_seconds_max must be 0 to {WAIT_SECONDS_MAX} seconds; it is {wait!r}")
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
    def of(cls, engine: AnyEngine, options: Mapping[str, Any]) -> Surface:
        """A surface from keyword options; an unknown one is refused with a suggestion."""
        known = [f.name for f in fields(cls) if f.init and f.name != "engine"]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known options: {', '.join(known)}"
                raise ConfigurationError(f"unknown option {name!r}{hint}")
        return cls(engine=engine, **options)

    def route(self, name: str, policy: Policy) -> Route:
        """A route made by hand, for integrations that know the operation from their own router."""
        return self._checked(Route(name, policy, self.fingerprint_secret, tuple(self.counts)))

    def _routes(self) -> Routes:
        routes = Routes(self.operations, self.default, self.fingerprint_secret, tuple(self.counts))
        for route in routes.all():
            self._checked(route)
        return routes

    def _checked(self, route: Route) -> Route:
        if self.key_header.lower().encode() in route.counted:
            raise ConfigurationError(f"{route.name}: counts must not name {self.key_header}: the key never counts")
        return route

    def tell_unprotected(self, operation: str, reason: str) -> None:
        """Count a request that runs without protection."""
        self.engine.core.tell("unprotected", operation, reason=reason)
