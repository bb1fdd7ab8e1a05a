"""Route a request to an operation: declared templates, and the default for requests that carry a key.

An operation's name goes into scopes, fingerprints and metrics: it is declared, or method and template, never the
raw path. The matcher knows whole segments only; the application keeps its framework's own router.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from semel.core.model import Effects
from semel.errors import ConfigurationError
from semel.http.capture import Keeping
from semel.http.fingerprint.fingerprinter import Fingerprinter
from semel.http.headers import Honoured
from semel.http.spelling import normal_segments
from semel.operations.references import sources
from semel.policy import RETRY_BYTES_MAX, Policy

UNSAFE_METHODS: Final = ("POST", "PATCH", "PUT", "DELETE")
DEFAULT_METHODS: Final = ("POST", "PATCH")

Params = tuple[tuple[str, str], ...]
RARE: Final = frozenset({b"content-digest", b"content-encoding", b"prefer", b"early-data"})  # headers of few requests
PATH: Final = "/"  # the name of the parameter that holds a counted path; no template's parameter has it
MOUNT: Final = "//"  # and of the one that holds the application's mount point

# The one allowed spelling of a parameter that an application converts: 7, not 07; lower case, not upper.
_PLAIN: Final = {
    "int": re.compile(r"0|[1-9][0-9]*", re.ASCII).fullmatch,
    "uuid": re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch,
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One protected operation of an HTTP application.

    Parameters: ``template`` of its path, such as ``/orders/{id}/cancel`` (``{rest:path}`` at the end takes several
    segments; ``{id:int}`` and ``{id:uuid}`` take only the plain spelling of one, which is what a ``key_from`` path
    parameter needs if the application converts it); ``policy``; ``methods`` it is called with; ``name`` that stays when
    paths change (by default method and template); ``also`` further templates of the same operation, such as
    ``/payments/`` where the application serves both: they share its keys and answers, so they have the same parameters.

    >>> Operation("/payments", Policy(effects="external"), also=("/payments/",)).templates
    ('/payments', '/payments/')
    """

    template: str
    policy: Policy = field(default_factory=Policy)
    methods: Sequence[str] = ("POST",)
    name: str | None = None
    also: Sequence[str] = ()

    @property
    def templates(self) -> tuple[str, ...]:
        """All templates of its path; the first names the operation if it has no name."""
        return (self.template, *self.also)

    def __post_init__(self) -> None:
        if isinstance(self.also, str):
            raise ConfigurationError(f"{self.template}: also takes a tuple of templates, such as ({self.also!r},)")
        object.__setattr__(self, "also", tuple(self.also))
        for template in self.templates:
            if not isinstance(template, str) or not template.startswith("/"):
                raise ConfigurationError(f"an operation's template starts with a slash; it is {template!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigurationError(f"{self.template}: policy must be a Policy; it is {self.policy!r}")
        if isinstance(self.methods, str) or not self.methods:
            raise ConfigurationError(f"{self.template}: methods takes a tuple, such as ('POST',)")
        object.__setattr__(self, "methods", tuple(method.upper() for method in self.methods))
        for method in self.methods:
            if method not in UNSAFE_METHODS:
                allowed = ", ".join(UNSAFE_METHODS)
                raise ConfigurationError(f"{self.template}: {method} is not a command; methods are {allowed}")
        if self.name == "":
            raise ConfigurationError(f"{self.template}: name must not be empty")
        given = _names(self.template)
        for template in self.also:
            if sorted(_names(template)) != sorted(given):
                raise ConfigurationError(
                    f"{template} and {self.template} are one operation, so they need the same parameters, which are "
                    "part of the request"
                )
        for source in sources(self.policy.key_from, self.policy.reference_from):
            if source is not None:
                source.check_parameters(given, self.template)


class Route:
    """An operation under one method, with everything that a request needs from its policy."""

    __slots__ = (
        "atomic",
        "body_bytes_max",
        "bytes_read_max",
        "counted",
        "counts_mount",
        "counts_path",
        "entries",
        "fingerprinter",
        "honoured",
        "idempotent",
        "is_bare",
        "is_plain",
        "is_simple",
        "keeping",
        "key_from",
        "known",
        "length_digits",
        "marks",
        "name",
        "policy",
        "rare",
        "recipe",
        "recorded",
        "reference_from",
        "required",
        "surface",
    )

    def __init__(
        self,
        name: str,
        policy: Policy,
        fingerprint_secret: bytes | None = None,
        counts: tuple[str, ...] = (),
    ) -> None:
        self.name = str.__str__(name)  # an enumeration member's text
        self.policy = policy
        self.required = policy.key == "required"
        self.key_from, self.reference_from = sources(policy.key_from, policy.reference_from)
        self.marks = policy.on_unprotected == "mark"
        self.atomic = policy.terms.effects is Effects.ATOMIC
        self.idempotent = policy.terms.effects is Effects.IDEMPOTENT
        # The handler runs without a limit, is not cancelled, and its client waits for it.
        self.is_simple = not (self.atomic or self.idempotent or policy.resumable)
        # Only the fingerprint comes from the body, and any key is allowed.
        self.is_bare = not (self.key_from or self.reference_from or policy.key_format or policy.resumable)
        self.is_plain = self.is_bare and policy.is_plain
        self.body_bytes_max = policy.body_bytes_max
        self.bytes_read_max = max(policy.body_bytes_max, RETRY_BYTES_MAX)
        self.length_digits = len(str(self.bytes_read_max))
        self.entries: dict[tuple[str, str, str, bytes], Any] = {}  # an exchange's shared facts of requests
        self.keeping = Keeping(policy, name)
        self.honoured = Honoured()
        recipe = policy.recipe
        if counts and policy.counts is None and not recipe.headers:
            recipe = replace(recipe, headers=counts)
        named = (recipe, *policy.fingerprints_known)
        # Today's recipe comes last: it wins over a former one with the same id.
        recipes = (*(former for each in named for former in each.former), *policy.fingerprints_known, recipe)
        makers = [
            Fingerprinter(each, fingerprint_secret if each.algorithm == "hmac-sha256" else None) for each in recipes
        ]
        self.fingerprinter = makers[-1]
        self.known = {id: (maker, False) for maker in makers for id in maker.ids}  # and whether the path counts there
        self.recorded = {id: id for id in self.fingerprinter.ids}  # the id that a fingerprint is recorded under
        self.recipe = self.recorded[recipe.id]  # the id of nearly all fingerprints
        self.counted = tuple(sorted({name.encode() for each in recipes for name in each.headers}))
        self.counts_path = False
        self.counts_mount = True
        self.surface: Any = None  # which it belongs to
        self.rare = RARE  # the headers that need the slower reading of a head

    def count_path(self) -> None:
        """Add the path to the fingerprint: several different routes share the operation.

        Records from before are still recognised, by their recipe's own id.
        """
        if not self.counts_path:
            self.counts_path = True
            self.known |= {_with_path(id): (maker, True) for id, (maker, _) in self.known.items()}
            self.recorded = {id: _with_path(id) for id in self.fingerprinter.ids}
            self.recipe = self.recorded[self.fingerprinter.recipe.id]


def _with_path(recipe_id: str) -> str:
    """Return the id of a recipe under which the path also counts, of the same length as any other."""
    version = recipe_id.partition(".")[0]
    return f"{version}.{hashlib.sha256(f'{recipe_id}/path'.encode()).hexdigest()[:16]}"


class Routes:
    """All operations of an application, found by method and path.

    >>> routes = Routes([Operation("/orders/{id}/cancel")])
    >>> route, params = routes.find("POST", "/orders/42/cancel")
    >>> route.name, params
    ('POST /orders/{id}/cancel', (('id', '42'),))
    """

    __slots__ = ("_any", "_normal", "_rest", "_templated", "exact")

    def __init__(
        self,
        operations: Sequence[Operation] = (),
        default: Policy | None = None,
        fingerprint_secret: bytes | None = None,
        counts: tuple[str, ...] = (),
    ) -> None:
        self.exact: dict[tuple[str, str], tuple[Route, Params]] = {}  # by method and path, without parameters
        self._templated: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        self._rest: dict[str, list[tuple[list[str], Route]]] = {}
        self._normal: dict[str, list[tuple[list[str], str]]] = {}  # by method: normal segments, template
        self._any: dict[str, Route] = {}
        names: set[str] = set()
        for operation in operations:
            if operation.name is not None and operation.name in names:
                raise ConfigurationError(f"duplicate operation name {operation.name!r}: their keys would collide")
            for method in operation.methods:
                name = operation.name or f"{method} {operation.template}"
                names.add(name)
                route = Route(name, operation.policy, fingerprint_secret, counts)
                for template in operation.templates:
                    self._add(method, template, route)
        if default is not None:
            # Requests to undeclared operations: those without a key are not Semel's concern.
            default = replace(default, key="optional")
            self._any = {
                method: Route(f"{method} *", default, fingerprint_secret, counts) for method in DEFAULT_METHODS
            }

    def all(self) -> Iterator[Route]:
        """Every route, including the default's."""
        for route, _ in self.exact.values():
            yield route
        for several in (*self._templated.values(), *self._rest.values()):
            for _, route in several:
                yield route
        yield from self._any.values()

    def find(self, method: str, path: str) -> tuple[Route, Params] | None:
        """Return the route of a request and its path parameters; None if no operation is declared for it."""
        return self.exact.get((method, path)) or self.find_template(method, path)

    def find_template(self, method: str, path: str) -> tuple[Route, Params] | None:
        """As :meth:`find`, among the operations with parameters in their paths."""
        if self._templated:
            parts = path.split("/")
            for template, route in self._templated.get((method, len(parts)), ()):
                params = _match(template, parts)
                if params is not None:
                    return route, params
        for template, route in self._rest.get(method, ()):
            parts = path.split("/", len(template) - 1)
            params = _match(template, parts)
            if params is not None:
                return route, params
        return None

    def find_default(self, method: str, path: str) -> tuple[Route, Params] | None:
        """Return the route of a request that no operation is declared for; None without a default policy."""
        default = self._any.get(method)
        # Without a template the path itself distinguishes commands.
        return None if default is None else (default, (("path", path),))

    def find_misspelled(self, method: str, segments: Sequence[str]) -> str | None:
        """Return the template that a request would match in its normal spelling; None if there is none.

        Parameters: ``segments`` of its path, as :func:`~semel.http.spelling.normal_segments` gives them.
        """
        for template, spelled in self._normal.get(method.upper(), ()):
            several = bool(template) and template[-1].startswith("{") and template[-1].endswith(":path")
            fits = len(segments) >= len(template) if several else len(segments) == len(template)
            if fits and all(
                expected.startswith("{") or expected == segment
                for expected, segment in zip(template, segments, strict=False)
            ):
                return spelled
        return None

    def _add(self, method: str, template: str, route: Route) -> None:
        parts = template.split("/")
        names = [_name(part, template) for part in parts]
        given = [name for name in names if name]
        if len(given) != len(set(given)):
            raise ConfigurationError(f"{template} names a parameter twice")
        # Literal segments stay, the others become their names (and types) after a brace.
        compiled = [part[:-1] if name else part for name, part in zip(names, parts, strict=True)]
        normal = [
            segment
            for name, part in zip(names, parts, strict=True)
            for segment in ([part[:-1]] if name else normal_segments(part))
        ]
        self._normal.setdefault(method, []).append((normal, template))
        rest = [index for index, part in enumerate(parts) if part.endswith(":path}")]
        if rest and rest != [len(parts) - 1]:
            raise ConfigurationError(f"{template}: a parameter that spans segments (:path) must be the last one")
        if not given:
            if (method, template) in self.exact:
                raise ConfigurationError(f"{method} {template} is declared twice")
            self.exact[method, template] = (route, ())
            return
        same = self._rest.setdefault(method, []) if rest else self._templated.setdefault((method, len(parts)), [])
        if any(_shape(compiled) == _shape(other) for other, _ in same):
            raise ConfigurationError(f"{method} {template} is declared twice")
        same.append((compiled, route))


def _names(template: str) -> list[str]:
    """Return the names of a template's parameters."""
    return [name for part in template.split("/") if (name := _name(part, template))]


def _name(part: str, template: str) -> str:
    """Return a segment's parameter name; empty for a literal one."""
    if not part.startswith("{") and "{" not in part and "}" not in part:
        return ""
    name = part[1:-1].partition(":")[0]
    if not (part.startswith("{") and part.endswith("}") and name.isidentifier()):
        raise ConfigurationError(f"{template}: a parameter takes a whole segment, such as /orders/{{id}}; not {part!r}")
    return name


def _shape(compiled: list[str]) -> list[str]:
    return ["{" if part.startswith("{") else part for part in compiled]


def _match(template: list[str], parts: list[str]) -> Params | None:
    if len(template) != len(parts):
        return None
    params = []
    for expected, part in zip(template, parts, strict=True):
        if expected.startswith("{"):
            # Frameworks drop unprintable characters or stop at them, so that two spellings would be one parameter.
            if not part or not part.isprintable():
                return None
            name, _, kind = expected[1:].partition(":")
            if kind in _PLAIN and _PLAIN[kind](part) is None:
                return None
            params.append((name, part))
        elif expected != part:
            return None
    return tuple(params)
