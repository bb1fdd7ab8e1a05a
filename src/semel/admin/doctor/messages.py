"""The checks of `semel doctor` for the outbox, imports, the inbox and damaged rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from semel.admin.export_rows import row_name
from semel.admin.move.rows import pages_of
from semel.admin.receivers import Behind, receivers_behind
from semel.core.contract import DoctorFinding
from semel.core.identity import uuid_text
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.imports.rules import OVERDUE_US, TAKE_OVER, ImportState, waiting_text
from semel.imports.store import ImportRows
from semel.inbox.store import InboxRows
from semel.operations.flow import is_kept_by
from semel.outbox.event import Waiting
from semel.outbox.partitions import Partitions
from semel.outbox.rules import receiver_of, receiver_topic
from semel.outbox.store import Events
from semel.steps.rules import Unpackable, unpack_steps
from semel.stores.sql.damage import damage_of, repair
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.tables import BULKS, EVENTS, ITEMS, MESSAGES, OPERATIONS, STEPS, Copies, Noun

WAITS_US: Final = 60_000_000  # an event that waits longer has no relay, or its relay cannot publish
ROWS_LOOKED_AT: Final = 2_000  # of each kind, unless --full is given
NAMED_MAX: Final = 3
OVERDUE_MAX: Final = 100  # imports to count at most
_OF_ANOTHER: Final = -1  # the check reads steps of another generation whole, and unpacks none


def look_at_messages(engine: Engine, *, full: bool, quick: bool = False) -> Iterator[DoctorFinding]:
    """Yield findings on events, imports, messages and damaged rows; none where the store keeps none.

    Parameters: ``quick`` leaves out checks that read every row.
    """
    if not is_kept_by(engine.store):
        return
    yield from _look_at_events(engine)
    yield from _look_at_imports(engine)
    yield _look_at_inbox(engine)
    if not quick:
        yield _look_at_rows(engine, full=full)


def _look_at_events(engine: Engine) -> Iterator[DoctorFinding]:
    events = Events(dialect_of(engine.store, "events"))
    depth = engine.perform("events", events.depth)
    if depth.parked:
        first = engine.perform("events", lambda: events.find(0, 1, parked=True))
        yield DoctorFinding(
            "events",
            "warning",
            (
                f"{depth.parked} parked: they are not published, and block the later events of their "
                f"aggregates{_first(first)}"
            ),
            "fix the cause, then: semel events --parked; semel events retry ID (or drop ID)",
        )
    late = depth.waiting > 0 and depth.oldest_us > WAITS_US
    relays = late and engine.perform("relays", Copies(engine.store).relay_us)
    behind, others_us = receivers_behind(engine) if late or depth.parked else ([], 0)
    if depth.parked and any(receiver_of(each) is None for each in engine.perform("events", events.find_disabled)):
        yield DoctorFinding(
            "events",
            "warning",
            "the webhook's endpoint is disabled, since it has answered 410 Gone: nothing is sent to it",
            "to use it again, perhaps with a new address: semel events enable; otherwise drop its events: semel "
            "events drop --topic TOPIC",
        )
    sinks = engine.perform("relays", Partitions(dialect_of(engine.store, "events")).sinks)
    if len(sinks) > 1:
        named = ", ".join(sorted(sinks.values()))
        yield DoctorFinding(
            "events",
            "warning",
            f"relays publish this store's events to {len(sinks)} different sinks ({named}): each event goes to one",
            "run all relays with one sink; to send events to several places: semel worker --receivers FILE, or "
            "--sink python:MODULE:FUNCTION that sends each event to all of them",
        )
    slow = [each for each in behind if each.depth.parked or each.depth.oldest_us > WAITS_US]
    yield from map(_receiver, slow[:NAMED_MAX])
    if len(slow) > NAMED_MAX:
        named = f"{len(slow) - NAMED_MAX} more receivers have not received their webhooks"
        yield DoctorFinding("events", "warning", named, "list them: semel events")
    if late and not relays:
        yield _waiting_long(depth.waiting, depth.oldest_us, relays=False)
    elif late and (others_us > WAITS_US or not slow):
        yield _waiting_long(depth.waiting, max(others_us, 0 if slow else depth.oldest_us), relays=True)
    elif not depth.parked and not slow and len(sinks) < 2:
        yield DoctorFinding("events", "ok", f"{depth.waiting} waiting, none parked")


def _first(found: Sequence[Waiting]) -> str:
    return "".join(
        f"; the first is of {each.event.topic}: {each.damage or each.reason or 'no reason'}" for each in found
    )


def _receiver(behind: Behind) -> DoctorFinding:
    waiting, parked, oldest_us = behind.depth
    waits = f"{waiting} wait, the oldest for {span_text(oldest_us)}" if waiting else "none waits"
    why = "" if behind.reason is None else f"; the first was refused: {behind.reason}"
    topic = receiver_topic(behind.receiver)
    if behind.disabled:
        return DoctorFinding(
            "events",
            "warning",
            f"the receiver {behind.receiver!r} is disabled, since it has answered 410 Gone: {waits}, {parked} parked",
            f"to use it again: semel events enable --topic {topic}; otherwise remove it from the receivers' file, "
            f"then: semel events drop --topic {topic}",
        )
    again = f"; then retry the parked events: semel events retry --topic {topic}" if parked else ""
    return DoctorFinding(
        "events",
        "warning",
        f"the receiver {behind.receiver!r} has not received its webhooks: {waits}, {parked} parked{why}",
        (
            "ask its owner whether it is down or slow; other receivers do not wait for it; semel events --topic "
            f"{topic}{again}"
        ),
    )


def _waiting_long(waiting: int, oldest_us: int, *, relays: bool) -> DoctorFinding:
    detail = f"{waiting} not published, the oldest for {span_text(oldest_us)}"
    if relays:
        return DoctorFinding(
            "events",
            "warning",
            f"{detail}, although a relay runs",
            "its log shows whether it reaches the sink; semel events lists the refused event and the events behind it",
        )
    return DoctorFinding(
        "events",
        "warning",
        f"{detail}; no relay runs",
        "start one: semel worker --sink URL (or Relay in your process); if Debezium publishes, delete the events that "
        "it has published",
    )


def _look_at_imports(engine: Engine) -> Iterator[DoctorFinding]:
    """Yield a finding if open imports wait although any process could have taken them."""
    rows = ImportRows(engine.store)
    found = engine.perform("import", lambda: rows.overdue(OVERDUE_US, OVERDUE_MAX))
    if found:
        first, more = found[0], "" if len(found) < OVERDUE_MAX else " or more"
        yield DoctorFinding(
            "imports",
            "warning",
            f"{len(found)}{more} wait, and no process runs them; the first is {uuid_text(first.id)} of "
            f"{first.operation}, {ImportState(first.state).name}: {waiting_text(first.state, first.lapse_us)}",
            f"{TAKE_OVER}; if one runs, it may be busy with others: semel imports list",
        )


def _look_at_inbox(engine: Engine) -> DoctorFinding:
    backlog = engine.perform("inbox", InboxRows(engine.store, "", 1, 0).backlog)
    if not backlog.parked:
        return DoctorFinding("messages", "ok", f"{backlog.tried} tried and not handled yet, none parked")
    return DoctorFinding(
        "messages",
        "warning",
        f"{backlog.parked} parked, the first for {span_text(backlog.parked_us)}: they failed too often and were not "
        "handled",
        (
            "fix the cause, then: semel messages --parked; semel messages release ID --consumer NAME, and publish it "
            "again"
        ),
    )


def _look_at_rows(engine: Engine, *, full: bool) -> DoctorFinding:
    seen = bad = 0
    named: list[str] = []
    whole = True
    for noun in (OPERATIONS, BULKS, ITEMS, EVENTS, MESSAGES, STEPS):
        of_noun = 0
        for page in pages_of(engine, noun):
            for row in page:
                damage = _damage(noun, row)
                if damage is not None:
                    bad += 1
                    named.append(damage) if len(named) < NAMED_MAX else None
            of_noun += len(page)
            if of_noun >= ROWS_LOOKED_AT and not full:
                whole = False
                break
        seen += of_noun
    extent = "" if whole else f" (the first {ROWS_LOOKED_AT} of each kind; --full reads all)"
    if not bad:
        return DoctorFinding(
            "rows", "ok", f"{seen} operations, bulks, items, events, messages and steps are sound{extent}"
        )
    more = "" if bad <= len(named) else f" and {bad - len(named)} more"
    return DoctorFinding(
        "rows",
        "problem",
        f"{bad} damaged{extent}: {'; '.join(named)}{more}",
        "restore them from a backup; a damaged event is parked and never published, the others are not affected",
    )


def _damage(noun: Noun, row: Sequence[Any]) -> str | None:
    """Return the name of a damaged row, and its damage."""
    values = dict(zip(noun.columns, row, strict=False))
    if noun is STEPS:
        try:
            unpack_steps(values["steps"], _OF_ANOTHER)
        except Unpackable as error:
            id = values["operation_id"]
            return f"steps of operation {uuid_text(id) if isinstance(id, bytes) else id} ({error})"
        return None
    damage = damage_of(noun.name, values)
    return None if damage is None else f"{row_name(noun.name, repair(noun.name, values))} ({damage})"
