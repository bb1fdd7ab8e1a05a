"""The checks of `semel doctor` for records: damaged, unknown, and lapsed ones that no worker handles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from semel.admin.describe import state_label
from semel.admin.filters import find_bounded, pages
from semel.admin.reconciliations import look_at_reconciliations
from semel.core.contract import DoctorFinding, Store
from semel.core.flow import Flow
from semel.core.model import Effects, Find, Record, State
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.steps.store import Abandoned, StepRows

PAGE: Final = 1000
REAPED_WITHIN_US: Final = 5_000_000  # a reaper looks every half second: a longer lapse means that none is running
COMPLETED_WITHIN_US: Final = 5_000_000  # a completer also looks every half second
OPERATIONS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class _Standing:
    """The number of records of one kind (a lower bound if there are ``more``), and the oldest of them."""

    count: int
    oldest: Record | None
    more: bool

    @classmethod
    def of(cls, records: Sequence[Record], state: State, *, more: bool) -> Self:
        """Choose the records of one state."""
        chosen = [record for record in records if record.state == state]
        return cls(len(chosen), min(chosen, key=lambda record: record.created_at, default=None), more)


def look_at_records(engine: Engine, *, quick: bool = False) -> Iterator[DoctorFinding]:
    """Check the records of a store, and yield findings.

    Parameters: ``quick`` reads only the store's own list of records that need attention.
    """
    if not quick:
        yield _count(engine)
    now, unknown, more = _read(engine, Find(states=(State.UNKNOWN,)))
    yield _about(
        _Standing.of(unknown, State.UNKNOWN, more=more),
        now,
        "unknown",
        "UNKNOWN",
        "find out what happened, then settle each: semel list --state unknown; semel settle --help",
    )
    yield look_at_reconciliations(engine)
    over = Find(states=(State.CLAIMED, State.PROCESSING), lapsed=True, attention=quick)
    now, left, more = _read(engine, over, walk=not quick)
    yield _about_lapsed(_Standing.of(left, State.PROCESSING, more=more), now)
    yield _about_resting(_Standing.of(left, State.CLAIMED, more=more), now)
    yield from _look_at_abandoned(engine)


def _count(engine: Engine) -> DoctorFinding:
    """Count the records in each state, by reading all of them."""
    counts = engine.perform("counts", engine.store.counts)
    names = {int(state): state_label(state.name).lower() for state in State}
    listed = ", ".join(
        f"{count} {names.get(state, f'damaged ({state})')}" for state, count in sorted(counts.items(), key=_place)
    )
    damaged = [state for state in counts if state not in names]
    return DoctorFinding(
        "records",
        "problem" if damaged else "ok",
        listed or "none yet",
        "restore the damaged records from a backup; their retries are refused meanwhile" if damaged else None,
    )


def _place(counted: tuple[object, int]) -> tuple[bool, int, str]:
    """Return the place of a state in the list. SQLite keeps values of any type; damaged ones come last."""
    state, _ = counted
    return (False, state, "") if isinstance(state, int) else (True, 0, str(state))


def _about_resting(resting: _Standing, now: int) -> DoctorFinding:
    """Return the finding on commands at rest between steps or items, some of which no client will retry."""
    if resting.oldest is None:
        return DoctorFinding("resting", "ok", "none")
    count = f"{'more than ' if resting.more else ''}{resting.count}"
    age = span_text(now - resting.oldest.created_at)
    return DoctorFinding(
        "resting",
        "note",
        f"{count} between their steps or items, held by no process, the oldest started {age} ago",
        (
            "a retry continues them; where a client has lost its key: semel list --state claimed --lapsed; semel "
            "explain ID"
        ),
    )


def _look_at_abandoned(engine: Engine) -> Iterator[DoctorFinding]:
    """Yield a finding on resumable executions that no process holds or continues. Failed ones do not count."""
    if not engine.store.capabilities.holds_features:
        return
    [now, found] = engine.perform("abandoned", lambda: _find_abandoned(engine.store))
    left = [each for each in found if 0 < each.lease_until < now - COMPLETED_WITHIN_US]
    if not left:
        yield DoctorFinding("abandoned", "ok", "none")
        return
    oldest = span_text(now - min(each.lease_until for each in left))
    names = ", ".join(sorted({each.operation for each in left})[:OPERATIONS_SHOWN])
    count = f"{'at least ' if len(found) == PAGE else ''}{len(left)}"
    yield DoctorFinding(
        "abandoned",
        "warning",
        f"{count} resumable, held by no process, the oldest for {oldest}: {names}",
        "no completer finishes them: start one, semel worker --complete MODULE:APP; if one runs, or the application's "
        "own, its log says why its runs fail",
    )


def _find_abandoned(store: Store) -> Flow[tuple[int, list[Abandoned]]]:
    found = yield from StepRows(store).find_abandoned(PAGE)
    return (yield from store.now()), found


def _read(engine: Engine, query: Find, *, walk: bool = False) -> tuple[int, list[Record], bool]:
    """Return the store's time, records of a query, and whether there are more.

    Parameters: ``walk`` reads on in bounded statements until a page is full or the records end.
    """
    page = find_bounded(engine, query._replace(limit=PAGE)) if walk else next(pages(engine, query, PAGE))
    records = list(page.records)
    while walk and len(records) < PAGE and page.next_before is not None:
        page = find_bounded(engine, query._replace(limit=PAGE - len(records), before=page.next_before))
        records += page.records
    return page.now, records, page.next_before is not None


def _about(kind: _Standing, now: int, check: str, name: str, remedy: str) -> DoctorFinding:
    if kind.oldest is None:
        return DoctorFinding(check, "ok", "none")
    count = f"{'more than ' if kind.more else ''}{kind.count}"
    return DoctorFinding(
        check, "warning", f"{count} {name}, the oldest for {span_text(now - kind.oldest.lease_until)}", remedy
    )


def _about_lapsed(lapsed: _Standing, now: int) -> DoctorFinding:
    oldest = lapsed.oldest
    if oldest is None:
        return DoctorFinding("lapsed", "ok", "none")
    over = now - oldest.lease_until
    detail = f"{lapsed.count} open with a lapsed lease, the oldest for {span_text(over)}"
    if oldest.effects != Effects.IDEMPOTENT and over > REAPED_WITHIN_US:
        remedy = (
            "run semel worker, which reaps; in an ASGI application semel.install(app) or manage_engine=True also reaps"
        )
        return DoctorFinding("lapsed", "warning", f"{detail}; no reaper is running", remedy)
    return DoctorFinding("lapsed", "note", detail)
