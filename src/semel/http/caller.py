"""The caller: the part of a key's scope that the application must provide.

A key means something only for its caller, so nothing here guesses: a surface without ``caller=`` is refused,
and there is no shared anonymous caller. The functions below read what an *earlier* layer has verified; they
deliberately do not authenticate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from semel.errors import ConfigurationError

NAME_LENGTH_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller and its tenant. The keys of different callers never collide.

    Parameters: ``tenant`` and ``id``, each a text of 1 to 255 characters; never a credential, and never
    a value that the client may choose.

    >>> Caller("acme", "alice").id
    'alice'
    """

    tenant: str
    id: str

    def __post_init__(self) -> None:
        for name in ("tenant", "id"):
            text = getattr(self, name)
            _check(name, text)
            if type(text) is not str:  # for an enumeration's member, its text, which is what is stored and compared
                object.__setattr__(self, name, str.__str__(text))


CallerOfScope = Callable[[dict[str, Any]], Caller | None]
"""An application's function of the ASGI scope or the WSGI environ, with either annotated as any mapping."""

CallerOf = Callable[[Mapping[str, Any]], Caller | None]
"""A function of an ASGI scope or a WSGI environ that returns the caller, or None for an unknown caller."""


def single_caller(request: Mapping[str, Any]) -> Caller:
    """Return one caller for every request of a tool with one tenant and one user: all clients share every key."""
    return _SINGLE


def from_state(name: str, *, tenant: str = "single") -> CallerOf:
    """Reads a value that an earlier middleware verified and put into the request's state (``request.state.NAME``).

    Parameters: ``name`` of the attribute; its value is a :class:`Caller`, or a text that is the caller's id
    within ``tenant``; a missing or empty one means an unknown caller. If it was never set, that is
    logged once for each name, as a warning of the logger ``semel``.

    >>> from_state("user")({"state": {"user": "alice"}})
    Caller(tenant='single', id='alice')
    """
    _check("tenant", tenant)

    def read(request: Mapping[str, Any]) -> Caller | None:
        state = request.get("state")
        value = None if state is None else state.get(name)
        if name not in _SEEN and (value is not None or state is None or name not in state):
            _SEEN.add(name)
            if value is None:
                _tell_unset(name)
        return _caller(f"state.{name}", value, tenant)

    return read


_SEEN: Final[set[str]] = set()  # names that were set once, or whose absence was logged


def _tell_unset(name: str) -> None:
    import logging  # a process whose callers are set never needs it

    logging.getLogger("semel").warning(
        "from_state(%r): no middleware has set request.state.%s, so that no caller is known and commands are refused "
        "with 401. Let your authentication set it before Semel asks: in a dependency of the path operation, or in a "
        "middleware outside of Semel's: request.state.%s = user.id (logged once)",
        name,
        name,
        name,
    )


def from_environ(name: str, *, tenant: str = "single") -> CallerOf:
    """Reads a value that an earlier WSGI layer verified, such as ``from_environ("REMOTE_USER")``.

    Values are read as by :func:`from_state`. Names of request headers (``HTTP_…``) are refused: clients write them.
    """
    _check("tenant", tenant)
    if name.startswith("HTTP_"):
        raise ConfigurationError(
            f"{name} is a request header, which any client can send; use a value that your authentication has verified"
        )

    def read(request: Mapping[str, Any]) -> Caller | None:
        return _caller(f"environ[{name!r}]", request.get(name), tenant)

    return read


class FromUser:
    """Reads the user that Starlette's ``AuthenticationMiddleware`` verified (``scope["user"]``)."""

    __slots__ = ("attribute", "tenant")

    def __init__(self, attribute: str, tenant: str) -> None:
        _check("tenant", tenant)
        self.attribute = attribute
        self.tenant = tenant

    def __call__(self, request: Mapping[str, Any]) -> Caller | None:
        user = request.get("user")
        if user is None or not user.is_authenticated:
            return None
        return _caller(f"user.{self.attribute}", getattr(user, self.attribute), self.tenant)


def from_user(attribute: str = "identity", *, tenant: str = "single") -> CallerOf:
    """Reads an attribute of the user that Starlette's ``AuthenticationMiddleware`` verified.

    Parameters: ``attribute`` that identifies the user and never changes; ``tenant`` where there is only one.
    """
    return FromUser(attribute, tenant)


def _caller(source: str, value: object, tenant: str) -> Caller | None:
    if value is None or value == "":
        return None
    if isinstance(value, Caller):
        return value
    if isinstance(value, str):
        return Caller(tenant, value)
    raise ConfigurationError(
        f"{source} is of the type {type(value).__name__}, neither a text nor a Caller; "
        "give caller= a function of the request that returns Caller(tenant, id)"
    )


def _check(name: str, text: object) -> None:
    if not isinstance(text, str) or not 1 <= len(text) <= NAME_LENGTH_MAX:
        kind = f"of {len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ConfigurationError(f"a caller's {name} must be a text of 1 to {NAME_LENGTH_MAX} characters, not {kind}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"a caller's {name} must be valid Unicode text") from None


_SINGLE: Final = Caller("single", "single")
