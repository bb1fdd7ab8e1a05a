"""One look at a store for `semel watch`, and the change between two looks.

The snapshot holds only what the store knows. A replay writes nothing, so the store cannot count replays: the processes'
own `replays` event does. A settlement changes a count and leaves no list: the snapshot shows how many more records are
settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.admin.describe import has_lapsed, state_label, state_name, time_text
from semel.admin.filters import pages
from semel.admin.words import Json, table_lines
from semel.core.identity import uuid_text
from semel.core.model import OPEN_STATES, Find, Record, State
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.inbox.store import Backlog, InboxRows
from semel.operations.flow import is_kept_by
from semel.outbox.store import Depth, Events
from semel.stores.sql.dialect import dialect_of

PAGE: Final = 200
COUNTED_MAX: Final = 2_000  # keeps a look cheap: beyond this it reports "at least"
SHOWN_MAX: Final = 8
_SETTLED: Final = (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE)
REPLAYS_NOTE: Final = "Replays write nothing to the store: count the `replays` event of your processes."


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the store at a time in microseconds; ``more``: there were more rows than it counted."""

    store_id: str
    now: int
    counts: dict[int, int]
    open: tuple[Record, ...]
    unknown: tuple[Record, ...]
    newest: tuple[Record, ...]
    more: bool
    more_new: bool
    events: Depth | None = None  # of the outbox, and of the inbox; None where the store keeps none
    messages: Backlog | None = None

    @property
    def lapsed(self) -> tuple[Record, ...]:
        """Return the open records whose lease has expired."""
        return tuple(record for record in self.open if has_lapsed(record, self.now))

    @property
    def oldest(self) -> Record | None:
        """Return the open record that was created first."""
        return min(self.open, key=lambda record: record.created_at, default=None)

    def count_settled(self) -> int:
        """Return the number of settled records."""
        return sum(self.counts.get(int(state), 0) for state in _SETTLED)


def look(engine: Engine, before: Look | None) -> Look:
    """Look once; records are new if they were created since ``before``."""
    identity = engine.perform("identity", engine.store.identity)
    counts = engine.perform("counts", engine.store.counts)
    open_, more_open, now = _some(engine, Find(states=OPEN_STATES))
    unknown, more_unknown, now = _some(engine, Find(states=(State.UNKNOWN,)))
    store_id = "" if identity is None else identity.store_id
    known = before if before is not None and before.store_id == store_id else None
    newest, more_new = _newest(engine, known)
    events = messages = None
    if is_kept_by(engine.store):
        events = engine.perform("events", Events(dialect_of(engine.store, "events")).depth)
        messages = engine.perform("inbox", InboxRows(engine.store, "", 1, 0).backlog)
    more = more_open or more_unknown
    return Look(store_id, now, counts, open_, unknown, newest, more, more_new, events, messages)


def _some(engine: Engine, query: Find) -> tuple[tuple[Record, ...], bool, int]:
    found: list[Record] = []
    for page in pages(engine, query, PAGE):
        found += page.records
        if len(found) >= COUNTED_MAX:
            break
    return tuple(found), page.next_before is not None, page.now


