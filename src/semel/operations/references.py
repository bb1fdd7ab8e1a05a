"""Reads the names in a request: which texts may be a business reference, and where it or the key is found.

An operation may take its key from a path parameter, a member of the JSON body or a field of a form instead of a header.
The value is read from bytes, pairs and a media type; nothing here knows a request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from semel.core.identity import name_id
from semel.core.model import Kept
from semel.errors import ConfigurationError, InvalidBody, InvalidKey, MissingKey, PolicyError, RequestError

if TYPE_CHECKING:
    from semel.policy import Command

REFERENCE_LENGTH_MAX: Final = 255
REFERENCE: Final = "reference"  # the key is the business reference itself
_SOURCE: Final = re.compile(
    r"path:([A-Za-z_][A-Za-z0-9_]*)|body:((?:/(?:[^/~]|~[01])+)+)|form:([A-Za-z_][A-Za-z0-9_.-]*)"
).fullmatch
_KEY: Final = re.compile(r"[!-~]{1,255}").fullmatch
_HOW: Final = (
    "'path:orderId' (a parameter of the path), 'body:/orderId' (a member of the JSON body) or "
    "'form:_key' (a field of a form)"
)


def is_reference(text: object) -> bool:
    """Whether a value may be a business reference: 1 to 255 printable characters.

    >>> is_reference("INV-2026/117"), is_reference(""), is_reference("a\\nb"), is_reference(7)
    (True, False, False, False)
    """
    return isinstance(text, str) and 0 < len(text) <= REFERENCE_LENGTH_MAX and text.isprintable()


def reference_id(
    tenant: str, operation: str, business_ref: str, secret: bytes | None = None, *, caller: str | None = None
) -> bytes:
    """Hash a business reference within its tenant and operation to 16 bytes.

    Parameters: ``caller`` where the reference is the caller's own (``reference_scope="caller"``).

    >>> reference_id("acme", "pay", "inv-1") == reference_id("acme", "pay", "inv-1")
    True
    >>> reference_id("acme", "pay", "inv-1") == reference_id("acme", "refund", "inv-1")
    False
    >>> reference_id("acme", "pay", "inv-1", caller="alice") == reference_id("acme", "pay", "inv-1", caller="bob")
    False
    """
    if caller is None:
        return name_id(secret, b"semel.reference.1", tenant, operation, business_ref)
    return name_id(secret, b"semel.reference.caller.1", tenant, caller, operation, business_ref)


def make_kept(command: Command, secret: bytes | None) -> Kept | None:
    """Make the row that outlives this command's key; None if nothing does."""
    ref = command.business_ref
    if ref is None and command.policy.operation_seconds is None:
        return None
    keep_us = command.keep_us
    assert keep_us is not None
    if ref is None:
        return Kept(None, None, keep_us)
    tenant, caller, operation = command.scope
    whose = caller if command.policy.reference_scope == "caller" else None
    return Kept(ref, reference_id(tenant, operation, ref, secret, caller=whose), keep_us)


