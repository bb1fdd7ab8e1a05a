"""The recipe of a fingerprint: which part of a request counts, under which algorithm and limits, as one frozen value.

Its id is stored beside every fingerprint, so that a changed configuration is never mistaken for a changed request.
The file deliberately does not compute fingerprints; `semel.http.fingerprint` does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from semel.errors import PolicyError

RECIPE_VERSION = 1
"""The version of new recipes. Raise it when the same configuration would give another fingerprint than before."""
RECIPE_VERSIONS = (1,)
"""The versions that can be named: each stays for as long as a store may hold a record that was made under it."""

_MIB = 1024 * 1024
# Deeper documents could need more stack than an application has left; see canonical.py.
_DEPTH_MAX = 256


@dataclass(frozen=True, slots=True)
class WholeBody:
    """The whole body counts, in canonical form if its media type has one."""


@dataclass(frozen=True, slots=True)
class Members:
    """Only these members of a JSON object count; other bodies count whole.

    Args:
        names: paths as in `select_members`: `("amount", "customer.id")`. Their order does not matter. A path
        that leads nowhere does not distinguish requests: spell paths with care.

    Raises:
        PolicyError: there is no path, an empty one, or a duplicate.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        names: object = self.names  # a plain string is the likely mistake, and would name its letters
        if not isinstance(names, tuple) or not names:
            raise PolicyError("Members needs a tuple of at least one member name; use WholeBody() to count all.")
        if not all(isinstance(name, str) and all(name.split(".")) for name in names):
            raise PolicyError("A member name is empty or no text; write paths as in 'customer.id'.")
        if len(set(names)) != len(names):
            raise PolicyError("A member name is given twice; name each once.")
        object.__setattr__(self, "names", tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class NoBody:
    """The body does not count: operation, method, path, query, caller, media type and declared headers do.

    Use it for requests whose body differs between retries without changing the intent.
    """


@dataclass(frozen=True, slots=True)
class Computed:
    """A function of your own computes the part of the body that counts.

    Args:
        function: takes the request's `Facts` and its whole body (bytes, at most `json_bytes_max`, with its
            Content-Encoding removed), and returns bytes or text: equal for equal requests. It runs on the event loop.
            Its exceptions end the request before anything is done; `semel.errors.InvalidBody` is answered with 400.
            name: a name for its result, such as "order-v1": part of the recipe's id. Change it when the function
            computes something else. By default its module and name.

    Raises:
        PolicyError: it is no function, or has no name of its own.

    >>> Computed(lambda facts, body: body[:8], name="first-8").name
    'first-8'
    """

    function: Callable[[Any, bytes], bytes | str]
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise PolicyError("Computed needs a function of the request's facts and its body.")
        name = self.name or f"{getattr(self.function, '__module__', '')}.{getattr(self.function, '__qualname__', '<')}"
        if "<" in name:
            raise PolicyError(
                "a fingerprint function without a name needs one: fingerprint=Recipe(body=Computed(function, "
                "name='order-v1'))"
            )
        object.__setattr__(self, "name", name)


@dataclass(frozen=True, slots=True)
class DigestField:
    """The request's own Content-Digest field replaces the body, which is checked against it.

    The digest is that of the content as received, before any content coding is undone. sha-256 counts where both it
    and sha-512 are given; both are checked.

    Source: RFC 9530, sections 2 and 5.
    """


Body = WholeBody | NoBody | Members | Computed | DigestField
_BODIES: Final = (WholeBody, NoBody, Members, Computed, DigestField)
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
NEVER_COUNTED: Final = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie"),
        *("content-type", "content-encoding", "content-digest", "content-length"),
        *("transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"),
        *("prefer", "early-data", "date"),
    }
)
"""Headers that cannot be declared: they hold credentials, count or are checked anyway, or differ in each retry."""


def check_headers(names: object) -> tuple[str, ...]:
    """Return the names of headers that count, in lower case and sorted.

    Raises:
        PolicyError: a name is no header name, is given twice, or may not count.

    >>> check_headers(("Stripe-Account", "if-match"))
    ('if-match', 'stripe-account')
    """
    if not isinstance(names, (tuple, list, set, frozenset)):
        raise PolicyError(f"counts must be a tuple of header names, such as ('if-match',); it is {names!r}")
    lower = [name.lower() if isinstance(name, str) else name for name in names]
    for name in lower:
        if not isinstance(name, str) or _HEADER(name) is None:
            raise PolicyError(f"counts must not name {name!r}: it is not a header name")
        if name in NEVER_COUNTED:
            raise PolicyError(
                f"counts must not name {name!r}: it holds credentials, counts already, or differs in each retry"
            )
    if len(set(lower)) != len(lower):
        raise PolicyError("counts names a header twice; name each once")
    return tuple(sorted(lower))


