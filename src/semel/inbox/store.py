"""The inbox: record the messages that a consumer has handled, in the same transaction as their effects.

A message's key is its consumer and its own id. Its transaction writes the row first and proves it last; a failure is
counted in a separate transaction.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, Final, NamedTuple, cast

from semel.core.flow import Ask, Flow
from semel.core.identity import frame
from semel.core.model import Purged
from semel.stores.sql.damage import damage_of, repair
from semel.stores.sql.dialect import Dialect, Values, dialect_of
from semel.stores.sql.statements import Row

CONSUMER_MAX: Final = 191
MESSAGE_ID_MAX: Final = 500
REASON_MAX: Final = 1000
_NEVER: Final = 2**31 - 1


class Receipt(Enum):
    """The outcome of a delivery. All but BUSY are acknowledged."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"  # it was handled before; nothing was done again
    PARKED = "parked"  # it failed too often, now or before; an operator has it
    BUSY = "busy"  # another worker is handling it: deliver it again later


class Seen(NamedTuple):
    """The recorded state of a message. ``parked_at`` in microseconds by the store's clock."""

    handled: bool
    tries: int
    parked_at: int | None
    reason: str | None

    @property
    def receipt(self) -> Receipt | None:
        """The receipt for a delivery of this message; None: it can be handled."""
        return Receipt.DUPLICATE if self.handled else Receipt.PARKED if self.parked_at is not None else None


class Tried(NamedTuple):
    """A message of any consumer that was tried and not handled. ``parked_at`` None: it is still delivered."""

    consumer: str
    message_id: str
    tries: int
    parked_at: int | None
    reason: str | None
    damage: str | None = None  # its unreadable part


class Backlog(NamedTuple):
    """The messages that a store's consumers have tried and not handled."""

    tried: int
    parked: int
    parked_us: int  # how long ago the first one was parked


class Parked(NamedTuple):
    """A message that waits for an operator."""

    message_id: str
    tries: int
    parked_at: int
    reason: str


def _make_parked(message_id: Any, tries: Any, parked_at: Any, reason: Any) -> Parked:
    values = {"message_id": message_id, "tries": tries, "parked_at": parked_at, "reason": reason}
    damage = damage_of("messages", values)
    if damage is None:
        return Parked(message_id, tries, parked_at, reason)
    return Parked(
        str(message_id), tries if type(tries) is int else 0, parked_at if type(parked_at) is int else 0, damage
    )


def _make_tried(row: Row) -> Tried:
    values = dict(zip(Tried._fields, row, strict=False))
    damage = damage_of("messages", values)
    return Tried(**(values if damage is None else repair("messages", values)), damage=damage)


