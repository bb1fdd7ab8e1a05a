"""The life of a message: look it up, begin it in a transaction, handle it there, prove and commit; or count a
failure."""

from __future__ import annotations

from semel.atomic.flow import NOT_ROLLED_BACK, has_left_writes
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import Purged
from semel.core.requests import AnyUnit, Begin, Commit, Perform, Rollback, SettleWithin, Within
from semel.errors import EarlyCommit, HandlerRefused, SemelError
from semel.inbox.store import InboxRows, Receipt, Seen

_EARLY = (
    "the transaction of a message was committed by its handler; the message counts as handled. Write no COMMIT or DDL "
    "in the handler"
)
_LEFT_WRITES = (
    f"{NOT_ROLLED_BACK}: what the handler wrote into a table without transactions (MyISAM, Aria) remains; find out "
    "what it was before you release the message, and convert such tables: ALTER TABLE … ENGINE=InnoDB"
)


def enter(
    rows: InboxRows, message_id: str, deliveries: int, tries_max: int, begin: Begin
) -> Flow[tuple[Receipt | None, AnyUnit | None]]:
    """Begin a message: return its receipt if it is settled already, or the open transaction to handle it in."""
    seen = yield from ask(Perform("inbox", lambda: rows.look(message_id)))
    if seen is not None and seen.receipt is not None:
        return seen.receipt, None
    suspect = deliveries > tries_max
    unit = yield from ask(begin)
    try:
        met = yield from ask(Within(unit, "inbox", lambda: rows.enter(message_id)))
        if met is None and not suspect:
            unit.hand_out()
            return None, unit
    except SemelError:
        yield from ask(Rollback(unit))
        raise
    yield from ask(Rollback(unit))
    if met is not None:
        return met, None
    # The message may have killed its worker each time; or the broker also counts deliveries that found the store
    # unreachable, or another worker busy with it. No worker has it now. Count this try before it begins, so that a
    # try whose worker dies counts.
    reason = f"delivered {deliveries} times, and no worker finished it"
    if seen is not None and seen.tries >= tries_max:
        parked: Seen = yield from ask(
            Perform("inbox", lambda: rows.note_failure(message_id, reason, tries_max, step=0))
        )
        return parked.receipt or Receipt.BUSY, None
    yield from ask(Perform("inbox", lambda: rows.note_begin(message_id, reason)))
    return (yield from enter(rows, message_id, 1, tries_max, begin))


def leave(store: Store, rows: InboxRows, unit: AnyUnit, message_id: str) -> Flow[None]:
    """Commit a message's transaction, if its row is still in it.

    Raises EarlyCommit; HandlerRefused: the handler's fault, and nothing of it remains; StoreError: a redelivery finds
    the outcome.
    """
    if store.capabilities.settles_by_proof:
        stands = yield from ask(SettleWithin(unit, rows.prove(message_id)))
    else:
        stands = yield from ask(Within(unit, "inbox", lambda: rows.prove_within(message_id)))
        if stands:
            yield from ask(Commit(unit))
    if not stands:
        seen = yield from ask(Perform("inbox", lambda: rows.look(message_id)))
        if seen is None or not seen.handled:
            raise HandlerRefused(
                "the handler's transaction was rolled back before Semel could commit it; nothing of it remains"
            )
        yield from ask(Rollback(unit))
        raise EarlyCommit(_EARLY)


def undo(rows: InboxRows, unit: AnyUnit, message_id: str) -> Flow[Receipt | None]:
    """Roll back a message's transaction; PARKED if the server could not undo all of the handler's writes.

    Raises EarlyCommit if the handler had committed it.
    """
    try:
        seen = yield from ask(Perform("inbox", lambda: rows.look(message_id)))  # while no other worker can have it
    except SemelError:
        yield from let_go(rows, unit, message_id)
        raise
    parked = yield from let_go(rows, unit, message_id)
    if seen is not None and seen.handled:
        raise EarlyCommit(_EARLY)
    return parked


def let_go(rows: InboxRows, unit: AnyUnit, message_id: str) -> Flow[Receipt | None]:
    """Roll back, and park the message if writes remain: a retry would repeat them."""
    yield from ask(Rollback(unit))
    if not has_left_writes(unit):
        return None
    return (yield from note_failure(rows, message_id, _LEFT_WRITES, rows.tries_max, step=0))


def note_failure(rows: InboxRows, message_id: str, reason: str, tries: int, *, step: int = 1) -> Flow[Receipt | None]:
    """Count a failure; return the receipt if it was the last try. ``step`` 0: the try was counted when it began."""
    seen: Seen = yield from ask(Perform("inbox", lambda: rows.note_failure(message_id, reason, tries, step=step)))
    return seen.receipt


def purge_messages(store: Store, chunk: int) -> Flow[Purged]:
    """Delete messages of all consumers that no broker redelivers, chunk by chunk; return how many."""
    rows = InboxRows(store, "", 1, 0)
    forgotten = 0
    while True:
        done = yield from ask(Perform("purge_messages", lambda: rows.purge(chunk)))
        forgotten += done.forgotten
        if not done.forgotten:
            return Purged(forgotten, 0, forgotten, None)
