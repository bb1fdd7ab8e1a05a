"""Emission of events: into a command's own transaction through its permit, or into a transaction of the user's.

The permit holds its events until it settles, and the same commit writes them. ``Outbox`` writes at once, on the user's
connection; the events exist once the user commits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from semel.core.identity import uuid7_bytes, uuid_bytes, uuid_text
from semel.core.model import Grant, Settlement, State
from semel.errors import PolicyError
from semel.outbox.event import Event
from semel.outbox.rules import event_id, make_event
from semel.outbox.store import Depth, Events
from semel.stores.sql.dialect import dialect_of

if TYPE_CHECKING:
    from semel.engine.async_engine import AsyncEngine
    from semel.engine.sync_engine import Engine
    from semel.policy import Command

EVENTS_MAX: Final = 1000  # of one execution


class Outbox:
    """The outbox of a store's database, for ordinary threads: writes events in a transaction of your own.

    Parameters: ``engine`` on SQLite, PostgreSQL or MariaDB.

    >>> import sqlite3, tempfile
    >>> from semel import Engine
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = Engine.connect(f"sqlite:///{folder.name}/app.db")
    >>> _ = engine.migrate()
    >>> db = sqlite3.connect(f"{folder.name}/app.db")
    >>> outbox = Outbox(engine)
    >>> id = outbox.emit(db, "orders.placed", {"order": 7}, aggregate=("order", "7"))
    >>> db.commit()
    >>> outbox.depth().waiting
    1
    >>> db.close()
    >>> engine.close()
    >>> folder.cleanup()

    Raises ConfigurationError if the store is not a SQL database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events = Events(dialect_of(engine.store, "events"))

    def emit(
        self,
        connection: Any,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        aggregate: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        tenant: str = "",
    ) -> str:
        """Write an event in the transaction of ``connection`` and return its id.

        Parameters: ``connection`` as :meth:`Engine.atomic` takes it, in a transaction that you commit; ``payload``,
        ``type``, ``aggregate`` and ``headers`` as in :meth:`Permit.emit`; ``id`` a UUID of your own: a second event
        with the same id is not written.

        Raises PolicyError for an invalid event, JoinRefused, StoreError.
        """
        event = own_event(id, topic, payload, type, aggregate, headers, tenant)
        self._engine.backend.join_to_write(connection).run(lambda: self._events.write([event]))
        return event.id

    def depth(self) -> Depth:
        """Count waiting and parked events, with the age of the oldest waiting one (microseconds)."""
        return self._engine.perform("events", self._events.depth)


