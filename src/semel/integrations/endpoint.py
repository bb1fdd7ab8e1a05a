"""The inspection of endpoints before they are called: their kind, and the parameters that Semel fills."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from semel.core.model import Effects
from semel.engine.permit import Permit
from semel.errors import ConfigurationError, PolicyError
from semel.http.routing import Route
from semel.http.settings import AnyEngine, HttpSettings
from semel.http.spelling import without_slashes
from semel.operations.flow import check_kept
from semel.policy import Policy

DECLARED: Final = "__semel__"
SERVED: Final = "__semel_served__"  # on an endpoint of Semel's own: its BulkEndpoint or ImportEndpoint


@dataclass(frozen=True, slots=True)
class DeclaredEndpoint:
    """The declaration that ``@semel.command`` left on an endpoint."""

    name: str
    policy: Policy
    route: Route
    paths: Literal["apart", "one"] | None = None


def declare_endpoint(
    engine: AnyEngine,
    surface: HttpSettings,
    name: str,
    policy: Policy | None,
    options: Mapping[str, Any],
    *,
    paths: Literal["apart", "one"] | None,
    taken: Collection[str],
) -> DeclaredEndpoint:
    """Check the arguments of ``@semel.command``, and make the operation.

    Parameters: ``name``, ``policy`` or its ``options``, and ``paths`` as ``@semel.command`` takes them; ``taken`` the
    names of the application's other operations.

    Raises PolicyError and ConfigurationError.
    """
    chosen = check_declaration(name, policy, options, paths=paths, taken=taken)
    if chosen.terms.effects is Effects.ATOMIC:
        engine.backend.check_atomic()
    check_kept(engine.backend.store, chosen)
    engine.core.needs.declare(name, chosen)
    declared = DeclaredEndpoint(name, chosen, surface.route(name, chosen), paths)
    if paths == "apart":
        declared.route.count_path()
    declared.route.counts_mount = paths != "one"
    return declared


def check_declaration(
    name: str,
    policy: Policy | None,
    options: Mapping[str, Any],
    *,
    paths: Literal["apart", "one"] | None,
    taken: Collection[str],
) -> Policy:
    """As :func:`declare_endpoint`, as far as no engine is needed: the policy that was given.

    Raises PolicyError and ConfigurationError.
    """
    if not isinstance(name, str) or not name:
        raise ConfigurationError("a command needs a name: @semel.command('payments.create', effects='external')")
    if policy is not None and not isinstance(policy, Policy):
        raise PolicyError(f"policy must be a Policy, such as Policy(effects='external'); it is {policy!r}")
    if policy is not None and options:
        raise PolicyError("give either a policy or its options, not both")
    chosen = policy if policy is not None else Policy(**options)
    if paths not in (None, "apart", "one"):
        raise ConfigurationError(f"{name}: paths must be 'apart' or 'one'; it is {paths!r}")
    if name in taken:
        raise ConfigurationError(f"duplicate operation name {name!r}: their keys would collide")
    return chosen


def parameter_text(value: object) -> str | None:
    """Return the canonical text of a path parameter's value; None if its type has none.

    >>> [parameter_text(each) for each in (7, Decimal("1.00"), UUID(int=0xA), object())]
    ['7', '1', '00000000-0000-0000-0000-00000000000a', None]
    """
    if isinstance(value, Enum):
        return parameter_text(value.value)
    if isinstance(value, Decimal):
        return format(value.normalize(), "f") if value.is_finite() else str(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        told = value if value.tzinfo is None else value.astimezone(UTC)
        return told.isoformat().removesuffix("+00:00") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return str(value) if isinstance(value, (str, int, float, UUID, date, time)) else None


class PermitHere:
    """Marks the parameter of an endpoint that takes the permit."""

    def __repr__(self) -> str:
        return "semel.permit"


class SessionHere:
    """Marks the parameter of an ATOMIC endpoint that takes a session of SQLAlchemy's on the command's connection."""

    def __repr__(self) -> str:
        return "semel.atomic_session"


class Filled(NamedTuple):
    """The parameters of an endpoint that Semel fills, by name."""

    permits: tuple[str, ...]
    sessions: tuple[str, ...]


def plain_function(endpoint: Any) -> Any:
    """Find the function with the annotations: behind a partial, a bound method or a callable object."""
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    return endpoint if inspect.isroutine(endpoint) or not callable(endpoint) else type(endpoint).__call__


BULK_ENDPOINTS: Final = ("BulkEndpoint", "BulkView")  # by name: so a look needs no import


def bulk_used_by(endpoint: Any) -> Any:
    """Find the bulk that an endpoint answers with (``semel.bulk(...)``): its own endpoint, or a function that uses one.

    None where there is none.
    """
    owner = getattr(endpoint, SERVED, None) or getattr(endpoint, "__self__", None)
    if type(owner).__name__ in BULK_ENDPOINTS:
        return owner
    plain = inspect.unwrap(endpoint) if callable(endpoint) else endpoint
    if not isinstance(plain, types.FunctionType):
        return None
    try:
        used = inspect.getclosurevars(plain)
    except ValueError:  # a name of the function around it that has no value yet
        return None
    values = [*used.nonlocals.values(), *used.globals.values()]
    return next((value for value in values if type(value).__name__ in BULK_ENDPOINTS), None)


def count_bulk_paths(places: Iterable[tuple[Any, str]]) -> None:
    """Let the path count in the fingerprint of a bulk with several path templates, as for other commands.

    Parameters: ``places`` endpoints that may answer with a bulk, each with the template of its path.
    """
    bulks: dict[int, tuple[Any, set[str]]] = {}
    for endpoint, template in places:
        bulk = bulk_used_by(endpoint)
        if bulk is not None:
            bulks.setdefault(id(bulk), (bulk, set()))[1].add(without_slashes(template))
    for bulk, templates in bulks.values():
        bulk.counts_path |= len(templates) > 1


def check_endpoint(endpoint: Any) -> None:
    """Refuse an endpoint that cannot be protected.

    Raises ConfigurationError.
    """
    if inspect.isclass(endpoint):
        raise ConfigurationError(f"{endpoint.__qualname__} is a class: declare its method, such as post, instead")
    function = plain_function(endpoint)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{function.__qualname__} is a generator, which runs after its call has returned, so that the call "
            "cannot be protected; let it return a StreamingResponse"
        )


def find_filled(endpoint: Callable[..., Any]) -> Filled:
    """Find the parameters that Semel fills: by default ``semel.permit`` or ``semel.atomic_session``, or annotated so.

    Raises ConfigurationError for a permit that nothing would fill.
    """
    hints = annotations_of(endpoint)
    for parameter in inspect.signature(endpoint).parameters.values():
        forgotten = parameter.default in (inspect.Parameter.empty, None)
        if forgotten and _is_permit(hints[parameter.name]):
            raise ConfigurationError(
                f"{getattr(plain_function(endpoint), '__qualname__', endpoint)}: the parameter {parameter.name!r} is a "
                f"Permit without a default, so that it gets no value; write {parameter.name}: Permit = semel.permit, "
                "where semel is your Semel object"
            )
    return Filled(_find_marked(endpoint, hints, PermitHere), _find_marked(endpoint, hints, SessionHere))


def _find_marked(endpoint: Callable[..., Any], hints: dict[str, Any], marker: type) -> tuple[str, ...]:
    return tuple(
        parameter.name
        for parameter in inspect.signature(endpoint).parameters.values()
        if isinstance(parameter.default, marker)
        or any(isinstance(note, marker) for note in getattr(hints[parameter.name], "__metadata__", ()))
    )


def check_sessions(endpoint: Callable[..., Any], sessions: tuple[str, ...], *, atomic: bool, blocking: bool) -> None:
    """Refuse a session that cannot exist: there is no unit, or the unit's connection has the other colour.

    Parameters: ``blocking`` the store's ``blocking_units``.

    Raises ConfigurationError.
    """
    name = getattr(plain_function(endpoint), "__qualname__", endpoint)
    if sessions and not atomic:
        raise ConfigurationError(
            f"{name}: semel.atomic_session is a session in the command's own transaction; declare effects='atomic'"
        )
    if sessions and not blocking and not inspect.iscoroutinefunction(plain_function(endpoint)):
        raise ConfigurationError(
            f"{name}: semel.atomic_session is an AsyncSession, which no thread can use; write async def"
        )
    orm, asynchronous = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.ext.asyncio")
    refused = (orm and orm.Session) if not blocking else (asynchronous and asynchronous.AsyncSession)
    hints = annotations_of(endpoint)
    for each in sessions:
        kind = getattr(hints[each], "__origin__", hints[each]) if hasattr(hints[each], "__metadata__") else hints[each]
        if refused and inspect.isclass(kind) and issubclass(kind, refused):
            fits, where = ("Session", "SQLite") if blocking else ("AsyncSession", "PostgreSQL and MariaDB")
            raise ConfigurationError(
                f"{name}: on {where} semel.atomic_session is sqlalchemy's {fits}: annotate it {each}: {fits}"
                + (", or use the application's own kind of database, also in tests" if blocking else "")
            )


def _is_permit(hint: Any) -> bool:
    """Return whether an annotation is the permit (or None), with nothing that tells the framework its source."""
    return hint is Permit or (typing.get_origin(hint) in (typing.Union, types.UnionType) and Permit in hint.__args__)


def annotations_of(endpoint: Callable[..., Any]) -> dict[str, Any]:
    """Read the annotations of an endpoint's parameters and its return, as far as their names are known."""
    signature = inspect.signature(endpoint)
    found = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    names = getattr(inspect.unwrap(plain_function(endpoint)), "__globals__", {})
    return {name: _resolve(each, names) for name, each in (*found.items(), ("return", signature.return_annotation))}


def _resolve(annotation: Any, names: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    try:
        here = types.SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(here, names, include_extras=True)["it"]
    except NameError:
        return annotation  # imported for type checkers only: code that needs the type will report it