class InboxRows:
    """The flows of one consumer's messages. Raises ConfigurationError if the store is not a SQL database."""

    def __init__(self, store: Any, consumer: str, tries_max: int, keep_us: int) -> None:
        self._dialect: Dialect = dialect_of(store, "inboxes")
        self._sql = self._dialect.statements("inbox")
        self._consumer = consumer
        self.tries_max = tries_max
        self._keep_us = keep_us

    def _params(self, message_id: str, **more: int | str) -> Values:
        return {"consumer": self._consumer, "message_id": message_id, **more}

    def look(self, message_id: str) -> Flow[Seen | None]:
        """Return the recorded state of a message; None if it is new."""
        rows = yield from self._dialect.rows(self._sql["look"], self._params(message_id))
        if not rows:
            return None
        handled_at, tries, parked_at, reason = cast("Any", rows[0])
        if damage_of("messages", {"tries": tries, "parked_at": parked_at, "reason": reason}) is not None:
            # The other columns still show whether it was handled or parked; its attempts start at zero.
            tries, reason = (tries if type(tries) is int else 0), None if reason is None else str(reason)
        return Seen(handled_at is not None, tries, parked_at, reason)

    def enter(self, message_id: str) -> Flow[Receipt | None]:
        """Begin a message in its transaction; None: handle it in this transaction."""
        if "lock" in self._sql:
            digest = hashlib.sha256(frame(self._consumer, message_id)).digest()[:8]
            number = int.from_bytes(digest, "big", signed=True)
            [[free]] = yield from self._dialect.rows(self._sql["lock"], {"lock": number})
            if not free:
                return Receipt.BUSY
        named = self._params(message_id, keep_us=self._keep_us)
        for statement in ("enter", "take"):
            if (yield from self._dialect.write(self._sql[statement], named)) == 1:
                return None
        seen = yield from self.look(message_id)
        return Receipt.BUSY if seen is None else seen.receipt or Receipt.BUSY

    def prove(self, message_id: str) -> Ask[Any]:
        """Prove, as the last ask of a message's transaction, that the row is still this transaction's own."""
        return self._dialect.last_write(self._sql["prove"], self._params(message_id))

    def prove_within(self, message_id: str) -> Flow[bool]:
        """As :meth:`prove`, for stores that do not settle by proof."""
        return (yield from self._dialect.write(self._sql["prove"], self._params(message_id))) == 1

    def note_failure(self, message_id: str, reason: str, tries: int, *, step: int = 1) -> Flow[Seen]:
        """Count a failed try.

        Parameters: ``tries`` how many there were at least; ``step`` 0 if this one was counted before it began.
        """
        return (yield from self._count(message_id, reason, tries, step, self.tries_max))

    def note_begin(self, message_id: str, reason: str) -> Flow[Seen]:
        """Count a try before it begins, since it may kill its worker; this does not park the message."""
        return (yield from self._count(message_id, reason, 1, 1, _NEVER))

    def _count(self, message_id: str, reason: str, tries: int, step: int, tries_max: int) -> Flow[Seen]:
        written = reason[:REASON_MAX].encode("utf-8", "backslashreplace").decode()  # no store takes a lone surrogate
        named = self._params(
            message_id, reason=written, tries=tries, step=step, tries_max=tries_max, keep_us=self._keep_us
        )
        yield from self._dialect.commit_together()
        yield from self._dialect.write(self._sql["failed"], named)
        seen = yield from self.look(message_id)
        assert seen is not None
        return seen

    def find_parked(self, after: str, limit: int) -> Flow[list[Parked]]:
        """Read a page of messages that wait for an operator, by name."""
        params: Values = {"consumer": self._consumer, "after": after, "limit": limit}
        rows = yield from self._dialect.rows(self._sql["parked"], params)
        return [_make_parked(*cast("tuple[Any, Any, Any, Any]", row)) for row in rows]

    def open(self, after: tuple[str, str], limit: int, *, parked: bool) -> Flow[list[Tried]]:
        """Read a page of tried, unhandled messages; of every consumer if this one's name is empty.

        Parameters: ``after`` the consumer and id of the previous page's last message; ``parked`` only parked ones.
        """
        params: Values = {
            "consumer": self._consumer,
            "after_consumer": after[0],
            "after": after[1],
            "parked": int(parked),
            "limit": limit,
        }
        rows = yield from self._dialect.rows(self._sql["open"], params)
        return [_make_tried(row) for row in rows]

    def backlog(self) -> Flow[Backlog]:
        """Count every consumer's tried, unhandled messages. Reads only those."""
        [row] = yield from self._dialect.rows(self._sql["standing"], {})
        now, tried, parked, since = cast("tuple[int, int, int, int | None]", row)
        return Backlog(tried, parked, max(0, now - since) if isinstance(since, int) else 0)

    def release(self, message_id: str) -> Flow[bool]:
        """Forget a message's tries; False if it was handled, or is unknown."""
        return (yield from self._dialect.write(self._sql["release"], self._params(message_id))) == 1

    def purge(self, chunk: int) -> Flow[Purged]:
        """Delete a chunk of expired messages, of every consumer."""
        gone = yield from self._dialect.write(self._sql["purge"], {"limit": chunk})
        return Purged(gone, 0, gone, None)