def _newest(engine: Engine, before: Look | None) -> tuple[tuple[Record, ...], bool]:
    """Return the records created since, newest first; on the first look only the newest one, to count from."""
    found: list[Record] = []
    for page in pages(engine, Find(), 1 if before is None else PAGE):
        for record in page.records:
            if before is not None and record.created_at <= before.now:
                return tuple(found), False
            found.append(record)
        if before is None:
            return tuple(found), False
        if len(found) >= COUNTED_MAX:
            return tuple(found), True
    return tuple(found), False


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two looks; None if there was no previous look at this store."""

    seconds: float
    new: int
    settled: int
    more_new: bool


def change(before: Look | None, now: Look) -> Change | None:
    """Return the change from one look to the next."""
    if before is None or before.store_id != now.store_id:
        return None
    seconds = max((now.now - before.now) / 1_000_000, 1e-6)
    return Change(seconds, len(now.newest), now.count_settled() - before.count_settled(), now.more_new)


def document(seen: Look, changed: Change | None) -> dict[str, Json]:
    """Return a look as JSON."""
    oldest = seen.oldest
    return {
        "at": time_text(seen.now),
        "store": seen.store_id,
        "records": {state.name: seen.counts.get(int(state), 0) for state in State},
        "open": len(seen.open),
        "lapsed": len(seen.lapsed),
        "unknown": len(seen.unknown),
        "atLeast": seen.more,
        "oldestOpenSeconds": None if oldest is None else round((seen.now - oldest.created_at) / 1_000_000, 3),
        "oldestOpen": None if oldest is None else uuid_text(oldest.operation_id),
        "seconds": None if changed is None else round(changed.seconds, 3),
        "newRecords": None if changed is None else changed.new,
        "newRecordsAtLeast": None if changed is None else changed.more_new,
        "settledNet": None if changed is None else changed.settled,
        "events": _events_document(seen.events),
        "messages": _messages_document(seen.messages),
    }


def _events_document(depth: Depth | None) -> Json:
    if depth is None:
        return None
    oldest = round(depth.oldest_us / 1_000_000, 3) if depth.waiting else None
    return {"waiting": depth.waiting, "oldestSeconds": oldest, "parked": depth.parked}


def _messages_document(backlog: Backlog | None) -> Json:
    if backlog is None:
        return None
    oldest = round(backlog.parked_us / 1_000_000, 3) if backlog.parked else None
    return {"tried": backlog.tried, "parked": backlog.parked, "oldestParkedSeconds": oldest}


def line(seen: Look, changed: Change | None) -> str:
    """Describe a look in one line."""
    oldest = seen.oldest
    age = "" if oldest is None else f" (oldest {span_text(seen.now - oldest.created_at)})"
    least = "at least " if seen.more else ""
    parts = [
        f"{sum(seen.counts.values())} records",
        f"{least}{len(seen.open)} open{age}",
        f"{len(seen.lapsed)} lapsed",
        f"{least}{len(seen.unknown)} unknown",
        *_backlog(seen),
        *_rates(changed),
    ]
    return f"{(time_text(seen.now) or '')[:19]}Z  {', '.join(parts)}"


def _backlog(seen: Look) -> list[str]:
    """Describe the waiting events and messages; empty if there are none."""
    parts = []
    if seen.events is not None and seen.events.waiting:
        parts.append(f"{seen.events.waiting} events waiting (oldest {span_text(seen.events.oldest_us)})")
    if seen.events is not None and seen.events.parked:
        parts.append(f"{seen.events.parked} events parked")
    if seen.messages is not None and seen.messages.tried:
        parts.append(f"{seen.messages.tried} messages tried")
    if seen.messages is not None and seen.messages.parked:
        parts.append(f"{seen.messages.parked} messages parked (oldest {span_text(seen.messages.parked_us)})")
    return parts


def _rates(changed: Change | None) -> list[str]:
    if changed is None:
        return []
    least = "at least " if changed.more_new else ""
    return [
        f"{least}{changed.new} new ({changed.new / changed.seconds:.1f}/s)",
        f"settled {changed.settled:+d} net ({changed.settled / changed.seconds:+.1f}/s)",
    ]


def screen(seen: Look, changed: Change | None, head: str) -> list[str]:
    """Return a look as the lines of a screen."""
    states = [(state_label(state.name), str(seen.counts.get(int(state), 0))) for state in State]
    rates = _rates(changed) or ["rates follow with the next look"]
    oldest = seen.oldest
    age = "none" if oldest is None else f"{span_text(seen.now - oldest.created_at)} ({oldest.operation})"
    lines = [head, "", line(seen, None), f"since the last look: {', '.join(rates)}", f"oldest open: {age}", ""]
    lines += table_lines(("STATE", "RECORDS"), states)
    waiting = sorted((*seen.lapsed, *seen.unknown), key=lambda record: record.created_at)
    lines += ["", f"needs attention: {len(waiting) or 'nothing'}"]
    if waiting:
        rows = [_row(record, seen.now) for record in waiting[:SHOWN_MAX]]
        lines += table_lines(("OPERATION ID", "STATE", "AGE", "OPERATION", "CALLER"), rows)
    return [*lines, "", REPLAYS_NOTE]


def _row(record: Record, now: int) -> tuple[str, ...]:
    name = f"{state_label(state_name(record, now))}{', lapsed' if has_lapsed(record, now) else ''}"
    who = f"{record.tenant}/{record.caller}"
    # The id comes first: a narrow terminal cuts the end of a line, and a cut id is useless.
    return uuid_text(record.operation_id), name, span_text(now - record.created_at), record.operation, who
