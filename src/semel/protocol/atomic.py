"""ATOMIC commands: the record and the handler's writes in one transaction (DESIGN §6).

The order is what makes it true: look outside any transaction; begin; claim first; the handler's writes;
a settle that must stand; commit. A crash anywhere leaves nothing. What is visible without an answer is
proof that somebody committed early, and is never run again.
"""

from __future__ import annotations

from contextlib import suppress

from semel.errors import EarlyCommit, StoreError, StoreTimeout, StoreUnavailable
from semel.flow import Flow, ask
from semel.model import Claim, Grant, Proceed, Record, Settled, Settlement, Settling, State, Superseded, Verdict
from semel.protocol.asks import Begin, Commit, Perform, Rollback, Unit, Within
from semel.protocol.commands import Under, look_once, recast, settlement
from semel.rules.classify import Outcome, Refused, Succeeded, Unprovable
from semel.stores.base import Store

COMMITTED_EARLY = "committed-early"


def claim_unit(store: Store, claim: Claim, under: Under | None, begin: Begin) -> Flow[tuple[Verdict, Unit | None]]:
    """Claim in a transaction of its own, which stays open for the handler if the verdict is Proceed."""
    seen, claim = yield from look_once(store, claim, under)
    if seen is not None:
        return seen, None
    unit = yield from ask(begin)
    try:
        verdict = yield from ask(Within(unit, "claim", lambda: store.claim_here(claim)))
        if isinstance(verdict, Proceed):
            unit.hand_out()
            return verdict, unit
    except StoreError:
        yield from ask(Rollback(unit))
        raise
    yield from ask(Rollback(unit))
    return verdict, None


def settle_unit(
    store: Store,
    unit: Unit,
    claim: Claim,
    grant: Grant,
    outcome: Outcome,
    word: Settlement,
    under: Under | None = None,
) -> Flow[Settling]:
    """End an ATOMIC command: settle and commit, or roll back; a definite refusal is stored on its own.

    Raises:
        EarlyCommit: the handler's transaction had been committed; the record reads UNKNOWN now.
        StoreTimeout: the commit was not answered, and the record could not be read back.
    """
    if isinstance(outcome, Succeeded):
        return (yield from _settle_and_commit(store, unit, grant, word))
    yield from ask(Rollback(unit))
    if (yield from _is_visible(store, grant)):
        raise (yield from note_early_commit(store, grant))
    if not isinstance(outcome, Refused):
        return Settled()
    reply = yield from ask(Perform("refuse", lambda: refuse(store, claim, outcome, under)))
    return reply if isinstance(reply, Settled) else Superseded(None)


def _settle_and_commit(store: Store, unit: Unit, grant: Grant, word: Settlement) -> Flow[Settling]:
    try:
        reply = yield from settle_inside(store, unit, grant, word)
    except StoreError:
        yield from ask(Rollback(unit))
        raise
    if reply is None:
        yield from ask(Rollback(unit))
        raise (yield from note_early_commit(store, grant))
    if not isinstance(reply, Settled):
        yield from ask(Rollback(unit))  # a settle that does not stand must never be followed by a commit
        return reply
    try:
        yield from ask(Commit(unit))
    except StoreTimeout:
        # Not a failure: not known yet. The record itself is the evidence, seen from outside.
        try:
            [row] = yield from ask(Perform("read", lambda: store.read((grant.id,))))
        except StoreError:  # "unavailable" would say that nothing was done
            raise StoreTimeout("the commit was not answered, and its record could not be read back") from None
        if not _stands(row, grant):
            raise StoreUnavailable("the transaction did not commit; nothing of it remains") from None
    return reply


def settle_inside(store: Store, unit: Unit, grant: Grant, word: Settlement) -> Flow[Settling | None]:
    """Settle in the unit's transaction; None where the record is visible from outside: it was committed early."""
    if (yield from _is_visible(store, grant)):
        return None
    [reply] = yield from ask(Within(unit, "settle", lambda: store.settle((word,))))
    return reply


def _is_visible(store: Store, grant: Grant) -> Flow[bool]:
    """Whether this grant can be seen from outside its transaction: then somebody has committed it."""
    [row] = yield from ask(Perform("read", lambda: store.read((grant.id,))))
    return row is not None and row.nonce == grant.nonce


def note_early_commit(store: Store, grant: Grant) -> Flow[EarlyCommit]:
    """Make a record that was committed without its answer UNKNOWN; returns the error to raise."""
    doubtful = settlement(grant, Unprovable(COMMITTED_EARLY))
    with suppress(StoreError):  # where it cannot be written now, the record reads UNKNOWN when its lease is over
        yield from ask(Perform("settle", lambda: store.settle((doubtful,))))
    return EarlyCommit(
        "the transaction of an ATOMIC command was committed before Semel settled it; its outcome is UNKNOWN now. "
        "Leave the commit to the end, and write no COMMIT or DDL in the handler"
    )


def _stands(row: Record | None, grant: Grant) -> bool:
    return row is not None and row.nonce == grant.nonce and row.state == State.SUCCEEDED


def refuse(store: Store, claim: Claim, outcome: Refused, under: Under | None) -> Flow[Verdict | Settled]:
    """Store a definite refusal whose business writes were rolled back: claim and settle in one commit.

    If another answer is there by then, that verdict is returned and nothing is written.
    """
    verdict = yield from store.claim_here(claim)
    again = recast(claim, verdict, under)
    if again is not None:
        verdict = yield from store.claim_here(again)
    if not isinstance(verdict, Proceed):
        return verdict
    [reply] = yield from store.settle((settlement(verdict.grant, outcome),))
    if not isinstance(reply, Settled):
        raise StoreUnavailable("the refusal could not be stored beside its own claim")
    return reply
