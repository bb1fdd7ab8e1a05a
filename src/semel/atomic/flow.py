"""ATOMIC commands: the record and the handler's writes in one transaction.

The order guarantees this: look outside any transaction; begin; claim first; the handler's writes;
a settle that must hold; commit. A crash anywhere leaves nothing. A record that is visible without an answer
proves that the handler committed early; the command never runs again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from semel.core.command_flow import Under, look_once, make_settlement, recast
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import (
    Claim,
    Effects,
    Grant,
    InProgress,
    Proceed,
    Record,
    Settled,
    Settlement,
    Settling,
    State,
    Superseded,
    Verdict,
)
from semel.core.outcomes import Outcome, Refused, Succeeded, Unprovable
from semel.core.record import state_of
from semel.core.requests import AnyUnit, Begin, Commit, Perform, Rollback, SettleWithin, Within
from semel.core.settle import holds
from semel.errors import (
    EarlyCommit,
    HandlerRefused,
    NotReplicated,
    SemelError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)

COMMITTED_EARLY = "committed-early"
NOT_ROLLED_BACK = "not-rolled-back"


def claim_unit(store: Store, claim: Claim, under: Under | None, begin: Begin) -> Flow[tuple[Verdict, AnyUnit | None]]:
    """Claim in a transaction of its own, which stays open for the handler if the verdict is Proceed."""
    if not store.capabilities.settles_by_proof:
        seen, claim = yield from look_once(store, claim, under)
        if seen is not None:
            return seen, None
    elif claim.quota is not None:  # within the unit, a caller's commands would wait for one another
        refused = yield from ask(Perform("take_place", partial(store.take_place, claim)))
        if refused is not None:
            return refused, None
    unit = yield from ask(begin)
    try:
        verdict = yield from _claim_within(store, unit, claim, under)
        if isinstance(verdict, Proceed):
            unit.hand_out()
            return verdict, unit
    except Exception:  # also errors of ``under``: a unit that is never ended keeps its connection and its lock
        yield from ask(Rollback(unit))
        raise
    yield from ask(Rollback(unit))
    if type(verdict) is InProgress and store.capabilities.settles_by_proof:
        verdict = yield from read_settled(store, claim, under, verdict)
    return verdict, None


def claim_of_waiter(store: Store, claim: Claim) -> Claim:
    """Return the claim that a waiter repeats, without a quota whose place was already taken before the unit began."""
    if claim.quota is None or claim.terms.effects != Effects.ATOMIC or not store.capabilities.settles_by_proof:
        return claim
    return claim._replace(quota=None)


def read_settled(store: Store, claim: Claim, under: Under | None, running: Verdict) -> Flow[Verdict]:
    """Return a settled record's verdict on a claim that found its key locked, maybe by a replay; else ``running``."""
    seen, _ = yield from look_once(store, claim, under)
    return running if seen is None else seen


def _claim_within(store: Store, unit: AnyUnit, claim: Claim, under: Under | None) -> Flow[Verdict]:
    verdict = yield from ask(Within(unit, "claim", partial(store.claim_in_unit, claim)))
    while (again := recast(claim, verdict, under)) is not None:
        verdict = yield from ask(Within(unit, "claim", partial(store.claim_in_unit, again)))
        claim = again
    return verdict


def settle_unit(
    store: Store,
    unit: AnyUnit,
    claim: Claim,
    grant: Grant,
    outcome: Outcome,
    settlement: Settlement,
    under: Under | None = None,
) -> Flow[Settling]:
    """End an ATOMIC command: settle and commit, or roll back; a definite refusal is stored on its own.

    Raises:
        EarlyCommit: the handler's transaction had been committed, or some of its writes were not rolled back; the
            record reads UNKNOWN now.
        StoreTimeout: the commit was not answered, and the record could not be read back.
    """
    try:
        reply = yield from _end_unit(store, unit, claim, grant, outcome, settlement, under)
    except StoreError:
        if not has_left_writes(unit):
            raise
    else:
        if not has_left_writes(unit):
            return reply
    raise (yield from note_left_writes(store, claim, under))


def _end_unit(
    store: Store,
    unit: AnyUnit,
    claim: Claim,
    grant: Grant,
    outcome: Outcome,
    settlement: Settlement,
    under: Under | None,
) -> Flow[Settling]:
    if isinstance(outcome, Succeeded):
        return (yield from _settle_and_commit(store, unit, grant, settlement))
    yield from ask(Rollback(unit))
    if getattr(unit, "is_undecided", False):
        raise StoreTimeout(
            "the handler ended before its statement did, and the database has not ended that in time: whether it "
            "took effect is not known yet; retry with the same key"
        )
    if (yield from is_visible(store, grant)):
        raise (yield from note_early_commit(store, grant))
    if not isinstance(outcome, Refused) or has_left_writes(unit):
        return Settled()
    reply = yield from ask(Perform("refuse", lambda: refuse(store, claim, outcome, under, settlement)))
    return reply if isinstance(reply, Settled) else Superseded(None)


def _settle_and_commit(store: Store, unit: AnyUnit, grant: Grant, settlement: Settlement) -> Flow[Settling]:
    if store.capabilities.settles_by_proof:
        return (yield from _settle_with_commit(store, unit, grant, settlement))
    try:
        reply = yield from settle_inside(store, unit, grant, settlement)
    except SemelError:
        yield from ask(Rollback(unit))
        raise
    if reply is None:
        yield from ask(Rollback(unit))
        raise (yield from note_early_commit(store, grant))
    if not isinstance(reply, Settled):
        yield from ask(Rollback(unit))  # never commit after a settle that did not hold
        return reply
    try:
        yield from ask(Commit(unit))
    except StoreTimeout:
        yield from _confirm_commit(store, grant)
    return reply


