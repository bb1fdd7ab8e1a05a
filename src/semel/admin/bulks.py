"""Bulk commands as operators see them: how far each is, whether it runs, and what became of its items."""

from __future__ import annotations

from typing import NamedTuple

from semel.admin.describe import state_label, state_name
from semel.admin.words import Json
from semel.bulk.rules import Tally
from semel.bulk.store import Failures, Items
from semel.core.identity import uuid_text
from semel.core.model import OPEN_STATES, Record
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine


class BulkSummary(NamedTuple):
    """One bulk. ``record`` is None once it is purged while its items remain. ``now`` is by the store's clock."""

    id: bytes
    tally: Tally
    record: Record | None
    now: int

    @property
    def is_running(self) -> bool:
        """Return whether a process holds its lease."""
        return self.record is not None and self.record.state in OPEN_STATES and self.record.lease_until > self.now

    def document(self) -> dict[str, Json]:
        """Return the JSON document, without its items."""
        return {**bulk_names(self.record, self.id, self.now), **self.tally._asdict()}

    def standing(self) -> str:
        """Describe the progress of a bulk in words."""
        return "its record has been purged" if self.record is None else bulk_standing(self.record, self.now)


def newest_bulks(engine: Engine, before: bytes, limit: int) -> list[BulkSummary]:
    """Return a page of bulks, newest first. Raises ConfigurationError if the store is not SQL, and StoreError.

    Parameters: ``before`` the last id of the page before, or ``ANY_BULK``.
    """
    items = Items(engine.store)
    found = engine.perform("bulk", lambda: items.newest(before, limit))
    if not found:
        return []
    ids = tuple(id for id, _ in found)
    records = engine.perform("read_operations", lambda: engine.store.read_operations(ids))
    now = engine.perform("now", engine.store.now)
    return [BulkSummary(id, tally, record, now) for (id, tally), record in zip(found, records, strict=True)]


def find_bulk(engine: Engine, id: bytes) -> BulkSummary | None:
    """Return the bulk with this operation id. Raises as :func:`newest_bulks`."""
    items = Items(engine.store)
    tally = engine.perform("bulk", lambda: items.tally(id))
    if tally is None:
        return None
    [record] = engine.perform("read_operations", lambda: engine.store.read_operations((id,)))
    return BulkSummary(id, tally, record, engine.perform("now", engine.store.now))


def tally_line(tally: Tally) -> str:
    """Describe a tally in one line.

    >>> tally_line(Tally(4, 4, 3, 1, 0, 0))
    '4 of 4 items: 3 succeeded, 1 failed (0 may be retried), 0 unknown'
    """
    return (
        f"{tally.done} of {tally.total} items: {tally.succeeded} succeeded, {tally.failed} failed ({tally.retryable} "
        f"may be retried), {tally.unknown} unknown"
    )


def bulk_standing(record: Record, now: int) -> str:
    if record.state not in OPEN_STATES:
        return state_label(state_name(record, now))
    if record.lease_until > now:
        return f"running: its lease lasts {span_text(record.lease_until - now)} more and is being renewed"
    return "interrupted: no process runs it; send it again with the same key and list to continue"


def bulk_names(record: Record | None, id: bytes, now: int) -> dict[str, Json]:
    named: dict[str, Json] = {"operationId": uuid_text(id)}
    if record is not None:
        named |= {"operation": record.operation, "tenant": record.tenant, "caller": record.caller}
        named |= {"state": state_name(record, now), "running": record.state in OPEN_STATES and record.lease_until > now}
    return named


def code_document(each: Failures) -> dict[str, Json]:
    return {
        "state": each.state.name,
        "errorCode": each.error_code,
        "retryable": each.retryable,
        "count": each.items,
    }
