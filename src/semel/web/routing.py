"""Which operation a request is: declared templates, and the default for requests that carry a key.

An operation's name goes into scopes, fingerprints and metrics: it is declared, or method and template, never the
raw path. The matcher knows whole segments only; a web framework's own router stays the application's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from semel.errors import ConfigurationError
from semel.model import Effects
from semel.policy import Policy
from semel.rules.fingerprint import Fingerprinter
from semel.rules.references import sources
from semel.web.capture import Keeping

UNSAFE_METHODS: Final = ("POST", "PATCH", "PUT", "DELETE")
DEFAULT_METHODS: Final = ("POST", "PATCH")

Params = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One protected operation of an HTTP application.

    Parameters: ``template`` of its path, such as ``/orders/{id}/cancel`` (``{rest:path}`` at the end takes several
    segments); ``policy``; ``methods`` it is called with; ``name`` that stays when paths change (by default method
    and template).

    >>> Operation("/payments", Policy(effects="external")).methods
    ('POST',)
    """

    template: str
    policy: Policy = field(default_factory=Policy)
    methods: Sequence[str] = ("POST",)
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.template, str) or not self.template.startswith("/"):
            raise ConfigurationError(f"an operation's template starts with a slash; it is {self.template!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigurationError(f"{self.template}: policy must be a Policy; it is {self.policy!r}")
        if isinstance(self.methods, str) or not self.methods:
            raise ConfigurationError(f"{self.template}: methods takes a tuple, such as ('POST',)")
        object.__setattr__(self, "methods", tuple(method.upper() for method in self.methods))
        for method in self.methods:
            if method not in UNSAFE_METHODS:
                allowed = ", ".join(UNSAFE_METHODS)
                raise ConfigurationError(f"{self.template}: {method} is no command; methods are {allowed}")
        if self.name == "":
            raise ConfigurationError(f"{self.template}: name must not be empty")
        given = [_name(part, self.template) for part in self.template.split("/")]
        for source in sources(self.policy.key_from, self.policy.reference_from):
            if source is not None:
                source.check_parameters((name for name in given if name), self.template)


class Route:
    """An operation under one method, with all that a request needs of its policy at hand."""

    __slots__ = (
        "atomic",
        "fingerprinter",
        "keeping",
        "key_from",
        "known",
        "marks",
        "name",
        "policy",
        "recipe",
        "reference_from",
        "required",
    )

    def __init__(self, name: str, policy: Policy, fingerprint_secret: bytes | None = None) -> None:
        self.name = name
        self.policy = policy
        self.required = policy.key == "required"
        self.key_from, self.reference_from = sources(policy.key_from, policy.reference_from)
        self.marks = policy.on_unprotected == "mark"
        self.atomic = policy.terms.effects is Effects.ATOMIC
        self.keeping = Keeping(policy, name)
        self.recipe = policy.fingerprint.id
        recipes = (policy.fingerprint, *policy.fingerprints_known)
        makers = {
            recipe.id: Fingerprinter(recipe, fingerprint_secret if recipe.algorithm == "hmac-sha256" else None)
            for recipe in recipes
        }
        self.fingerprinter = makers.pop(self.recipe)
        self.known = makers


class Routes:
    """All operations of an application, found by method and path.

    >>> routes = Routes([Operation("/orders/{id}/cancel")])
    >>> route, params = routes.find("POST", "/orders/42/cancel")
    >>> route.name, params
    ('POST /orders/{id}/cancel', (('id', '42'),))
    """

    __slots__ = ("_any", "_exact", "_rest", "_templated")

    def __init__(
        self,
        operations: Sequence[Operation] = (),
        default: Policy | None = None,
        fingerprint_secret: bytes | None = None,
    ) -> None:
        self._exact: dict[tuple[str, str], tuple[Route, Params]] = {}
        self._templated: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        self._rest: dict[str, list[tuple[list[str], Route]]] = {}
        self._any: dict[str, Route] = {}
        names: set[str] = set()
        for operation in operations:
            if operation.name is not None and operation.name in names:
                raise ConfigurationError(f"two operations are named {operation.name!r}: their keys would meet")
            for method in operation.methods:
                name = operation.name or f"{method} {operation.template}"
                names.add(name)
                self._add(method, operation.template, Route(name, operation.policy, fingerprint_secret))
        if default is not None:
            # Requests that nobody declared: those without a key are none of ours.
            default = replace(default, key="optional")
            self._any = {method: Route(f"{method} *", default, fingerprint_secret) for method in DEFAULT_METHODS}

    def find(self, method: str, path: str) -> tuple[Route, Params] | None:
        """The route of a request and its path parameters; None where no operation is declared for it."""
        found = self._exact.get((method, path))
        if found is not None:
            return found
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
        default = self._any.get(method)
        # Without a template the path itself tells one command from another.
        return None if default is None else (default, (("path", path),))

    def _add(self, method: str, template: str, route: Route) -> None:
        parts = template.split("/")
        names = [_name(part, template) for part in parts]
        given = [name for name in names if name]
        if len(given) != len(set(given)):
            raise ConfigurationError(f"{template} names a parameter twice")
        # The literal segments stay, the others become their names behind a brace.
        compiled = [f"{{{name}" if name else part for name, part in zip(names, parts, strict=True)]
        rest = [index for index, part in enumerate(parts) if part.endswith(":path}")]
        if rest and rest != [len(parts) - 1]:
            raise ConfigurationError(f"{template}: a parameter of several segments (:path) can only be the last")
        if not given:
            if (method, template) in self._exact:
                raise ConfigurationError(f"{method} {template} is declared twice")
            self._exact[method, template] = (route, ())
            return
        same = self._rest.setdefault(method, []) if rest else self._templated.setdefault((method, len(parts)), [])
        if any(_shape(compiled) == _shape(other) for other, _ in same):
            raise ConfigurationError(f"{method} {template} is declared twice")
        same.append((compiled, route))


def _name(part: str, template: str) -> str:
    """A segment's parameter name; empty for a literal one."""
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
            if not part:
                return None
            params.append((expected[1:], part))
        elif expected != part:
            return None
    return tuple(params)