class AsyncOutbox:
    """The async form of :class:`Outbox`, for the connections that :meth:`AsyncEngine.atomic` takes.

    >>> from semel import AsyncEngine
    >>> outbox = AsyncOutbox(AsyncEngine.connect("sqlite:///semel.db"))
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._events = Events(dialect_of(engine.store, "events"))

    async def emit(
        self,
        connection: Any,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        aggregate: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        tenant: str = "",
    ) -> str:
        """As :meth:`Outbox.emit`."""
        event = own_event(id, topic, payload, type, aggregate, headers, tenant)
        unit = await self._engine.backend.join_to_write_async(connection)
        await unit.run_async(lambda: self._events.write([event]))
        return event.id

    async def depth(self) -> Depth:
        """As :meth:`Outbox.depth`."""
        return await self._engine.perform("events", self._events.depth)


class Emission:
    """The events of one permit, until its command is settled."""

    def __init__(self, record: bytes, generation: int, operation_id: bytes, tenant: str) -> None:
        self._of = (record, generation)
        self._operation_id = operation_id
        self._tenant = tenant
        self.events: dict[tuple[str, int], Event] = {}

    def add(
        self,
        topic: str,
        payload: Any,
        type: str | None,
        aggregate: tuple[str, str] | None,
        headers: Mapping[str, str] | None,
        name: str | None,
        ordinal: int,
    ) -> str:
        """Add an event, and return its id. Raises PolicyError."""
        kind = topic if type is None else type
        known = kind if name is None else name
        if name is not None and (not isinstance(name, str) or not name):
            raise PolicyError(f"an event's name is a text, such as 'order.placed'; it is {name!a}")
        if not isinstance(ordinal, int) or isinstance(ordinal, bool) or ordinal < 0:
            raise PolicyError(f"the ordinal of the event {known!a} is a whole number from 0; it is {ordinal!a}")
        if (known, ordinal) in self.events:
            raise PolicyError(
                f"this execution has emitted an event named {known!a} with ordinal {ordinal} already, and both would "
                "have the same id; give each its own ordinal (ordinal=1, 2, …) that is the same in every run of the "
                "handler, or a name"
            )
        if len(self.events) >= EVENTS_MAX:
            raise PolicyError(f"one execution emits at most {EVENTS_MAX} events; emit one that refers to the rest")
        about = ("operation", uuid_text(self._operation_id)) if aggregate is None else aggregate
        event = make_event(
            event_id(*self._of, known, ordinal),
            topic,
            payload,
            type=kind,
            aggregate=about,
            headers=headers,
            tenant=self._tenant,
            operation_id=self._operation_id,
        )
        self.events[known, ordinal] = event
        return event.id

    def with_events(self, settlement: Settlement) -> Settlement:
        """Return the settlement with its events if it is a success; a refused or unknown outcome publishes none."""
        if not self.events or settlement.state is not State.SUCCEEDED:
            return settlement
        return settlement._replace(events=tuple(self.events.values()))


class PermitEvents:
    """The event methods of a permit."""

    may_emit = False  # whether the store keeps events
    emission: Emission | None = None  # its events, if any
    settling: bool
    if TYPE_CHECKING:  # the permit's own
        asked: Command

        @property
        def grant(self) -> Grant: ...

    def emit(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        aggregate: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        ordinal: int = 0,
    ) -> str:
        """Emit an event if and only if this command succeeds: the commit that settles the command writes the event.

        Parameters:
            topic: where it goes: a subject, queue, topic or stream, 1 to 249 letters in parts joined by dots.
            payload: bytes, a text, or any JSON value; at most 1,000,000 bytes.
            type: what it is, for its consumers; the topic by default.
            aggregate: ``("order", order_id)``: its subject. Events of one aggregate are published in their order;
                by default this operation's own.
            headers: texts that travel with it, 8,192 bytes in all.
            name: the source of its id, with ``ordinal``: the type by default. Each pair can be emitted once.

        Returns the event's id, the same for every run of the same execution.

        Raises PolicyError if the event is invalid, or cannot be emitted here; the message says what to do.
        """
        if not self.may_emit:
            raise PolicyError(
                "events need a store in a SQL database: sqlite:///, postgresql:// or mysql:// (MariaDB); this store "
                "is not one"
            )
        if self.settling:
            raise PolicyError(f"the event {topic!a} was emitted after its command was settled; emit it in the handler")
        if self.emission is None:
            grant = self.grant
            self.emission = Emission(grant.id, grant.generation, grant.operation_id, self.asked.scope.tenant)
        return self.emission.add(topic, payload, type, aggregate, headers, name, ordinal)


def own_event(
    id: str | None,
    topic: str,
    payload: Any,
    type: str | None,
    aggregate: tuple[str, str] | None,
    headers: Mapping[str, str] | None,
    tenant: str,
) -> Event:
    """Return an event outside of any command, under the user's id or a new one. Raises PolicyError."""
    if id is None:
        id = uuid_text(uuid7_bytes(time.time_ns() // 1_000_000, os.urandom(10)))
    raw = uuid_bytes(id) if isinstance(id, str) else None
    if raw is None:
        raise PolicyError(f"an event's id is a UUID's text; it is {id!a}")
    known = uuid_text(raw)
    return make_event(
        known,
        topic,
        payload,
        type=type,
        aggregate=("event", known) if aggregate is None else aggregate,
        headers=headers,
        tenant=tenant,
    )


# --- waking the relays of this process ----------------------------------------------------------

_ears: Final[set[Callable[[], object]]] = set()


@contextmanager
def listening(ear: Callable[[], object]) -> Iterator[None]:
    """Call ``ear``, from any thread, whenever a command of this process has committed events."""
    _ears.add(ear)
    try:
        yield
    finally:
        _ears.discard(ear)


def ring() -> None:
    """Wake this process's relays after a commit. Those of other processes poll, or get the database's notification."""
    for ear in list(_ears):
        with suppress(RuntimeError):  # its loop was closed meanwhile
            ear()
