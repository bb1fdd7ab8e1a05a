"""Describe reconciliations for the command line: how often each was asked, and which need an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.admin.describe import time_text
from semel.admin.filters import pages
from semel.admin.words import Json
from semel.core.contract import DoctorFinding
from semel.core.model import Find, Record, State
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.reconciliation.flow import standings
from semel.reconciliation.store import Standing

PAGE: Final = 1000


def left_to_operators(engine: Engine, records: Sequence[Record]) -> set[bytes]:
    """Return the ids of the records that reconcilers gave up on."""
    found = _load_standings(engine, [record for record in records if record.state == State.UNKNOWN])
    return {id for id, standing in found.items() if standing.gave_up_at is not None}


def standing_of(engine: Engine, record: Record) -> Standing | None:
    """Return the progress of one record's reconciliation; None if it has not begun."""
    return _load_standings(engine, [record]).get(record.id) if record.state == State.UNKNOWN else None


def _load_standings(engine: Engine, records: Sequence[Record]) -> dict[bytes, Standing]:
    return engine.perform("reconciliations", lambda: standings(engine.store, records))


def standing_document(standing: Standing) -> dict[str, Json]:
    """Return the progress of a reconciliation as JSON."""
    return {
        "asked": standing.asked,
        "nextAt": None if standing.gave_up_at is not None else time_text(standing.next_at),
        "askingUntil": time_text(standing.lease_until),
        "needsOperator": standing.gave_up_at is not None,
        "reason": standing.reason,
    }


def standing_lines(standing: Standing) -> list[str]:
    """Return the lines of text that describe a reconciliation."""
    times = "once" if standing.asked == 1 else f"{standing.asked} times"
    last = f" The last reason: {standing.reason}." if standing.reason else ""
    if standing.gave_up_at is not None:
        ago = span_text(standing.now - standing.gave_up_at)
        return [f"Asked {times}, and given up {ago} ago: an operator must find out.{last}"]
    if standing.lease_until > standing.now:
        return [f"It is being asked now; before that {times}.{last}"]
    wait = standing.next_at - standing.now
    when = "at a worker's next look" if wait <= 0 else f"in {span_text(wait)}"
    return [f"Asked {times}; again {when}.{last}"]


def look_at_reconciliations(engine: Engine) -> DoctorFinding:
    """Return the finding on records that reconcilers gave up on."""
    page = next(pages(engine, Find(states=(State.UNKNOWN,)), PAGE))
    left = left_to_operators(engine, page.records)
    if not left:
        return DoctorFinding("reconciliation", "ok", "reconcilers have given up on none")
    remedy = "semel list --state unknown lists them, semel explain ID shows the findings; then: semel settle --help"
    return DoctorFinding("reconciliation", "warning", f"{len(left)} need an operator: reconcilers gave up", remedy)
