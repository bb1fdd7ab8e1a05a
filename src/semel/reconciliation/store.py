"""Reconciliations: how often reconcilers asked about an UNKNOWN record, who asks now, and whether they gave up.

A restart must not forget it, but it decides nothing: only the record's fence does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from semel.core.flow import Flow
from semel.reconciliation.rules import Again
from semel.stores.sql.dialect import Values, dialect_of
from semel.stores.sql.statements import Argument


class Standing(NamedTuple):
    """The progress of one record's reconciliation. Times in microseconds."""

    now: int
    record_id: bytes
    fence: int
    asked: int
    next_at: int
    lease_until: int
    gave_up_at: int | None
    reason: str

    def is_due(self, fence: int) -> bool:
        """Whether a reconciler should ask about the record as it is now."""
        if self.lease_until > self.now:
            return False
        return self.fence != fence or (self.gave_up_at is None and self.next_at <= self.now)

    def needs_operator(self, fence: int) -> bool:
        """Whether reconcilers have stopped asking without an answer."""
        return self.fence == fence and self.gave_up_at is not None


class Reconciliations:
    """The reconciliations of one store.

    Raises ConfigurationError if the store is not a SQL database.
    """

    def __init__(self, store: object) -> None:
        self._dialect = dialect_of(store, "reconcilers")
        self._sql = self._dialect.statements("reconciliations")

    def standings(self, records: Sequence[bytes]) -> Flow[dict[bytes, Standing]]:
        """Read the progress of these records; omit records that were never asked about."""
        statement = self._sql["standing"]
        at_once = "record_ids" in statement.distinct
        asked: list[dict[str, Argument]] = [{"record_id": id} for id in records]
        if at_once and records:
            asked = [{"record_ids": list(records)}]
        found: dict[bytes, Standing] = {}
        for params in asked:
            for row in (yield from self._dialect.rows(statement, params)):
                standing = Standing._make(cast("tuple[int, ...]", row))
                found[standing.record_id] = standing
        return found

    def take(self, record: bytes, fence: int, token: bytes, lease_us: int) -> Flow[Standing | None]:
        """Reserve a record's inquiry for this long; None if another worker has it, or it is not due."""
        yield from self._dialect.commit_together()
        taker: Values = {"record_id": record, "fence": fence, "token": token}
        yield from self._dialect.write(self._sql["seed"], taker)
        if (yield from self._dialect.write(self._sql["take"], {**taker, "lease_us": lease_us})) != 1:
            return None
        return (yield from self.standings((record,)))[record]

    def note(self, record: bytes, token: bytes, again: Again) -> Flow[bool]:
        """Note that the outcome is still unknown; return False if another reconciler has taken it since."""
        said: Values = {
            "record_id": record,
            "token": token,
            "counts": int(again.counts),
            "wait_us": again.wait_us,
            "over": int(again.over),
            "reason": again.reason,
        }
        return (yield from self._dialect.write(self._sql["note"], said)) == 1

    def forget(self, record: bytes) -> Flow[None]:
        """Delete the notes on a settled record."""
        yield from self._dialect.write(self._sql["forget"], {"record_id": record})

    def sweep(self) -> Flow[int]:
        """Delete inquiries whose records were settled elsewhere; returns their number."""
        return (yield from self._dialect.write(self._sql["sweep"], {}))
