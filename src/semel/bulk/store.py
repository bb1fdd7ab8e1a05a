"""The items of bulk commands: flows over a SQL database, each write under the fence of its bulk's record.

A bulk's name is its operation id, which changes only if it is executed again after expiry. One transaction writes its
counters and its items' outcomes, after `hold` has proven that the record is still this holder's.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from semel.bulk.rules import ItemOutcome, ItemState, Tally
from semel.core.flow import Ask, Flow
from semel.core.identity import ID_BYTES
from semel.core.model import Grant, Purged
from semel.stores.sql.damage import damage_of
from semel.stores.sql.dialect import Dialect, Values, dialect_of
from semel.stores.sql.statements import Execute, Query, Row, Value

NOUN: Final = "items"
PUT_MAX: Final = 500
ORPHANS_MAX: Final = 1000  # how many are looked at for archived ones; the rest waits for the next purge
PUT_BYTES_MAX: Final = 1024 * 1024  # approximate; the written form is at most four times as large


ANY_BULK: Final = b"\xff" * ID_BYTES


class BulkStanding(NamedTuple):
    """The progress of a bulk: its counters, and the number of stored items.

    It has fewer items than counted if a chunk's transaction was committed before its end.
    """

    tally: Tally
    written: int


class BegunItem(NamedTuple):
    """An item without an outcome: its place, its handler's declared effects, and its age.

    ``effects`` is None if an earlier version of Semel began it; ``age_us`` is by the store's clock.
    """

    place: int
    effects: bytes | None
    age_us: int


class Failures(NamedTuple):
    """The number of a bulk's items that are FAILED or UNKNOWN with this code."""

    state: ItemState
    error_code: str | None
    retryable: bool
    items: int


class Items:
    """The flows of one store. Raises ConfigurationError if the store is not a SQL database."""

    def __init__(self, store: Any) -> None:
        self._dialect: Dialect = dialect_of(store, "bulk commands")
        self._sql = self._dialect.statements(NOUN)

    def begin(self, grant: Grant, total: int) -> Flow[BulkStanding | None]:
        """Begin a run: create the bulk's counters if it is new, and return its progress; None: superseded."""
        yield from self._dialect.commit_together()
        if not (yield from self.hold(grant)):
            return None
        yield from self._dialect.write(self._sql["begin_bulk"], {"operation_id": grant.operation_id, "total": total})
        return (yield from self.standing(grant))

    def enter(self, grant: Grant, was: Tally, now: Tally) -> Flow[bool]:
        """Write the counters first in a chunk's transaction, so that an early commit leaves a visible mismatch.

        False if the bulk is not where the caller expects it, or has another holder.
        """
        standing = yield from self.standing(grant)
        if standing is None or standing.tally != was or standing.written != was.done:
            return False
        return (yield from self.advance(grant, was, now, ()))

    def hold(self, grant: Grant) -> Flow[bool]:
        """Verify the grant and renew its lease; until the commit it cannot be granted to another run."""
        return (yield from self._dialect.write(self._sql["hold"], _holder(grant))) == 1

    def hold_in_unit(self, grant: Grant) -> Ask[Any]:
        """As :meth:`hold`, in the one ask that ends a unit in a store that settles by proof."""
        params = _holder(grant)
        return (
            Query(self._sql["hold_in_unit"], params)
            if "hold_in_unit" in self._sql
            else Execute(self._sql["hold"], params)
        )

    def standing(self, grant: Grant) -> Flow[BulkStanding | None]:
        """Return the progress of the bulk, for its holder only; None: superseded."""
        rows = yield from self._dialect.rows(self._sql["standing"], _holder(grant))
        return BulkStanding(_tally(rows[0][:-1]), cast(int, rows[0][-1])) if rows else None

    def advance(self, grant: Grant, was: Tally, now: Tally, puts: Sequence[ItemOutcome]) -> Flow[bool]:
        """Write outcomes (and which items have begun) with the counters; False if another chunk was first.

        Call it only in the transaction of a :meth:`hold`.
        """
        counted = {**now._asdict(), "operation_id": grant.operation_id, "was": was.done}
        del counted["total"]
        if (yield from self._dialect.write(self._sql["count"], counted)) != 1:
            return False
        for some in _portions(puts):
            yield from self._put(grant, some)
        return True

    def _put(self, grant: Grant, puts: Sequence[ItemOutcome]) -> Flow[None]:
        if "put_items" in self._sql:  # MariaDB
            rows = json.dumps([_outcome_values(put) for put in puts], ensure_ascii=False)
            params: Values = {"operation_id": grant.operation_id, "rows": rows}
            yield from self._dialect.write(self._sql["put_items"], params)
        else:
            each = [{**_values(put), "operation_id": grant.operation_id} for put in puts]
            yield from self._dialect.write_all(self._sql["put_item"], each)

    def advance_held(self, grant: Grant, was: Tally, now: Tally, puts: Sequence[ItemOutcome]) -> Flow[bool | None]:
        """Perform :meth:`hold` and :meth:`advance` in one commit. None: superseded; False: another chunk was first."""
        yield from self._dialect.commit_together()
        if not (yield from self.hold(grant)):
            return None
        return (yield from self.advance(grant, was, now, puts))

    def find_begun(self, grant: Grant, done: int, limit: int) -> Flow[list[BegunItem]]:
        """Find items that have begun and have no outcome."""
        params: Values = {"operation_id": grant.operation_id, "first": 0, "done": done, "limit": limit}
        rows = yield from self._dialect.rows(self._sql["begun"], params)
        return [
            BegunItem(cast(int, place), cast("bytes | None", effects), _age(since, cast(int, now)))
            for place, _, effects, since, now in rows
        ]

    def relinquish(self, grant: Grant) -> Flow[int]:
        """Give the lease back, so that the next caller continues at once."""
        return (yield from self._dialect.write(self._sql["relinquish"], _holder(grant)))

    def tally(self, operation_id: bytes) -> Flow[Tally | None]:
        """Return the progress of a bulk; None if there is none with this id."""
        rows = yield from self._dialect.rows(self._sql["tally"], {"operation_id": operation_id})
        return _tally(rows[0]) if rows else None

    def newest(self, before: bytes, limit: int) -> Flow[list[tuple[bytes, Tally]]]:
        """Read a page of bulks, newest first: their operation ids and progress.

        Parameters: ``before`` the previous page's last id, or :data:`ANY_BULK`.
        """
        rows = yield from self._dialect.rows(self._sql["newest"], {"before": before, "limit": limit})
        return [(cast(bytes, id), _tally(tally)) for id, *tally in rows]

    def page(
        self, operation_id: bytes, after: int, limit: int, state: ItemState | None, retryable: bool
    ) -> Flow[list[ItemOutcome]]:
        """Read outcomes in the order of the request, after a place (-1: from the first)."""
        params: Values = {
            "operation_id": operation_id,
            "after": after,
            "limit": limit,
            "state": 0 if state is None else int(state),
            "retryable": int(retryable),
        }
        return [_outcome(row) for row in (yield from self._dialect.rows(self._sql["page"], params))]

    def codes(self, operation_id: bytes, limit: int) -> Flow[list[Failures]]:
        """Count failed and unknown items by reason, most frequent first. Reads every item of the bulk."""
        rows = yield from self._dialect.rows(self._sql["codes"], {"operation_id": operation_id, "limit": limit})
        return [
            Failures(ItemState(cast(int, state)), cast("str | None", code), bool(retryable), cast(int, count))
            for state, code, retryable, count in rows
        ]

    def forget(self, chunk: int, only: Collection[bytes] | None = None) -> Flow[Purged]:
        """Delete a chunk of items whose bulk has no record; deletes nothing if none is left.

        Parameters: ``only`` these bulks, by operation id; None for every one.
        """
        orphans = yield from self._dialect.rows(self._sql["orphans"], {"limit": 1 if only is None else ORPHANS_MAX})
        gone = 0
        id = next((id for (id,) in orphans if only is None or id in only), None)
        if id is not None:
            gone = yield from self._dialect.write(self._sql["forget_items"], {"operation_id": id, "limit": chunk})
            if gone == 0:
                gone = yield from self._dialect.write(self._sql["forget_bulk"], {"operation_id": id})
        return Purged(gone, 0, gone, None)


