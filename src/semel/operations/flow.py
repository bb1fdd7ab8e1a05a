"""The flows of operations through a command's life: claim, end of an ATOMIC unit, lapse, resolution, purge.

Every write of an operation's row is in one commit with the record's; see ``operations/tracking``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from semel.atomic import flow as atomic
from semel.core.command_flow import Under, claim_recast, look_instead, recast
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import (
    Claim,
    Grant,
    Operation,
    Purged,
    Record,
    Resolution,
    Resolved,
    Resolving,
    Settlement,
    Settling,
    Superseded,
    Verdict,
)
from semel.core.outcomes import Outcome, Succeeded
from semel.core.requests import AnyUnit, Begin, Perform, PerformOne, Rollback, Within
from semel.errors import StoreError, StoreReadOnly
from semel.operations.store import OperationRows
from semel.operations.tracking import Held, TrackingStore, store_for
from semel.policy import Policy
from semel.steps.flow import keep_request

PURGE_CHUNK: Final = 500


def is_kept_by(store: Store) -> bool:
    """Whether a store can keep operations: a SQL database."""
    return store.capabilities.holds_features


def claim_kept(store: Store, claim: Claim, under: Under | None) -> Flow[Verdict]:
    """Claim a command whose operation is kept, in the record's terms: both in one commit.

    If another command holds its business reference, returns the verdict about that one.
    """
    keeping = TrackingStore(store)
    try:
        [verdict] = yield from ask(Perform("claim", partial(keeping.claim, (claim,))))
        while (again := recast(claim, verdict, under)) is not None:
            [verdict] = yield from ask(Perform("claim", partial(keeping.claim, (again,))))
            claim = again
    except Held as held:
        return held.verdict
    return verdict


def claim_one(store: Store, claim: Claim, under: Under | None) -> Flow[Verdict]:
    """Claim a command outside any unit, in the record's terms, with the row kept beside its record."""
    if claim.kept is not None:
        verdict = yield from claim_kept(store, claim, under)
    else:
        [verdict] = yield from ask(PerformOne("claim", store.claim, claim))
        verdict = yield from claim_recast(store, claim, verdict, under)
    return (yield from keep_request(store, claim, verdict))


def check_kept(store: Store, policy: Policy) -> None:
    """Raise ConfigurationError where an operation outlives its keys, and the store cannot keep it."""
    if policy.operation_seconds is not None or policy.reference_from is not None:
        OperationRows(store)


def claim_unit(store: Store, claim: Claim, under: Under | None, begin: Begin) -> Flow[tuple[Verdict, AnyUnit | None]]:
    """Claim as ``atomic.claim_unit`` does, and write the operation in the unit, if one is kept."""
    try:
        return (yield from atomic.claim_unit(store_for(store, claim), claim, under, begin))
    except Held as held:
        return held.verdict, None
    except StoreReadOnly as refusal:
        return (yield from look_instead(store, claim, under, refusal)), None


def settle_unit(
    store: Store,
    unit: AnyUnit,
    claim: Claim,
    grant: Grant,
    outcome: Outcome,
    settlement: Settlement,
    under: Under | None = None,
) -> Flow[Settling]:
    """Settle as ``atomic.settle_unit`` does, and the operation in the same commit, if one is kept."""
    try:
        if isinstance(outcome, Succeeded):
            yield from conclude_inside(store, unit, claim, grant, settlement)
    except StoreError:
        yield from ask(Rollback(unit))
        if (yield from atomic.is_visible(store, grant)):  # the settle failed because the transaction was over
            raise (yield from atomic.note_early_commit(store_for(store, claim), grant)) from None
        raise
    try:
        return (yield from atomic.settle_unit(store_for(store, claim), unit, claim, grant, outcome, settlement, under))
    except Held:  # a refusal, stored separately, found its reference taken meanwhile
        return Superseded(None)


def conclude_inside(store: Store, unit: AnyUnit, claim: Claim, grant: Grant, settlement: Settlement) -> Flow[None]:
    """Write a unit's success to its operation, where the settle that follows is the last statement before COMMIT."""
    if claim.kept is None:
        return
    operations = OperationRows(store)
    if not operations.concludes_before:
        return
    yield from ask(Within(unit, "operation", lambda: operations.conclude(grant.operation_id, settlement)))


# --- the store's own verbs, with what they mean for operations ------------------------------


def lapse(store: Store, limit: int) -> Flow[list[Record]]:
    """Lapse as the store does, and mark the operations whose outcome became UNKNOWN."""
    if not is_kept_by(store):
        return (yield from store.lapse(limit))
    marked = yield from store.lapse(limit)
    if marked:
        # A separate commit: readers ask the record before the operation's row, and any settlement updates that.
        yield from OperationRows(store).mirror([record.id for record in marked])
    return marked


def resolve(store: Store, resolution: Resolution) -> Flow[Resolving]:
    """Resolve as the store does, and update the operation in the same commit."""
    if not is_kept_by(store):
        return (yield from store.resolve(resolution))
    operations = OperationRows(store)
    yield from operations.commit_together()
    reply = yield from store.resolve(resolution)
    if isinstance(reply, Resolved):
        yield from operations.mirror((resolution.id,))
    return reply


def purge_operations(store: Store, chunk: int = PURGE_CHUNK) -> Flow[Purged]:
    """Forget every expired operation, in short commits; return how many were seen and forgotten."""
    seen = forgotten = 0
    after: bytes | None = b""
    operations = OperationRows(store)
    while after is not None:
        done = yield from ask(Perform("purge_operations", partial(operations.purge, after, chunk)))
        seen, forgotten, after = seen + done.scanned, forgotten + done.forgotten, done.next_after
    return Purged(seen, 0, forgotten, None)


# --- looking --------------------------------------------------------------------------------


def find_operation(
    store: Store,
    *,
    operation_id: bytes | None = None,
    record_id: bytes | None = None,
    ref_id: bytes | None = None,
) -> Flow[tuple[Record | None, Operation | None]]:
    """Find an operation by one of its names: its record, while there is one, and the row that outlives it."""
    kept = OperationRows(store) if is_kept_by(store) else None
    record: Record | None = None
    operation: Operation | None = None
    if ref_id is not None:
        seen = None if kept is None else (yield from kept.by_ref(ref_id))
        if seen is not None:
            operation = seen.operation
            [record] = yield from store.read((operation.record_id,))
    elif operation_id is not None:
        [record] = yield from store.read_operations((operation_id,))
    elif record_id is not None:
        [record] = yield from store.read((record_id,))
    if record is not None and operation is not None and record.operation_id != operation.operation_id:
        record = None  # another execution has used the key since
    if operation is None and kept is not None:
        name = operation_id if record is None else record.operation_id
        seen = None
        if name is not None:
            seen = yield from kept.by_id(name)
        elif record_id is not None:
            seen = yield from kept.by_record(record_id)
        operation = None if seen is None else seen.operation
    return record, operation


def find_operations(store: Store, record_ids: tuple[bytes, ...]) -> Flow[list[tuple[Record | None, Operation | None]]]:
    """Find operations as :func:`find_operation` does, for several records, which are read at once."""
    kept = OperationRows(store) if is_kept_by(store) else None
    found: list[tuple[Record | None, Operation | None]] = []
    records = yield from store.read(record_ids)
    for id, record in zip(record_ids, records, strict=True):
        seen = None
        if kept is not None:
            seen = yield from (kept.by_record(id) if record is None else kept.by_id(record.operation_id))
        found.append((record, None if seen is None else seen.operation))
    return found
