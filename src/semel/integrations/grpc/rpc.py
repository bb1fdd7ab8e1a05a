"""Unary methods as operations: the declaration, and the command of one call. No IO happens here."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from semel.articles import name_type
from semel.core.model import Effects, Scope
from semel.engine.async_engine import AsyncEngine
from semel.engine.requirements import NO_STEPS
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, InvalidKey, MissingKey, PolicyError, RequestError, RequestTooLarge
from semel.functions.arguments import check_key
from semel.functions.fingerprints import digest
from semel.http.caller import Caller
from semel.http.capture import Keeping
from semel.http.refused import CallerNotKnown
from semel.keys import parse_key
from semel.operations.flow import check_kept
from semel.policy import Command, Policy

KEY: Final = "idempotency-key"
_RECIPE: Final = "grpc/1"
# HTTP's options, and their counterparts for calls.
_NOT_HERE: Final = {
    "key_from": "name the request's field: Rpc(..., key_field='request_id')",
    "reference_from": "run the command by engine.run with a Command, which takes a business_ref",
    "reference_scope": "run the command by engine.run with a Command, which takes a business_ref",
    "fingerprint": "the whole request counts",
    "fingerprints_known": "the whole request counts",
    "counts": "name the metadata: Rpc(..., counts=('account',))",
    "json": "a message is not JSON",
    "success": "end the call with a code: context.abort(...)",
    "redact": "answers='seal' encrypts the whole response",
    "rebuild": "answers='seal' or 'forget' keeps nothing of it in clear",
    "resumable": "the call that a completer continues has no client to answer",
    "on_unprotected": "a call runs protected or not at all; key='optional' lets those without a key pass",
}


class Call(NamedTuple):
    """The input of ``caller=``: the method, the metadata (the last value of each name), and gRPC's context."""

    method: str
    metadata: Mapping[str, str | bytes]
    context: Any


CallerOfCall = Callable[[Any], Caller | None]
"""From a :class:`Call` to the caller; None where the caller is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """The protection of one unary method.

    Parameters:
        policy: of the operation. A refusal's gRPC code means what its HTTP status means (``NOT_FOUND`` is a definite
            refusal, ``UNAVAILABLE`` may have had an effect, ``RESOURCE_EXHAUSTED`` releases the key);
            ``replay_headers`` are names of trailing metadata to keep.
        name: of the operation, the scope of its keys; None: the method's path.
        key_field: the field of the request that holds the key, such as ``"request_id"`` (AIP-155); None: the metadata
            ``idempotency-key``.
        counts: names of metadata that count beside the request's bytes.

    Raises PolicyError.

    >>> Rpc(policy=Policy(effects="external"), key_field="request_id").key_field
    'request_id'
    """

    policy: Policy
    name: str | None = None
    key_field: str | None = None
    counts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise PolicyError(f"policy must be a Policy, such as Policy(effects='external'); it is {self.policy!r}")
        plain = Policy()
        for option, instead in _NOT_HERE.items():
            if getattr(self.policy, option) != getattr(plain, option):
                raise PolicyError(f"{option} is for HTTP operations; {instead}")
        for name in sorted(self.policy.replay_headers):
            if name.lower().startswith("grpc-"):
                raise PolicyError(f"replay_headers must not name {name!r}: gRPC handles its own metadata")
        counts: Any = self.counts
        if not isinstance(counts, tuple) or not all(
            isinstance(name, str) and name and name == name.lower() and name.isascii() and "," not in name
            for name in counts
        ):
            raise PolicyError(f"counts must be a tuple of names of metadata in lower case; it is {self.counts!r}")


assert {field.name for field in fields(Policy)} >= _NOT_HERE.keys()


class DeclaredRpc:
    """A declared method with its engine: from a call's parts to its command."""

    def __init__(self, method: str, rpc: Rpc, engine: Engine | AsyncEngine, caller: CallerOfCall) -> None:
        self.method = method
        self.rpc = rpc
        self.policy = rpc.policy
        self.name = rpc.name or method
        self.kept = frozenset(rpc.policy.replay_headers)
        self.keeping = Keeping(rpc.policy, self.name)
        self.atomic = rpc.policy.terms.effects is Effects.ATOMIC
        self._engine = engine
        self._caller = caller
        self._recipe = f"{_RECIPE}+{','.join(sorted(rpc.counts))}" if rpc.counts else _RECIPE

    def command(self, raw: bytes, message: Any, metadata: Iterable[Any], context: Any) -> Command | None:
        """Make the command of a call; None if it has no key and needs none.

        Raises RequestError, and CallerNotKnown if there is a key without a caller.
        """
        pairs = [(str(name), value) for name, value in metadata]
        try:
            key = self._key(message, pairs)
        except MissingKey:
            if self.policy.key == "required":
                raise
            self._engine.core.tell("unprotected", self.name, reason="no-key")
            return None
        caller = self._caller(Call(self.method, dict(pairs), context))
        if caller is None:
            raise CallerNotKnown
        if not isinstance(caller, Caller):
            raise ConfigurationError(
                f"caller= returned {name_type(caller)}; it must return a Caller(tenant, id), or None"
            )
        canonical = _canonical(raw, message)
        secret = self._engine.core.id_secret

        def under(recipe: str) -> bytes | None:
            base, _, names = recipe.partition("+")
            if base != _RECIPE:
                return None
            counted = {
                name: repr([value for each, value in pairs if each == name]).encode()
                for name in names.split(",")
                if name
            }
            return digest(
                {"request": canonical, **{f"metadata {name}": said for name, said in counted.items()}},
                self.name,
                secret,
            )

        own = under(self._recipe)
        assert own is not None
        return Command(
            Scope(caller.tenant, caller.id, self.name),
            key,
            own,
            self._recipe,
            self.policy,
            under,
            refusal=self._misfit(key, raw),
        )

    def _key(self, message: Any, pairs: list[tuple[str, Any]]) -> str:
        field = self.rpc.key_field
        if field is None:
            lines = [value if isinstance(value, bytes) else str(value).encode() for name, value in pairs if name == KEY]
            return parse_key(lines)
        value = getattr(message, field)
        if not isinstance(value, str):
            raise InvalidKey(f"{field} is not a text; send a UUID there")
        if not value:
            raise MissingKey(f"{field} is empty; send a UUID there, the same whenever this call is retried")
        return check_key(value, field)

    def _misfit(self, key: str, raw: bytes) -> RequestError | None:
        """Return the current limit that a call breaks, if any: it is refused unless its key is on record."""
        if len(raw) > self.policy.body_bytes_max:
            return RequestTooLarge(
                f"the request has {len(raw)} bytes; the maximum is {self.policy.body_bytes_max} are taken"
            )
        if self.policy.key_format is not None:
            try:
                self.policy.key_format.check(key, time.time())
            except RequestError as error:
                return error
        return None

    def wait_seconds(self, remaining: float | None) -> float:
        """Return the waiting time of a duplicate: shorter than the client's, so that it gets the verdict."""
        most = self.policy.wait_seconds
        return most if remaining is None else min(most, max(0.0, remaining * 0.8))