def _settle_with_commit(store: Store, unit: AnyUnit, grant: Grant, settlement: Settlement) -> Flow[Settling]:
    """Settle and COMMIT in one round trip; the server rolls back if the settle cannot prove the claim to be its own."""
    try:
        stands = yield from ask(SettleWithin(unit, store.settle_within(settlement)))
    except NotReplicated:  # the commit is visible here, which proves nothing about the standby
        raise
    except StoreTimeout:
        try:
            yield from _confirm_commit(store, grant)
        except StoreUnavailable:  # invisible, but the server may still commit: a retry meets its lock, or its answer
            raise StoreTimeout(
                "the database did not answer the commit, so its outcome is not known yet; retry with the same key"
            ) from None
        return Settled()
    if stands:
        return Settled()
    [row] = yield from ask(Perform("read", lambda: store.read((grant.id,))))
    if holds(row, grant.fence, grant.nonce):
        raise (yield from note_early_commit(store, grant))
    if row is None:
        raise HandlerRefused(
            "the handler's transaction was rolled back before Semel could commit it; nothing of it remains"
        )
    return Superseded(state_of(row))


def _confirm_commit(store: Store, grant: Grant) -> Flow[None]:
    """Read the record from outside after an unanswered commit, which is not a failure but unknown."""
    try:
        [row] = yield from ask(Perform("read", lambda: store.read((grant.id,))))
    except StoreError:  # "unavailable" would say that nothing was done
        raise StoreTimeout("the commit was not answered, and its record could not be read back") from None
    if not _stands(row, grant):
        raise StoreUnavailable("the transaction did not commit; nothing of it remains") from None


def settle_inside(store: Store, unit: AnyUnit, grant: Grant, settlement: Settlement) -> Flow[Settling | None]:
    """Settle in the unit's transaction; None if anything has committed the claim early."""
    if store.capabilities.settles_by_proof:
        if (yield from ask(SettleWithin(unit, store.settle_within(settlement)))):
            return Settled()
        [row] = yield from ask(Perform("read", lambda: store.read((grant.id,))))
        return None if holds(row, grant.fence, grant.nonce) else Superseded(None if row is None else state_of(row))
    if (yield from is_visible(store, grant)):
        return None
    [reply] = yield from ask(Within(unit, "settle", lambda: store.settle((settlement,))))
    return reply


def is_visible(store: Store, grant: Grant) -> Flow[bool]:
    """Return whether this grant is visible outside its transaction, and so was committed early."""
    [row] = yield from ask(Perform("read", lambda: store.read((grant.id,))))
    return row is not None and row.nonce == grant.nonce


def note_early_commit(store: Store, grant: Grant) -> Flow[EarlyCommit]:
    """Make a record that was committed without its answer UNKNOWN; returns the error to raise."""
    doubtful = make_settlement(grant, Unprovable(COMMITTED_EARLY))
    with suppress(StoreError):  # if this write fails, the record reads UNKNOWN when its lease is over
        yield from ask(Perform("settle", lambda: store.settle((doubtful,))))
    return EarlyCommit(
        "the transaction of an ATOMIC command was committed before Semel settled it; its outcome is UNKNOWN now. "
        "Leave the commit to the end, and write no COMMIT or DDL in the handler"
    )


def has_left_writes(unit: AnyUnit) -> bool:
    """Return whether the server warned at ROLLBACK that some writes remain. Only MariaDB has such tables."""
    return bool(getattr(unit, "left_writes", False))


def note_left_writes(store: Store, claim: Claim, under: Under | None) -> Flow[EarlyCommit]:
    """Record a command that was not fully rolled back as UNKNOWN: its claim was, so its key would be free."""
    with suppress(StoreError):
        yield from ask(Perform("refuse", lambda: refuse(store, claim, Unprovable(NOT_ROLLED_BACK), under)))
    return EarlyCommit(
        "an ATOMIC command was rolled back, but its writes to a table without transactions (MyISAM, Aria) remain; its "
        "outcome is UNKNOWN now. Convert such tables: ALTER TABLE … ENGINE=InnoDB; semel doctor names them"
    )


def _stands(row: Record | None, grant: Grant) -> bool:
    return row is not None and row.nonce == grant.nonce and row.state == State.SUCCEEDED


def refuse(
    store: Store, claim: Claim, outcome: Refused | Unprovable, under: Under | None, settlement: Settlement | None = None
) -> Flow[Verdict | Settled]:
    """Store a definite refusal whose business writes were rolled back, or a doubt: claim and settle in one commit.

    If there is another answer by then, return that verdict and write nothing. ``settlement`` is the holder's, with the
    refusal's answer in its stored form.
    """
    yield from store.commit_together()
    if claim.quota is not None:  # it has run: store and count its outcome, even if the quota is used up
        claim = claim._replace(quota=claim.quota._replace(new_keys=None))
    verdict = yield from store.claim_in_unit(claim)
    while (again := recast(claim, verdict, under)) is not None:
        verdict = yield from store.claim_in_unit(again)
        claim = again
    if not isinstance(verdict, Proceed):
        return verdict
    refusal = make_settlement(verdict.grant, outcome)
    if settlement is not None:
        refusal = refusal._replace(answer=settlement.answer, answer_kind=settlement.answer_kind)
    [reply] = yield from store.settle((refusal,))
    if not isinstance(reply, Settled):
        raise StoreUnavailable("the refusal could not be stored beside its own claim")
    return reply
