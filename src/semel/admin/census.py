"""Count open, UNKNOWN and new records of a store from a bounded number of its rows.

For a store of any size, a census reads two pages: the newest records, and those on the store's own list of records
that need attention. Where a page cannot hold all of the latter, it reads both UNKNOWN and open ones, so that neither
hides the other. It never counts over all rows: it counts only the records that it reads, and reports how many those
were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from semel.admin.damaged import repair
from semel.admin.describe import has_lapsed, time_text
from semel.admin.words import Json
from semel.core.identity import uuid_text
from semel.core.model import OPEN_STATES, Find, Found, Record, State
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine

READ: Final = 500  # records of each of the two pages
READ_MAX: Final = 10_000
_UNENDED: Final = (*OPEN_STATES, State.UNKNOWN)


@dataclass(frozen=True)
class Census:
    """The result of two bounded reads of a store, at its time ``now`` in microseconds.

    ``more``: more records need attention than were read. ``older``: the cursor of the records before the newest
    ones; None where there are no others.
    """

    now: int
    limit: int
    attention: tuple[Record, ...]
    newest: tuple[Record, ...]
    more: bool
    older: int | None

    @property
    def more_new(self) -> bool:
        """Return whether there are older records than those read."""
        return self.older is not None

    @cached_property
    def unended(self) -> tuple[Record, ...]:
        """Return the open and UNKNOWN records of both pages, each once."""
        found = {record.id: record for record in (*self.newest, *self.attention) if record.state in _UNENDED}
        return tuple(sorted(found.values(), key=lambda record: record.created_at))

    @cached_property
    def open(self) -> tuple[Record, ...]:
        """Return the open records, oldest first."""
        return tuple(record for record in self.unended if record.state in OPEN_STATES)

    @cached_property
    def lapsed(self) -> tuple[Record, ...]:
        """Return the open records whose lease has expired: no process runs them."""
        return tuple(record for record in self.open if has_lapsed(record, self.now))

    @cached_property
    def unknown(self) -> tuple[Record, ...]:
        """Return the UNKNOWN records, oldest first."""
        return tuple(record for record in self.unended if record.state == State.UNKNOWN)

    @cached_property
    def new_seconds(self) -> float | None:
        """Return the age in seconds of the oldest of the newest records; None if there are none."""
        return self.age_seconds(min(self.newest, key=_creation_time)) if self.newest else None

    @property
    def new_per_second(self) -> float | None:
        """Return the number of records created per second since then."""
        seconds = self.new_seconds
        return None if seconds is None else len(self.newest) / max(seconds, 1.0)

    def age_seconds(self, record: Record) -> float:
        """Return the age of a record in seconds."""
        return max(self.now - record.created_at, 0) / 1_000_000


def read_census(engine: Engine, limit: int = READ) -> Census:
    """Read the newest records, and those that need attention: at most ``limit`` of each.

    Raises StoreError.
    """
    if engine.store.capabilities.balances_attention:
        page = _needing(engine, _UNENDED, limit)
        needing, more = page.records, page.next_before is not None
    else:
        unknown, resting = _needing(engine, (State.UNKNOWN,), limit), _needing(engine, OPEN_STATES, limit)
        few = unknown.records[: max(limit - len(resting.records), limit - limit // 2)]
        needing = (*few, *resting.records[: limit - len(few)])
        left = unknown.next_before is not None or resting.next_before is not None
        more = left or len(needing) < len(unknown.records) + len(resting.records)
    newest = engine.perform("find", lambda: engine.store.find(Find(limit=limit)))
    return Census(
        newest.now,
        limit,
        tuple(map(repair, needing)),
        tuple(map(repair, newest.records)),
        more,
        newest.next_before,
    )


def _needing(engine: Engine, states: Iterable[State], limit: int) -> Found:
    query = Find(states=tuple(sorted(states)), limit=limit, attention=True)
    return engine.perform("find", lambda: engine.store.find(query))


def _creation_time(record: Record) -> int:
    return record.created_at


def what_was_read(seen: Census) -> str:
    """Describe in words how much of the store a census read."""
    newest = f"the newest {len(seen.newest)} records" if seen.more_new else f"all {len(seen.newest)} records"
    needing = f"{len(seen.attention)} that need attention"
    return f"{newest}, and {needing}{'; there are more of these' if seen.more else ''}"


def read_document(seen: Census) -> dict[str, Json]:
    """Return as JSON how much of the store a census read."""
    return {
        "newest": len(seen.newest),
        "attention": len(seen.attention),
        "limit": seen.limit,
        "olderNotRead": seen.more_new,
        "attentionNotRead": seen.more,
    }


def census_document(seen: Census) -> dict[str, Json]:
    """Return a census as JSON."""
    return {
        "at": time_text(seen.now),
        "read": read_document(seen),
        "open": len(seen.open),
        "lapsed": len(seen.lapsed),
        "unknown": len(seen.unknown),
        "oldestOpen": _oldest_document(seen, seen.open),
        "oldestUnknown": _oldest_document(seen, seen.unknown),
        "newRecords": len(seen.newest),
        "newSeconds": _round_millis(seen.new_seconds),
        "newPerSecond": _round_millis(seen.new_per_second),
        "unknownBy": [{"doubt": group.name, **group.document()} for group in groups(seen, "doubt")],
    }


def _oldest_document(seen: Census, records: Sequence[Record]) -> Json:
    if not records:
        return None
    oldest = records[0]
    return {
        "operationId": uuid_text(oldest.operation_id),
        "operation": oldest.operation,
        "seconds": round(seen.age_seconds(oldest), 3),
    }


def _round_millis(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def census_lines(seen: Census) -> list[str]:
    """Return the lines of text that describe a census."""
    rate, more = seen.new_per_second, " or more" if seen.more else ""
    new = "none" if rate is None else f"{rate:.1f} a second, over {span_text(int((seen.new_seconds or 0) * 1e6))}"
    return [
        f"read     {what_was_read(seen)}",
        f"open     {len(seen.open)}{more}{_oldest_text(seen, seen.open)}",
        f"lapsed   {len(seen.lapsed)}{more}",
        f"unknown  {len(seen.unknown)}{more}{_oldest_text(seen, seen.unknown)}",
        f"new      {new}",
    ]


def _oldest_text(seen: Census, records: Sequence[Record]) -> str:
    if not records:
        return ""
    return f", the oldest for {span_text(seen.now - records[0].created_at)} ({records[0].operation})"


# --- groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """The records of one operation, caller or doubt that a census has read."""

    name: str
    open: int
    lapsed: int
    unknown: int
    new: int
    new_per_second: float
    oldest_unknown_seconds: float | None
    operations: tuple[str, ...]

    def document(self) -> dict[str, Json]:
        """Return the group as JSON, without its name."""
        return {
            "open": self.open,
            "lapsed": self.lapsed,
            "unknown": self.unknown,
            "newRecords": self.new,
            "newPerSecond": round(self.new_per_second, 3),
            "oldestUnknownSeconds": _round_millis(self.oldest_unknown_seconds),
            "operations": list(self.operations),
        }


_NAMES: Final[dict[str, Callable[[Record], str]]] = {
    "operation": lambda record: record.operation,
    "caller": lambda record: f"{record.tenant}/{record.caller}",
    "doubt": lambda record: record.doubt or "lapsed",
}
BY: Final = tuple(_NAMES)


def groups(seen: Census, by: str) -> list[Group]:
    """Group the records of a census: groups with the most UNKNOWN, lapsed and new records come first.

    Parameters: ``by`` is ``operation``, ``caller`` or ``doubt``; ``doubt`` groups only UNKNOWN records.
    """
    name = _NAMES[by]
    unknown, lapsed, open_ = _by(seen.unknown, name), Counter(map(name, seen.lapsed)), Counter(map(name, seen.open))
    new: Counter[str] = Counter() if by == "doubt" else Counter(map(name, seen.newest))
    span = max(seen.new_seconds or 0.0, 1.0)
    every = unknown.keys() if by == "doubt" else {*unknown, *lapsed, *open_, *new}
    operations: dict[str, set[str]] = {}
    for record in (*seen.unended, *(() if by == "doubt" else seen.newest)):
        operations.setdefault(name(record), set()).add(record.operation)
    found = [
        Group(
            each,
            0 if by == "doubt" else open_[each],
            0 if by == "doubt" else lapsed[each],
            len(unknown.get(each, ())),
            new[each],
            new[each] / span,
            max(map(seen.age_seconds, unknown[each])) if each in unknown else None,
            tuple(sorted(operations[each])),
        )
        for each in every
    ]
    return sorted(found, key=lambda group: (-group.unknown, -group.lapsed, -group.new, -group.open, group.name))


def _by(records: Iterable[Record], name: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(name(record), []).append(record)
    return found
