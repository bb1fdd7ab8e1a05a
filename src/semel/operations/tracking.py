"""A store whose claims and settlements keep the operation, too: both in one commit, or neither.

What was executed is remembered in its own row (``operations/store``), for longer than the key, and a business
reference is had by one open, unknown or successful operation at a time. Commands that declare neither never come here.
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
    """A store as the flows of commands use it. Every verb that is not named here is the store's own.

    Raises ConfigurationError if the store is not a SQL database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.operations = OperationRows(store)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        """As the store's, one claim at a time: a claim whose reference is in use commits nothing.

        Raises Held.
        """
        yield from self.operations.commit_together()
        [claim] = claims
        [verdict] = yield from self._store.claim(claims)
        return [(yield from self._keep(claim, verdict))]

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        """As the store's. Raises Held: then the transaction must be rolled back."""
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
            # It was settled by code that does not know of operations: its row is updated now.
            yield from self.operations.mirror((holder.operation.record_id,))
        # A transaction that has not committed is writing it.
        raise Held(InProgress(claim.operation_id, claim.terms.lease_us, own=False))

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        """As the store's; the operations say the same."""
        yield from self.operations.commit_together()
        replies = yield from self._store.settle(settlements)
        yield from self.operations.mirror([settlement.id for settlement in settlements])
        return replies

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        """As the store's; where it can, the operation is written behind it."""
        return self.operations.with_mirror(self._store.settle_within(settlement), settlement)

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        """As the store's; the operations say the same."""
        yield from self.operations.commit_together()
        gone = yield from self._store.abandon(nonces)
        yield from self.operations.mirror([id for id, _ in nonces])
        return gone


def verdict_of(holder: SeenOperation, record: Record | None, claim: Claim) -> Verdict | None:
    """The verdict for another command with a reference that is in use; None if it is free again.

    Its record tells, while there is one. Another caller learns that it is taken, and nothing else.
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
    """The store as the flows of this command use it."""
    return store if claim.kept is None else cast(Store, TrackingStore(store))


def settling(store: Store, settlement: Settlement) -> Perform[list[Settling]]:
    """The ask that settles a command's record, and its operation where it keeps one."""
    if settlement.keeps:
        return Perform("settle", lambda: TrackingStore(store).settle((settlement,)))
    return PerformOne("settle", store.settle, settlement)


def abandoning(store: Store, nonces: Sequence[tuple[bytes, bytes]], keeps: bool) -> Flow[list[bool]]:
    """Release claims; ``keeps``: operations may hang on one of them."""
    return TrackingStore(store).abandon(nonces) if keeps else store.abandon(nonces)
