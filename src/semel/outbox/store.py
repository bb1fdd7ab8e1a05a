"""The outbox in a SQL store: writes events in their effect's transaction, reads them in order, marks and deletes them.

Nothing here needs a fence: any relay may report an event as published, and a relay cannot change the row of an event
that is already published or parked. ``partitions.py`` assigns partitions to relays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from semel.core.flow import Ask, Flow
from semel.core.identity import uuid_bytes
from semel.core.model import Settled, Settlement, Settling
from semel.outbox.event import Event, Waiting
from semel.outbox.rules import GONE, pack_headers, partition_of, unpack_headers
from semel.stores.mariadb.requests import SettleAnd
from semel.stores.sql.damage import damage_of, repair
from semel.stores.sql.dialect import MARIADB, POSTGRES, Dialect, Values
from semel.stores.sql.statements import Argument, Execute, Query, Row, Statement, compose

NOUN: Final = "events"
REASON_LETTERS_MAX: Final = 500
_SETTLED: Final = "SELECT 1 / count(*), bool_and(outermost) FROM settled"


class Depth(NamedTuple):
    """The number of events in an outbox."""

    waiting: int
    parked: int
    oldest_us: int  # how long the oldest has been waiting; 0 if none is


class Place(NamedTuple):
    """An event's state, without its payload."""

    seq: int
    id: str
    topic: str
    aggregate_type: str
    aggregate_id: str
    created_at: int


class Events:
    """The outbox of one database."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._sql = dialect.statements(NOUN)

    def write(self, events: Sequence[Event]) -> Flow[int]:
        """Write events in the open transaction; return how many were new."""
        return (yield from self.dialect.write_all(self._sql["write"], columns(events)))

    def due(
        self, partitions: int, limit: int, bytes_max: int, *, hold: bool, away: Collection[str] = ()
    ) -> Flow[list[Waiting]]:
        """Read the events that may be published now, in order.

        Parameters: ``partitions`` a bit for each; ``limit`` events; ``bytes_max`` of payloads, but at least one event;
        ``hold`` whether a parked event blocks later events of its aggregate; ``away`` topics whose events are skipped,
        and with them later events of their aggregates: then the statement reads all unpublished events.
        """
        params: Values = {"lanes": partitions, "limit": limit, "bytes": max(1, bytes_max), "hold": int(hold)}
        if away:
            params = {**params, "away": f",{','.join(away)},"}  # no topic has a comma
        rows = yield from self.dialect.rows(self._sql["due_past" if away else "due"], params)
        return [_waiting(row) for row in rows]

    def mark_published(self, seqs: Sequence[int]) -> Flow[int]:
        """Mark events as published; return how many were not marked yet."""
        return (yield from self.dialect.write_all(self._sql["published"], [{"seq": seq} for seq in seqs]))

    def postpone(self, seq: int, wait_us: int, reason: str) -> Flow[int]:
        """Postpone a refused event: retry it after this many microseconds."""
        params: Values = {"seq": seq, "wait": wait_us, "reason": shorten(reason)}
        return (yield from self.dialect.write(self._sql["postpone"], params))

    def park(self, event: str | int, reason: str) -> Flow[bool]:
        """Park an event: no relay tries it until :meth:`retry`. False if it is published, parked already, or unknown.

        Parameters: ``event`` its id, or its place (``Waiting.seq``): the id of a damaged one may be damaged, too.
        """
        return (yield from self._change("park", event, {"reason": shorten(reason)}))

    def retry(self, event: str | int) -> Flow[bool]:
        """Try a parked event again; False if it is not parked. ``event`` as in :meth:`park`."""
        return (yield from self._change("retry", event, {}))

    def drop(self, event: str | int) -> Flow[bool]:
        """Drop a parked event; False if it is not parked. ``event`` as in :meth:`park`."""
        return (yield from self._change("drop", event, {}))

    def _change(self, name: str, event: str | int, params: Values) -> Flow[bool]:
        if isinstance(event, int):
            return (yield from self.dialect.write(self._sql[f"{name}_row"], {**params, "seq": event})) == 1
        if uuid_bytes(event) is None:
            return False
        return (yield from self.dialect.write(self._sql[name], {**params, "id": event})) == 1

    def find(self, after: int, limit: int, *, parked: bool, topic: str | None = None) -> Flow[list[Waiting]]:
        """Read a page of unpublished events, oldest first; ``after`` a seq; only ``parked`` ones, or one ``topic``."""
        params: Values = {"after": after, "limit": limit, "parked": int(parked), "topic": topic}
        rows = yield from self.dialect.rows(self._sql["find"], params)
        return [_waiting(row) for row in rows]

    def places(self, after: int, limit: int) -> Flow[list[Place]]:
        """Read a page of all events, published or not, oldest first, after the seq ``after``."""
        rows = yield from self.dialect.rows(self._sql["places"], {"after": after, "limit": limit})
        return [Place(*cast("tuple[int, str, str, str, str, int]", row)) for row in rows]

    def past(self, after: int, limit: int) -> Flow[list[Waiting]]:
        """Read a page of published events that are still stored, oldest first, after the seq ``after``."""
        rows = yield from self.dialect.rows(self._sql["past"], {"after": after, "limit": limit})
        return [_waiting(row) for row in rows]

    def depth(self) -> Flow[Depth]:
        """Count the unpublished events. Reads all of them."""
        [row] = yield from self.dialect.rows(self._sql["depth"], {})
        now, waiting, parked, oldest = cast("tuple[int, int, int, int | None]", row)
        return Depth(waiting, parked, max(0, now - oldest) if isinstance(oldest, int) else 0)  # it may be damaged

    def topics(self, limit: int) -> Flow[list[tuple[str, Depth]]]:
        """Count the unpublished events by topic, the one with the oldest event first. Reads all of them."""
        rows = yield from self.dialect.rows(self._sql["topics"], {"limit": limit})
        found = cast("list[tuple[int, str, int, int, int | None]]", rows)
        return [
            (str(topic), Depth(waiting, parked, max(0, now - oldest) if isinstance(oldest, int) else 0))
            for now, topic, waiting, parked, oldest in found
        ]

    def find_disabled(self) -> Flow[frozenset[str]]:
        """Find topics with a disabled webhook endpoint: it has answered 410 Gone, and that event is still parked."""
        rows = yield from self.dialect.rows(self._sql["disabled"], {"gone": GONE})
        return frozenset(str(topic) for (topic,) in rows)

    def sweep(self, keep_us: int, chunk: int) -> Flow[int]:
        """Delete at most ``chunk`` events published longer ago than ``keep_us``; return how many."""
        return (yield from self.dialect.write(self._sql["sweep"], {"keep": keep_us, "chunk": chunk}))


def write_events(dialect: Dialect, events: Sequence[Event]) -> Flow[int]:
    """Write events in the open transaction, and return how many were new."""
    return (yield from Events(dialect).write(events)) if events else 0


_events_of: Final = attrgetter("events")


def settle_with_events(
    dialect: Dialect,
    settle: Callable[[Sequence[Settlement]], Flow[list[Settling]]],
    settlements: Sequence[Settlement],
) -> Flow[list[Settling]]:
    """Settle, and write the events of the successful settlements, in one commit."""
    emitting = any(map(_events_of, settlements))
    if emitting:
        yield from dialect.commit_together()
    replies = yield from settle(settlements)
    if emitting:
        stand = [
            event
            for settlement, reply in zip(settlements, replies, strict=True)
            if isinstance(reply, Settled)
            for event in settlement.events
        ]
        yield from write_events(dialect, stand)
    return replies


def settle_here_and_emit(settle: Query, events: Sequence[Event]) -> Query:
    """Settle an ATOMIC unit and write its events, in one statement (PostgreSQL)."""
    assert not isinstance(settle.params, tuple)
    each = columns(events)
    also: dict[str, Argument] = {name: [values[name] for values in each] for name in each[0]}
    return Query(_settling_and_writing(settle.statement), {**settle.params, **also})


def settle_and_emit(settle: Execute, events: Sequence[Event]) -> SettleAnd:
    """Settle an ATOMIC unit, then write its events, in one round trip (MariaDB)."""
    write = MARIADB.statements(NOUN)["write"]
    return SettleAnd(settle, [Execute(write, values) for values in columns(events)])


_COMPOSED: Final[dict[str, Statement]] = {}


def _settling_and_writing(settle: Statement) -> Statement:
    statement = _COMPOSED.get(settle.text)
    if statement is None:
        write = POSTGRES.statements(NOUN)["write"].text
        _, _, emitting = write.partition("),\n")  # skip the clock: both statements begin with it
        emitting, _, _ = emitting.rpartition("\nSELECT 1 FROM emitted")
        settling, found, _ = settle.text.rpartition(f"\n{_SETTLED}")
        assert found, "postgres.sql and outbox/store.py disagree on how a unit's settlement ends"
        ends = (
            "SELECT 1 / (SELECT count(*) FROM settled), (SELECT bool_and(outermost) FROM settled), "
            "(SELECT count(*) FROM rung)"
        )
        statement = _COMPOSED[settle.text] = compose(f"{settle.name}_and_emit", f"{settling},\n{emitting}\n{ends}")
    return statement


def settling(settle: Ask[Any], settlement: Settlement) -> Ask[Any]:
    """Return the ask that settles inside an ATOMIC unit, with the settlement's events if it has any."""
    if not settlement.events:
        return settle
    if isinstance(settle, Query):
        return settle_here_and_emit(settle, settlement.events)
    assert isinstance(settle, Execute)
    return settle_and_emit(settle, settlement.events)


