"""Settle a reconciler's finding in one commit: the record, its operation, its events and the end of the inquiry."""

from __future__ import annotations

from collections.abc import Sequence

from semel.core.contract import Store
from semel.core.flow import Flow
from semel.core.model import Record, Resolution, Resolved, Resolving, State
from semel.operations.flow import is_kept_by, resolve
from semel.outbox.event import Event
from semel.outbox.store import write_events
from semel.reconciliation.store import Reconciliations, Standing
from semel.stores.sql.dialect import dialect_of


def settle_found(store: Store, resolution: Resolution, events: Sequence[Event]) -> Flow[Resolving]:
    """Resolve a record by compare-and-set on its fence; write emitted events only if this settled it as a success."""
    reply = yield from resolve(store, resolution)
    if isinstance(reply, Resolved):
        yield from write_events(dialect_of(store, "events"), events if reply.state is State.SUCCEEDED else ())
        yield from Reconciliations(store).forget(resolution.id)
    return reply


def standings(store: Store, records: Sequence[Record]) -> Flow[dict[bytes, Standing]]:
    """Read the reconciliation progress of these, by record id; empty for a store without reconciliation."""
    if not is_kept_by(store) or not records:
        return {}
    found = yield from Reconciliations(store).standings([record.id for record in records])
    fences = {record.id: record.fence for record in records}
    return {id: standing for id, standing in found.items() if standing.fence == fences[id]}