def _canonical(raw: bytes, message: Any) -> bytes:
    serialise = getattr(message, "SerializeToString", None)
    return raw if serialise is None else serialise(deterministic=True)


def declare(
    operations: Mapping[str, Policy | Rpc],
    engine: Engine | AsyncEngine,
    caller: CallerOfCall | None,
    services: Iterable[Any],
) -> dict[str, DeclaredRpc]:
    """Return the declared methods by their paths. Raises ConfigurationError and PolicyError."""
    if caller is None:
        raise ConfigurationError(
            "caller= is missing: a key means something only for its caller; give a function of the Call that returns "
            "Caller(tenant, id), or single_caller where there is only one"
        )
    if not callable(caller) or inspect.iscoroutinefunction(caller):
        raise ConfigurationError(f"caller must be a plain function of the Call; it is {caller!r}")
    if not operations:
        raise ConfigurationError(
            "operations= names no method, so no call would be protected; write operations={'/shop.Payments/Create': "
            "Policy(effects='external')}"
        )
    made: dict[str, DeclaredRpc] = {}
    names: dict[str, str] = {}
    known = {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}
    for method, given in operations.items():
        rpc = given if isinstance(given, Rpc) else Rpc(policy=given)
        if not isinstance(method, str) or method.count("/") != 2 or not method.startswith("/") or method.endswith("/"):
            raise ConfigurationError(f"{method!r} is not a method; write its path, such as '/shop.Payments/Create'")
        if known and method not in known:
            raise ConfigurationError(
                f"{method!r} is not a method of the services; they have {', '.join(sorted(known))}"
            )
        if known and (known[method].client_streaming or known[method].server_streaming):
            raise ConfigurationError(STREAMS.format(method=method))
        if known and rpc.key_field is not None and rpc.key_field not in known[method].input_type.fields_by_name:
            raise ConfigurationError(f"{method!r}: its request has no field {rpc.key_field!r}")
        one = DeclaredRpc(method, rpc, engine, caller)
        if one.atomic:
            engine.backend.check_atomic()
        if one.policy.steps and not engine.core.emits:
            raise ConfigurationError(NO_STEPS.format(operation=one.name))
        check_kept(engine.backend.store, one.policy)
        if names.setdefault(one.name, method) != method:
            raise ConfigurationError(f"{method} and {names[one.name]} are both named {one.name!r}; rename one")
        engine.core.needs.declare(one.name, one.policy)
        made[method] = one
    return made


STREAMS: Final = (
    "{method!r} streams: a call of many messages has no single payload and no single answer, so it cannot be "
    "protected; declare a unary method that takes the command, and stream its results from another"
)
