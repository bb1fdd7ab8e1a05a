"""The target of a check: a small protocol, and its adapters for applications, addresses and functions.

A target of your own needs the five members of :class:`Target`; everything else of this package works with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

from semel.check.discovery import CheckedOperation, Discovered, function_operation, is_asgi, is_wsgi
from semel.errors import ConfigurationError
from semel.testing.idempotent.case import Case, Request
from semel.testing.idempotent.reply import Reply

ATTEMPT_SECONDS: Final = 30.0  # after which a target counts as hanging
PARALLEL: Final = 8


class Fate(Enum):
    """The fate of the answer."""

    ANSWERED = "the answer arrives"
    LEAVES = "the client goes away before the answer"


@runtime_checkable
class Target(Protocol):
    """Something that commands can be sent to.

    ``name`` in reports; ``found`` its known operations (None: they cannot be read). ``open`` runs before all attempts
    and ``close`` after them, on one event loop. ``attempt`` sends one request with a key (None: without) and never
    raises the target's exceptions: they are part of the reply.
    """

    name: str

    @property
    def found(self) -> Discovered | None:
        """The target's known operations."""

    async def open(self) -> None:
        """Start the target; raises CannotRun with the remedy."""

    async def close(self) -> None:
        """Stop it."""

    async def attempt(self, request: Request, key: str | None, fate: Fate) -> Reply:
        """Send one request."""

    def operation(self, request: Request) -> CheckedOperation | None:
        """Return the declared operation of a request, if known."""


def target_of(thing: Any, case: Case) -> Target:
    """Make a target from the user's argument.

    Parameters: ``thing`` an ASGI or WSGI application, the base URL of a running server (``http://127.0.0.1:8000``),
    a function that takes the key, or a :class:`Target`.

    Raises ConfigurationError, which lists valid arguments.
    """
    from semel.testing.idempotent.targets.asgi import AsgiTarget
    from semel.testing.idempotent.targets.function import FunctionTarget
    from semel.testing.idempotent.targets.url import UrlTarget
    from semel.testing.idempotent.targets.wsgi import WsgiTarget

    if isinstance(thing, Target):
        return thing
    if isinstance(thing, str):
        return UrlTarget(thing)
    if function_operation(thing) is not None:
        return FunctionTarget(thing)
    if callable(thing) and is_asgi(thing):
        return AsgiTarget(thing)
    if callable(thing) and is_wsgi(thing) and case.request:
        return WsgiTarget(thing)
    if inspect.isroutine(thing) and not case.request:
        return FunctionTarget(thing)
    if callable(thing) and not case.request:
        return FunctionTarget(thing)
    raise ConfigurationError(
        f"{thing!r} cannot be tested: give an ASGI or WSGI application and request='POST /path', a base URL such as "
        "'http://127.0.0.1:8000', or a function with key='its parameter for the key'"
    )


def name_of(thing: Any) -> str:
    """Return a report's name for an application or function."""
    title = getattr(thing, "title", None)
    if isinstance(title, str) and title and title != "FastAPI":
        return title
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return str(name).replace("<locals>.", "").rpartition(".")[2] or str(name)


def encode_headers(headers: Mapping[str, str], key: str | None, key_header: str) -> list[tuple[str, str]]:
    """Encode the headers of one attempt, in a stable order."""
    lines = [(name, str(value)) for name, value in headers.items()]
    return lines if key is None else [*lines, (key_header, key)]
