"""The last hour of a store, and how late its purge is: both from a bounded number of rows, for a store of any size.

In every store a list leads from a cursor to older records, and cursors only grow, so bisection finds the oldest
records. Where the hour has more records than a census reads, samples at equal distances between two cursors measure
their density. The sum over the samples is the number of records: an estimate, marked as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.admin.census import Census
from semel.admin.describe import has_lapsed
from semel.admin.words import Json
from semel.core.model import STORED_ANSWERS, Find, Found, Record, State
from semel.core.timing import PURGE_GRACE_US, may_drop_answer, may_forget, span_text
from semel.engine.sync_engine import Engine

HOUR_US: Final = 3_600_000_000
LATE_SECONDS: Final = 2 * 3600  # a reaper purges hourly: records left by two purges show that no reaper is running
BARS: Final = 30  # of two minutes
SAMPLES: Final = 20
SAMPLE: Final = 20  # records of each
OLDEST: Final = 50
PROBES_MAX: Final = 64
REFINED: Final = 4  # bisections after the first cursor that is older than the hour
_LOOKS: Final = 1_000  # records that a store without SQL may look at for one probe


class Stretch(NamedTuple):
    """A number of records between two times, in microseconds."""

    begin: int
    end: int
    records: float


@dataclass(frozen=True)
class LastHour:
    """The number of records created in each thirtieth of the last hour, oldest first.

    Parameters: ``new`` all of them, ``estimated``: from samples; ``unended`` the UNKNOWN or
    lapsed records of the census, by their time of creation.
    """

    new: tuple[int, ...]
    unended: tuple[int, ...]
    estimated: bool

    def document(self) -> dict[str, Json]:
        """Return the counts as JSON."""
        return {
            "seconds": HOUR_US // 1_000_000,
            "newRecords": sum(self.new),
            "estimated": self.estimated,
            "new": list(self.new),
            "unknownOrLapsed": list(self.unended),
        }


class PurgeLag(NamedTuple):
    """The delay of the purge, from the ``looked`` oldest records: 0 if nothing is overdue."""

    seconds: float
    looked: int


def last_hour(engine: Engine, seen: Census) -> LastHour:
    """Count the records of the hour before a census. Raises StoreError.

    Reads at most about a hundred pages of :data:`SAMPLE` records beside the census.
    """
    begin = seen.now - HOUR_US
    stretches = [Stretch(record.created_at, record.created_at, 1.0) for record in seen.newest]
    is_whole = seen.older is None or any(record.created_at <= begin for record in seen.newest)
    if not is_whole and seen.older is not None:
        stretches += _estimate(engine, seen.older, begin)
    late = [record for record in seen.unended if record.state == State.UNKNOWN or has_lapsed(record, seen.now)]
    shown = [Stretch(record.created_at, record.created_at, 1.0) for record in late]
    return LastHour(_bars(stretches, seen.now), _bars(shown, seen.now), not is_whole)


def purge_lag(engine: Engine, seen: Census) -> PurgeLag:
    """Measure the delay of the purge by the oldest records. Raises StoreError.

    A purge may drop an answer, or its record, ten minutes after its retention has ended.
    """
    oldest = seen.newest if seen.older is None else _oldest(engine, seen.older)
    late = [late_us for record in oldest if (late_us := _late_us(record, seen.now)) is not None]
    return PurgeLag(max(late, default=0) / 1_000_000, len(oldest))


def _late_us(record: Record, now: int) -> int | None:
    """Return how long this record, or its answer, has been overdue for a purge; None if it is not."""
    if record.forget_after is not None and may_forget(record.forget_after, now):
        over = record.forget_after
        if record.answer_until is not None and record.answer_kind in STORED_ANSWERS:
            over = min(over, record.answer_until)
    elif (
        record.answer_until is not None
        and record.answer_kind in STORED_ANSWERS
        and may_drop_answer(record.answer_until, now)
    ):
        over = record.answer_until
    else:
        return None
    return now - over - PURGE_GRACE_US


def _before(engine: Engine, cursor: int, limit: int) -> Found:
    query = Find(limit=limit, before=cursor, looks=_LOOKS)
    return engine.perform("find", lambda: engine.store.find(query))


def _oldest(engine: Engine, newer: int) -> tuple[Record, ...]:
    """Return the oldest records; where they lie too close for bisection, those between two probes."""
    page = _before(engine, newer, OLDEST)
    found, low, high = page.records, 0, newer
    begin, is_far = page.next_before or newer, False
    step = max(newer - begin, 1)
    for _ in range(PROBES_MAX):
        if page.next_before is None and page.records:
            return page.records
        if page.records or page.next_before is not None:
            found = page.records or found
            high = min(high, page.next_before or high)
        if high - low <= 1:
            break
        if is_far and high - step > low:  # ever larger steps, until no older record exists
            probe, step = high - step, step * 4
        else:
            probe = (low + high) // 2
        page = _before(engine, probe, OLDEST)
        if page.records or page.next_before is not None:
            high = probe
        else:
            low, is_far = probe, low == 0 and high == begin  # a store whose cursors are times: they begin far from 0
    return found


def _estimate(engine: Engine, newest: int, begin: int) -> list[Stretch]:
    """Estimate the distribution of records between a cursor and the time ``begin``, by samples."""
    oldest = _cursor_at(engine, newest, begin)
    cursors = [newest - (newest - oldest) * number // SAMPLES for number in range(SAMPLES + 1)]
    pages = [_before(engine, cursor, SAMPLE) for cursor in cursors[:-1]]
    pages.append(_before(engine, cursors[-1], 1))
    found: list[Stretch] = []
    for number, page in enumerate(pages[:-1]):
        older = pages[number + 1].records
        end = older[0].created_at if older else begin
        reach = page.next_before
        if reach is None or reach <= cursors[number + 1]:  # the sample reaches the next one
            found += [
                Stretch(each.created_at, each.created_at, 1.0)
                for each in page.records
                if not older or each.created_at > end
            ]
        elif page.records:
            density = len(page.records) / (cursors[number] - reach)
            count = density * (cursors[number] - cursors[number + 1])
            found.append(Stretch(min(end, page.records[0].created_at), page.records[0].created_at, count))
    return found


def _cursor_at(engine: Engine, newest: int, begin: int) -> int:
    """Return a cursor whose next record is about as old as ``begin`` and not younger; the end if there is none."""
    page = _before(engine, newest, SAMPLE)
    high, low = newest, 0
    step = max(newest - (page.next_before or 0), 1)
    for _ in range(PROBES_MAX):
        low = max(high - step, 0)
        if low == 0 or _is_older(_before(engine, low, 1), begin):
            break
        high, step = low, step * 2
    for _ in range(REFINED):
        middle = (low + high) // 2
        if _is_older(_before(engine, middle, 1), begin):
            low = middle
        else:
            high = middle
    return low


def _is_older(page: Found, begin: int) -> bool:
    return not page.records or page.records[0].created_at <= begin


def _bars(stretches: Iterable[Stretch], now: int) -> tuple[int, ...]:
    """Count the records in each part of the hour."""
    bars, width, begin = [0.0] * BARS, HOUR_US / BARS, now - HOUR_US
    for each in stretches:
        if each.end <= begin:
            continue
        if each.end - each.begin < 1:
            bars[min(int((each.end - begin) / width), BARS - 1)] += each.records
            continue
        for number in range(BARS):
            left, right = begin + number * width, begin + (number + 1) * width
            shared = min(right, each.end) - max(left, each.begin)
            if shared > 0:
                bars[number] += each.records * shared / (each.end - each.begin)
    return tuple(round(bar) for bar in bars)


def recent_document(hour: LastHour, lag: PurgeLag) -> dict[str, Json]:
    """Return the last hour and the purge's delay as JSON."""
    return {"lastHour": hour.document(), "purgeLagSeconds": round(lag.seconds, 3), "oldestRead": lag.looked}


def recent_lines(hour: LastHour, lag: PurgeLag) -> list[str]:
    """Return the lines of text that describe the last hour and the purge's delay."""
    about = "about " if hour.estimated else ""
    return [
        f"an hour  {about}{sum(hour.new)} new records, {sum(hour.unended)} UNKNOWN or lapsed",
        f"purge    {lag_text(lag)}",
    ]


def lag_text(lag: PurgeLag) -> str:
    """Describe the delay of the purge in words."""
    return f"late by {span_text(int(lag.seconds * 1_000_000))}" if lag.seconds else "nothing is late"