def columns(events: Sequence[Event]) -> list[Values]:
    """Return the parameters of ``write``, for each event."""
    return [
        {
            "event_id": event.id,
            "aggregate_type": event.aggregate_type,
            "aggregate_id": event.aggregate_id,
            "event_type": event.type,
            "payload": event.payload,
            "topic": event.topic,
            "event_headers": pack_headers(event.headers),
            "event_tenant": event.tenant,
            "lane": partition_of(event.aggregate_type, event.aggregate_id),
            "emitter": event.operation_id,
        }
        for event in events
    ]


_COLUMNS: Final = (
    *("seq", "id", "topic", "type", "aggregatetype", "aggregateid", "payload", "headers", "tenant", "operation_id"),
    *("created_at", "tries", "next_at", "parked_at", "reason"),
)


def _waiting(row: Row) -> Waiting:
    values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=False))
    damage = damage_of(NOUN, values)
    if damage is not None:
        values = repair(NOUN, values)
    event = Event(
        values["id"],
        values["topic"],
        values["type"],
        values["aggregatetype"],
        values["aggregateid"],
        values["payload"],
        unpack_headers(values["headers"]),
        values["tenant"],
        values["operation_id"],
    )
    return Waiting(
        values["seq"],
        event,
        values["created_at"],
        values["tries"],
        values.get("next_at", 0),
        values.get("parked_at"),
        values.get("reason"),
        damage,
    )


def shorten(reason: str) -> str:
    """Shorten a reason to one line, without characters that stores cannot encode."""
    text = " ".join(reason.encode("utf-8", "replace").decode().replace("\x00", "").split())
    return text if len(text) <= REASON_LETTERS_MAX else f"{text[: REASON_LETTERS_MAX - 1]}…"