def _portions(puts: Sequence[ItemOutcome]) -> Iterator[list[ItemOutcome]]:
    """Split rows into as many as one statement takes, at least one."""
    portion: list[ItemOutcome] = []
    size = 0
    for put in puts:
        more = len(put.detail or b"") + sum(map(len, filter(None, (put.target_id, put.result_id, put.error_code))))
        if portion and (len(portion) == PUT_MAX or size + more > PUT_BYTES_MAX):
            yield portion
            portion, size = [], 0
        portion.append(put)
        size += more
    if portion:
        yield portion


def _holder(grant: Grant) -> Values:
    return {"id": grant.id, "fence": grant.fence, "nonce": grant.nonce}


def _values(outcome: ItemOutcome) -> Values:
    return {**outcome._asdict(), "state": int(outcome.state), "retryable": int(outcome.retryable)}


def _outcome_values(outcome: ItemOutcome) -> list[Value]:
    *values, detail = _values(outcome).values()
    return [*values, None if detail is None else b64encode(cast(bytes, detail)).decode()]


def _tally(row: Sequence[Value]) -> Tally:
    return Tally(*cast("tuple[int, int, int, int, int, int]", row))


def _outcome(row: Row) -> ItemOutcome:
    values: dict[str, Any] = dict(zip(ItemOutcome._fields, row, strict=True))
    damage = damage_of(NOUN, values)
    if damage is not None:  # it is named, so that the other items are still reported
        return ItemOutcome(values["place"], str(values["item_id"]), ItemState.UNKNOWN, error_code=damage)
    return ItemOutcome(**{**values, "state": ItemState(values["state"]), "retryable": bool(values["retryable"])})


def _age(begun: Value, now: int) -> int:
    """Return the time since an item began, in microseconds; the maximum if the value is damaged."""
    return now - begun if isinstance(begun, int) else now