def check_reference(text: object) -> None:
    """Raise PolicyError for an invalid business reference, with the valid form."""
    if not is_reference(text):
        told = ascii(text[:40]) if isinstance(text, str) else type(text).__name__
        raise PolicyError(
            f"a command's business_ref must be 1 to {REFERENCE_LENGTH_MAX} printable characters, such as an invoice's "
            f"number; it is {told}"
        )


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a name in a request.

    >>> Source.of("key_from", "body:/order/id").find((), b'{"order": {"id": 42}}')
    '42'
    >>> Source.of("key_from", "path:orderId").find((("orderId", "A-1"),), b"")
    'A-1'
    >>> Source.of("key_from", "form:_key").find((), b"sku=A-1&_key=k-1", "application/x-www-form-urlencoded")
    'k-1'
    """

    kind: Literal["path", "body", "form"]
    text: str
    steps: tuple[str, ...]

    @classmethod
    def of(cls, option: str, given: object) -> Source:
        """Parse an option. Raises PolicyError."""
        found = _SOURCE(given) if isinstance(given, str) else None
        if found is None:
            raise PolicyError(f"{option} must be {_HOW}; it is {given!r}")
        if found[1] is not None:
            return cls("path", f"path parameter {found[1]!r}", (found[1],))
        if found[3] is not None:
            return cls("form", f"form field {found[3]!r}", (found[3],))
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in found[2][1:].split("/"))
        return cls("body", f"body member {found[2]!r}", steps)

    def check_parameters(self, names: Iterable[str], operation: str) -> None:
        """Raise ConfigurationError where a route has no parameter of this name."""
        known = sorted(names)
        if self.kind == "path" and self.steps[0] not in known:
            has = f"its parameters are {', '.join(known)}" if known else "it has none"
            raise ConfigurationError(f"{operation}: its path has no parameter {self.steps[0]!r}; {has}")

    def find(self, params: Iterable[tuple[str, str]], body: bytes, media_type: str = "") -> str | None:
        """Find the text at this place, a whole number as it is written; None if it is missing or null.

        Parameters: ``media_type`` of the body, as its Content-Type says; a form is read by it.

        Raises InvalidBody: the body is not unambiguous JSON or a form, or the value is not a text.
        """
        if self.kind == "path":
            return dict(params).get(self.steps[0])
        if self.kind == "form":
            return self._field(body, media_type)
        value: Any = _document(body, self.text)
        for step in self.steps:
            if not isinstance(value, dict):
                return None
            value = value.get(step)
        if value is None:
            return None
        if not isinstance(value, str):
            raise InvalidBody(f"The {self.text} must be a text or a whole number; send one.")
        return value

    def _field(self, body: bytes, media_type: str) -> str | None:
        from semel.http.fingerprint.multipart import form_values  # only HTTP reads forms; a policy is made without it

        values = form_values(body, media_type, self.steps[0])
        if values is None or len(values) > 1:
            raise InvalidBody(
                f"The {self.text} cannot be read: send application/x-www-form-urlencoded or multipart/form-data, with "
                "that field once, as text."
            )
        return values[0] if values else None

    def key(self, params: Iterable[tuple[str, str]], body: bytes, media_type: str = "") -> str:
        """Read the command's key. Raises MissingKey, InvalidKey and InvalidBody, naming what to send."""
        found = self.find(params, body, media_type)
        if found is None:
            raise MissingKey(f"This operation takes its key from the {self.text}, which is missing; send it.")
        if not _KEY(found):
            raise InvalidKey(
                f"The {self.text} is this command's key; send 1 to 255 visible ASCII characters without spaces there."
            )
        return found

    def reference(self, params: Iterable[tuple[str, str]], body: bytes, media_type: str = "") -> str:
        """Read the business reference. Raises InvalidBody, naming what to send."""
        found = self.find(params, body, media_type)
        if found is None:
            raise InvalidBody(f"The {self.text} is this command's business reference, and it is missing; send it.")
        if not is_reference(found):
            raise InvalidBody(
                f"The {self.text} is this command's business reference; send 1 to {REFERENCE_LENGTH_MAX} printable "
                "characters there."
            )
        return found


def sources(key_from: str | None, reference_from: str | None) -> tuple[Source | None, Source | None]:
    """Return the places of key and reference; None if undeclared. Raises PolicyError."""
    reference = None if reference_from is None else Source.of("reference_from", reference_from)
    if key_from == REFERENCE:
        if reference is None:
            raise PolicyError("key_from='reference' takes the key from the business reference; give reference_from too")
        return reference, reference
    return None if key_from is None else Source.of("key_from", key_from), reference


def check_sources(key_from: str | None, reference_from: str | None, *, required: bool) -> None:
    """Raise PolicyError where a policy's two options exclude others."""
    sources(key_from, reference_from)
    if key_from is not None and not required:
        raise PolicyError("key_from takes every command's key from the request itself: key='optional' means nothing")


def _document(body: bytes, what: str) -> object:
    try:
        # Digits stay text: Python refuses to convert thousands of digits to an int.
        return json.loads(body, object_pairs_hook=_members, parse_int=str)
    except (ValueError, RecursionError):  # no JSON, not UTF-8, a member twice
        raise InvalidBody(f"The {what} cannot be read: send a JSON object that names each member once.") from None


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member twice")
    return found


__all__ = ["REFERENCE", "RequestError", "Source", "check_reference", "check_sources", "is_reference", "sources"]
