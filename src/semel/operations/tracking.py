"""A store whose claims and settlements also write the operation: both in one commit, or neither.

An execution has its own row (``operations/store``), which outlives the key. Only one open, unknown or successful
operation at a time holds a business reference. Commands that declare neither never come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from semel.core.contract import Store
from semel.core.decide import DOUBTS, Situation, classify_lapsed
from semel.core.flow import Ask, Flow
from semel.core.model import (
    Claim,
    InProgress,
    NotReplayable,
    Operation,
    OutcomeUnknown,
    Proceed,
    Record,
    ReferenceTaken,
    Settlement,
    Settling,
    State,
    Verdict,
)
from semel.core.requests import Perform, PerformOne
from semel.errors import SemelError
from semel.operations.store import OperationRows, SeenOperation

HOLDS_MAX: Final = 3


class Held(SemelError):
    """Another operation has this command's business reference: its claim must not be committed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("another operation has this business reference")
        self.verdict = verdict


class TrackingStore:
    """A store for the flows of commands. Every verb that is not defined here is the store's own.

    Raises ConfigurationError if the store is not a SQL database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.operations = OperationRows(store)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        """Claim as the store does, one at a time: a claim whose reference is in use commits nothing.

        Raises Held.
        """
        yield from self.operations.commit_together()
        [claim] = claims
        [verdict] = yield from self._store.claim(claims)
        return [(yield from self._keep(claim, verdict))]

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        """Claim as the store does. Raises Held: then the caller must roll back the transaction."""
        verdict = yield from self._store.claim_in_unit(claim)
        return (yield from self._keep(claim, verdict))

    def _keep(self, claim: Claim, verdict: Verdict) -> Flow[Verdict]:
        kept = claim.kept
        if kept is None or not isinstance(verdict, Proceed):
            return verdict
        for _ in range(HOLDS_MAX):
            if (yield from self.operations.hold(claim, verdict.grant, kept)):
                return verdict
            assert kept.ref_id is not None
            holder = yield from self.operations.holder(kept.ref_id)
            if holder is None:
                break
            [record] = yield from self._store.read((holder.operation.record_id,))
            said = verdict_of(holder, record, claim)
            if said is not None:
                raise Held(said)
            # Code that does not know of operations has settled it: update its row now.
            yield from self.operations.mirror((holder.operation.record_id,))
        # A transaction that has not committed is writing it.
        raise Held(InProgress(claim.operation_id, claim.terms.lease_us, own=False))

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        """Call the store's verb, and update the operations in the same commit."""
        yield from self.operations.commit_together()
        replies = yield from self._store.settle(settlements)
        yield from self.operations.mirror([settlement.id for settlement in settlements])
        return replies

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        """Settle as the store does; where it can, it also writes the operation."""
        return self.operations.with_mirror(self._store.settle_within(settlement), settlement)

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        """Call the store's verb, and update the operations in the same commit."""
        yield from self.operations.commit_together()
        gone = yield from self._store.abandon(nonces)
        yield from self.operations.mirror([id for id, _ in nonces])
        return gone


def verdict_of(holder: SeenOperation, record: Record | None, claim: Claim) -> Verdict | None:
    """Return the verdict for another command with a reference in use; None if the reference is free again.

    The holder's record decides, while there is one. Another caller learns only that it is taken.
    """
    now, operation = holder
    own = record is not None and record.operation_id == operation.operation_id
    is_mine = (operation.tenant, operation.caller) == claim.scope[:2]
    state = record.state if record is not None and own else operation.state
    id = operation.operation_id
    match state:
        case State.FAILED_REPLAYABLE | State.FAILED_NOT_REPLAYABLE:
            return None
        case _ if not is_mine:
            return ReferenceTaken()
        case State.SUCCEEDED:
            return NotReplayable(id, *_resource(operation, record if own else None))
        case State.CLAIMED | State.PROCESSING if record is not None and own:
            return _open(record, id, now)
        case _:
            return OutcomeUnknown(
                id, (record.doubt if record is not None and own else operation.error_code) or "unknown"
            )


def _open(record: Record, id: bytes, now: int) -> Verdict:
    left = record.lease_until - now
    if left > 0 or record.state == State.CLAIMED:
        return InProgress(id, max(0, left), own=False)
    lapsed = classify_lapsed(record, now)
    if lapsed is Situation.IDEMPOTENT_LAPSED:
        return InProgress(id, 0, own=False)
    return OutcomeUnknown(id, DOUBTS.get(lapsed, "lapsed"))


def _resource(operation: Operation, record: Record | None) -> tuple[str | None, str | None]:
    told: Operation | Record = operation if record is None else record
    return told.resource_type, told.resource_id


def store_for(store: Store, claim: Claim) -> Store:
    """Return the store for the flows of this command."""
    return store if claim.kept is None else cast(Store, TrackingStore(store))


def settling(store: Store, settlement: Settlement) -> Perform[list[Settling]]:
    """Return the ask that settles a command's record, and its operation if it keeps one."""
    if settlement.keeps:
        return Perform("settle", lambda: TrackingStore(store).settle((settlement,)))
    return PerformOne("settle", store.settle, settlement)


def abandoning(store: Store, nonces: Sequence[tuple[bytes, bytes]], keeps: bool) -> Flow[list[bool]]:
    """Release claims; ``keeps``: operations may depend on one of them."""
    return TrackingStore(store).abandon(nonces) if keeps else store.abandon(nonces)
