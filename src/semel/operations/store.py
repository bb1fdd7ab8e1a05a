"""Operations: executions that are remembered longer than their keys, and the owners of business references.

Each flow runs in an open transaction: that of the claim, or of the record's settlement. A row repeats its record's
outcome (``mirror`` copies it), which so survives the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from semel.core.flow import Ask, Flow, ask
from semel.core.model import Claim, Effects, Grant, Kept, Operation, Settlement, State
from semel.core.timing import PURGE_GRACE_US
from semel.stores.mariadb.requests import Reserve, SettleAnd
from semel.stores.sql.dialect import Values, dialect_of
from semel.stores.sql.statements import Execute, Query

BUSY_WAIT_SECONDS: Final = 1  # for a commit that is on its way; an ATOMIC unit is never waited for


class SeenOperation(NamedTuple):
    """An operation, and the store's time."""

    now: int
    operation: Operation


class PurgedOperations(NamedTuple):
    """The result of one chunk of a purge, as :class:`~semel.core.model.Purged`, with the id after which to continue."""

    scanned: int
    answers_dropped: int
    forgotten: int
    next_after: bytes | None


class OperationRows:
    """The operations of one store.

    Raises ConfigurationError if the store is not a SQL database.
    """

    def __init__(self, store: object) -> None:
        self._dialect = dialect_of(store, "operations that outlive their keys")
        self._sql = self._dialect.statements("operations")

    def commit_together(self) -> Flow[None]:
        """Commit the rest of the flow as one."""
        yield from self._dialect.commit_together()

    # --- with the claim ---------------------------------------------------------------------

    def hold(self, claim: Claim, grant: Grant, kept: Kept) -> Flow[bool]:
        """Write the operation of a new grant; False where another operation has its business reference.

        In that case the caller must not commit what was written.
        """
        if kept.ref_id is not None and not (yield from self._lock(kept.ref_id)):
            return False
        values: Values = {
            "operation_id": grant.operation_id,
            "record_id": claim.id,
            "tenant": claim.scope.tenant,
            "caller": claim.scope.caller,
            "operation": claim.scope.operation,
            "business_ref": kept.business_ref,
            "ref_id": kept.ref_id,
            "state": int(grant.state),
            "keep_us": kept.keep_us,
        }
        waits = claim.terms.effects is not Effects.ATOMIC
        if (yield from self._keep(values, waits=waits)) and grant.attempt == 1:
            return True
        if grant.attempt > 1:
            reopened = ("operation_id", "ref_id", "state", "keep_us")
            known = self._sql["reopen"].distinct
            yield from self._dialect.write(
                self._sql["reopen"], {name: values[name] for name in reopened if name in known}
            )
        if kept.ref_id is None:
            return True
        holder = yield from self.holder(kept.ref_id)
        return holder is not None and holder.operation.operation_id == grant.operation_id

    def _lock(self, ref_id: bytes) -> Flow[bool]:
        lock = self._sql.get("lock")  # only where writers do not wait for each other anyway
        if lock is None:
            return True
        number = int.from_bytes(ref_id[:8], "big", signed=True)
        [(mine,)] = yield from self._dialect.rows(lock, {"lock": number})
        return mine == 1

    def _keep(self, values: Values, *, waits: bool) -> Flow[bool]:
        """Write the operation's row; return whether it exists now. MariaDB returns the row, unless it is locked."""
        statement = self._sql["keep"]
        if "wait" not in statement.distinct:
            return (yield from self._dialect.write(statement, values)) == 1
        wait = BUSY_WAIT_SECONDS if waits else 0
        rows = yield from ask(Reserve(Query(statement, {**values, "wait": wait})))
        return rows is not None and rows[0][0] == values["operation_id"]

    def holder(self, ref_id: bytes) -> Flow[SeenOperation | None]:
        """Find the open, unknown or successful operation that has this business reference."""
        return (yield from self._one("holder", {"ref_id": ref_id}))

    # --- with what settles the record -------------------------------------------------------

    def mirror(self, records: Sequence[bytes]) -> Flow[None]:
        """Copy the current outcome of these records to their operations."""
        yield from self._dialect.write_all(self._sql["mirror"], [{"id": id} for id in sorted(set(records))])

    def with_mirror(self, settle: Ask[Any], settlement: Settlement) -> Ask[Any]:
        """Return the ask that settles inside an ATOMIC unit; on MariaDB it also writes the operation, by one check."""
        if not isinstance(settle, Execute):
            return settle
        also = settle.also if isinstance(settle, SettleAnd) else ()
        return SettleAnd(settle, [*also, Execute(self._sql["mirror"], {"id": settlement.id})])

    @property
    def concludes_before(self) -> bool:
        """Whether a unit's success is written in a statement before its settle."""
        return "conclude" in self._sql

    def conclude(self, operation_id: bytes, settlement: Settlement) -> Flow[None]:
        """Write an ATOMIC unit's success, whose record is settled by the statement that commits it."""
        assert settlement.state is State.SUCCEEDED
        values: Values = {
            "operation_id": operation_id,
            "resource_type": settlement.resource_type,
            "resource_id": settlement.resource_id,
        }
        yield from self._dialect.write(self._sql["conclude"], values)

    # --- looking, and forgetting ------------------------------------------------------------

    def by_id(self, operation_id: bytes) -> Flow[SeenOperation | None]:
        """Find an operation by its id."""
        return (yield from self._one("by_id", {"operation_id": operation_id}))

    def by_ref(self, ref_id: bytes) -> Flow[SeenOperation | None]:
        """Find the operation that has this business reference, or else the newest that had it."""
        return (yield from self._one("by_ref", {"ref_id": ref_id}))

    def by_record(self, record_id: bytes) -> Flow[SeenOperation | None]:
        """Find the newest operation of a record, which may be gone."""
        return (yield from self._one("by_record", {"record_id": record_id}))

    def _one(self, name: str, values: Values) -> Flow[SeenOperation | None]:
        rows = yield from self._dialect.rows(self._sql[name], values)
        if not rows:
            return None
        now, *columns = rows[0]
        return SeenOperation(cast(int, now), Operation._make(cast("list[int]", columns)))

    def purge(self, after: bytes, chunk: int) -> Flow[PurgedOperations]:
        """Delete one chunk of expired operations."""
        window: Values = {"after": after, "chunk": chunk, "grace": PURGE_GRACE_US}
        rows = yield from self._dialect.rows(self._sql["window"], window)
        due = [cast(bytes, id) for id, over in rows if over]
        forgotten = yield from self._dialect.write_all(
            self._sql["forget"], [{"operation_id": id, "grace": PURGE_GRACE_US} for id in due]
        )
        last = cast(bytes, rows[-1][0]) if len(rows) == chunk else None
        return PurgedOperations(len(rows), 0, forgotten, last)
