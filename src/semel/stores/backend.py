"""A store with the driver that performs its flows, and how ATOMIC units begin on it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from semel.core.contract import Store
from semel.core.flow import Flow
from semel.core.model import Claim, Verdict
from semel.core.requests import AnyUnit, AsyncOwnUnit, AsyncUnit, OwnUnit, Unit
from semel.errors import ConfigurationError, SchemaError

_PASSWORD: Final = re.compile(r"(://[^/@:]*:).*@")  # up to the last @: the password may have one that is not escaped
_PARAMETER: Final = re.compile(r"((?:password|passwd|secret|token)=)[^&]*", re.IGNORECASE)
MIGRATE: Final = "run: semel migrate"
UNIT_RUNS_MAX: Final = 4  # runs of an ATOMIC handler that ends in a deadlock or a serialization failure each time

_NO_UNITS = (
    "effects='atomic' needs a store in the same database as the handler's writes; {name} cannot hold both in one "
    "transaction. Use sqlite:///, postgresql:// or mysql:// (MariaDB), or declare the operation 'external' or "
    "'idempotent'"
)


class EventListener(Protocol):
    """A listener for events that any process has committed."""

    @property
    def is_listening(self) -> bool:
        """Whether a commit would be heard now."""

    async def open(self) -> None:
        """Begin to listen."""

    async def close(self) -> None:
        """Stop listening."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine's store and drivers. ``unit`` and ``unit_async`` are None for a store without transactions."""

    name: str
    store: Store
    driver: Any
    # Claims ids that a look has just not found, where that is cheaper than any claim.
    claim_unseen: Callable[[Sequence[Claim]], Flow[list[Verdict]]] | None = None
    unit: Callable[[], OwnUnit] | None = None
    unit_async: Callable[[], Awaitable[AsyncOwnUnit]] | None = None
    joins: Callable[[Any], Unit] | None = None
    joins_async: Callable[[Any], Awaitable[AsyncUnit]] | None = None
    # Like ``joins``, for a transaction begun or not and writes that need no claim. None: use ``joins``.
    joins_to_write: Callable[[Any], Unit] | None = None
    joins_to_write_async: Callable[[Any], Awaitable[AsyncUnit]] | None = None
    # Listens for commits of events by all processes; None: the database has no notifications.
    listens: Callable[[Callable[[bool], object]], EventListener] | None = None
    file: str | None = None  # the path of the database, where it is one file of this host
    settings: Mapping[str, str | float] = field(default_factory=dict)  # from the URL, or their defaults
    conflicts: Callable[[BaseException], bool] = lambda error: False  # rolled back because of another transaction
    stopped: Callable[[BaseException], bool] = lambda error: False  # a statement's time, or its wait, was over
    url: str = field(default="", repr=False)  # with its password
    accepts_loss: bool = False  # declared by the operator: it may forget, and EXTERNAL commands run on it
    lane: Callable[[bytes], str] | None = None  # which calls, by record id, may share a round trip; None: all

    def check_atomic(self) -> None:
        """Raise ConfigurationError where ATOMIC operations are impossible."""
        if self.unit is None:
            raise ConfigurationError(_NO_UNITS.format(name=self.name))

    def is_for_now(self, error: BaseException) -> bool:
        """Whether the cause of an ATOMIC handler's failure may be gone when the client retries."""
        return isinstance(error, TimeoutError) or self.conflicts(error) or self.stopped(error)

    def locate(self, error: SchemaError) -> None:
        """Add the store's URL to an error that asks for a migration; drivers do not know it."""
        text = str(error)
        if self.url and text.endswith(MIGRATE):
            error.args = (f"{text} --url {quote_url(self.url)}",)

    def begin(self) -> OwnUnit:
        """Open an ATOMIC unit."""
        self.check_atomic()
        assert self.unit is not None
        return self.unit()

    async def begin_async(self) -> AsyncOwnUnit:
        """Open an ATOMIC unit without blocking the loop."""
        self.check_atomic()
        assert self.unit_async is not None
        return await self.unit_async()

    def join(self, connection: Any) -> Unit:
        """Join the user's next transaction."""
        assert self.joins is not None
        return self.joins(connection)

    def join_to_write(self, connection: Any) -> Unit:
        """Join the user's transaction, begun or not: unlike a claim, an event may come at any time in it."""
        return self.join(connection) if self.joins_to_write is None else self.joins_to_write(connection)

    async def join_to_write_async(self, connection: Any) -> AsyncUnit:
        """As :meth:`join_to_write`, without blocking the loop."""
        if self.joins_to_write_async is None:
            return await self.join_async(connection)
        return await self.joins_to_write_async(connection)

    async def join_async(self, connection: Any) -> AsyncUnit:
        """Join the user's next transaction without blocking the loop for longer than a short look."""
        assert self.joins_async is not None
        return await self.joins_async(connection)


class UnitRuns:
    """The runs of one command's ATOMIC handler: again after a transaction conflict, up to a limit."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._runs = 0

    def again(self, unit: AnyUnit | None, error: Exception) -> bool:
        """Whether to run the handler again after its unit ended with this error."""
        self._runs += 1
        return unit is not None and self._runs < UNIT_RUNS_MAX and self._backend.conflicts(error)


def hide_password(url: str) -> str:
    """Return a store's URL for printing, with its password hidden.

    >>> hide_password("postgresql://semel:secret@db/shop?sslmode=require&password=secret")
    'postgresql://semel:***@db/shop?sslmode=require&password=***'
    """
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))


def quote_url(url: str) -> str:
    """Quote a URL as a shell argument: an & in it would end the command, and lose the options behind it.

    >>> quote_url("postgresql://db/shop?sslmode=require&schema=shop"), quote_url("sqlite:///semel.db")
    ("'postgresql://db/shop?sslmode=require&schema=shop'", 'sqlite:///semel.db')
    """
    return shlex.quote(hide_password(url))