def as_recipe(given: object) -> object:
    """Make a recipe from its shorthand: the part of the body that counts, or a function of the body."""
    if isinstance(given, _BODIES):
        return Recipe(body=given)
    if callable(given) and not isinstance(given, type):
        return Recipe(body=Computed(given))
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The configuration of fingerprints: version and settings, identified by `id`.

    Args:
        body: which part of the body counts.
        algorithm: `sha256`, or `hmac-sha256` under a secret, so that readers of the store cannot try out bodies.
        json_depth_max: how deep JSON may nest, 1 to 256; deeper is refused.
        json_bytes_max: the largest JSON or URL-encoded form body, in bytes, that is held in memory and made
            canonical; a larger one is hashed as received (under `Members` it is refused).
        secret_id: a name for the HMAC secret, to tell rotated secrets apart. Never the secret.
        version: of the algorithm. Name the former one while processes that do not know this one share the store.
            Records of former versions are recognised in any case.
        headers: names of request headers that count: `("stripe-account", "if-match")`. A header that is not there
            differs from an empty one; several lines of one name count in their order.

    Raises:
        PolicyError: an impossible value.

    >>> Recipe().id == Recipe().id, Recipe().id == Recipe(json_depth_max=32).id
    (True, False)
    >>> Recipe(version=1).id
    '1.30dc22e178303ecd'
    """

    body: Body = field(default_factory=WholeBody)
    algorithm: Literal["sha256", "hmac-sha256"] = "sha256"
    json_depth_max: int = 64
    json_bytes_max: int = _MIB
    secret_id: str = ""
    version: int = RECIPE_VERSION
    headers: tuple[str, ...] = ()
    id: str = field(init=False, compare=False)
    """Version and configuration in 18 characters, such as "1.3f9a0c2b5d6e7f80"; computed once."""

    def __post_init__(self) -> None:
        if not isinstance(self.body, _BODIES):
            raise PolicyError("body must be WholeBody(), NoBody(), Members(...), Computed(...) or DigestField().")
        if self.algorithm not in ("sha256", "hmac-sha256"):
            raise PolicyError("algorithm must be 'sha256' or 'hmac-sha256'.")
        if not isinstance(self.json_depth_max, int) or not 1 <= self.json_depth_max <= _DEPTH_MAX:
            raise PolicyError(f"json_depth_max must be between 1 and {_DEPTH_MAX}, not {self.json_depth_max}.")
        if not isinstance(self.json_bytes_max, int) or self.json_bytes_max < 1:
            raise PolicyError(f"json_bytes_max must be at least 1, not {self.json_bytes_max}.")
        if type(self.version) is not int or self.version not in RECIPE_VERSIONS:
            known = ", ".join(map(str, RECIPE_VERSIONS))
            raise PolicyError(f"version must be one that this Semel knows ({known}); it is {self.version!r}.")
        if self.secret_id and self.algorithm == "sha256":
            raise PolicyError("secret_id names an HMAC secret; use algorithm='hmac-sha256' with it.")
        object.__setattr__(self, "headers", check_headers(self.headers))
        object.__setattr__(self, "id", self._digest())

    @property
    def former(self) -> tuple[Recipe, ...]:
        """Return this configuration under each earlier version, for records that were made before an upgrade."""
        return tuple(replace(self, version=version) for version in RECIPE_VERSIONS if version < self.version)

    def _digest(self) -> str:
        names: tuple[str, ...] = ()
        if isinstance(self.body, Members):
            names = self.body.names
        elif isinstance(self.body, Computed):
            names = (self.body.name,)
        configuration = (type(self.body).__name__, names, self.algorithm, self.json_depth_max, self.json_bytes_max)
        # ascii() of texts and numbers is the same in every Python, and different for different values. 64 bits are
        # enough: a store sees a handful of recipes in its life, so that no two share an id.
        # Headers are added only if there are any: a recipe without them keeps its id from before they could count.
        text = ascii((*configuration, self.secret_id, *([self.headers] if self.headers else [])))
        return f"{self.version}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
