"""The recipe of a fingerprint: which part of a request counts, under which algorithm and limits, as one frozen value.

Its id is stored beside every fingerprint, so that a changed configuration is recognised as such and never taken for
a changed request. The file deliberately does not compute fingerprints; `fingerprint.py` does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Literal

from semel.errors import PolicyError

RECIPE_VERSION = 1
"""Of new recipes. Grows when the same configuration would give another fingerprint than before."""
RECIPE_VERSIONS = (1,)
"""Those that can be named: an algorithm stays for as long as a store may hold a record that was made under it."""

_MIB = 1024 * 1024
# Deeper documents would need more stack than an application is sure to have left; see canonical.py.
_DEPTH_MAX = 256


@dataclass(frozen=True, slots=True)
class WholeBody:
    """The whole body counts, in its canonical form where its media type has one."""


@dataclass(frozen=True, slots=True)
class Members:
    """Only these members of a JSON object count; other bodies count whole.

    Args:
        names: paths as in `select_members`: `("amount", "customer.id")`. Their order does not matter. A path that
            leads nowhere makes no difference between requests: spell them with care.

    Raises:
        PolicyError: no path, an empty one, or one that is given twice.
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
class DigestField:
    """The request's own Content-Digest field stands for the body, which is checked against it.

    The digest is that of the content as received, before any content coding is undone. sha-256 counts where both it
    and sha-512 are given; both are checked.

    Source: RFC 9530, sections 2 and 5.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How fingerprints are made: version and configuration, named by `id`.

    Args:
        body: which part of the body counts.
        algorithm: `sha256`, or `hmac-sha256` under a secret, so that who reads the store cannot try out bodies.
        json_depth_max: how deep JSON may nest, 1 to 256; deeper is refused.
        json_bytes_max: the largest JSON or URL-encoded form body, in bytes, that is held in memory and made
            canonical; a larger one is hashed as received (under `Members` it is refused).
        secret_id: a name for the HMAC secret, to tell rotated secrets apart. Never the secret.
        version: of the algorithm. Name the former one while processes that do not know this one share the store;
            records of former versions are recognised without being named.

    Raises:
        PolicyError: an impossible value.

    >>> Recipe().id == Recipe().id, Recipe().id == Recipe(json_depth_max=32).id
    (True, False)
    >>> Recipe(version=1).id
    '1.30dc22e178303ecd'
    """

    body: WholeBody | Members | DigestField = field(default_factory=WholeBody)
    algorithm: Literal["sha256", "hmac-sha256"] = "sha256"
    json_depth_max: int = 64
    json_bytes_max: int = _MIB
    secret_id: str = ""
    version: int = RECIPE_VERSION
    id: str = field(init=False, compare=False)
    """Version and configuration in 18 characters, such as "1.3f9a0c2b5d6e7f80"; computed once."""

    def __post_init__(self) -> None:
        if not isinstance(self.body, (WholeBody, Members, DigestField)):
            raise PolicyError("body must be WholeBody(), Members(...) or DigestField().")
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
        object.__setattr__(self, "id", self._digest())

    @property
    def former(self) -> tuple[Recipe, ...]:
        """The same configuration under each version before this one: records made before an upgrade are under these."""
        return tuple(replace(self, version=version) for version in RECIPE_VERSIONS if version < self.version)

    def _digest(self) -> str:
        names = self.body.names if isinstance(self.body, Members) else ()
        configuration = (type(self.body).__name__, names, self.algorithm, self.json_depth_max, self.json_bytes_max)
        # ascii() of texts and numbers is the same in every Python, and different for different values. 64 bits: a
        # store meets a handful of recipes in its life, so that no two of them ever share an id.
        text = ascii((*configuration, self.secret_id))
        return f"{self.version}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
