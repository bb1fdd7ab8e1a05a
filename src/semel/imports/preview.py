"""A preview of an import: the effect that a run of a file would have, without that effect."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from semel.bulk.flow import KnownItems
from semel.bulk.rules import ItemOutcome
from semel.bulk.run_async import fill_async
from semel.bulk.spool import ItemSpool
from semel.core.flow import ask
from semel.core.model import Scope
from semel.core.requests import Begin, Rollback, Within
from semel.imports.booking import Booking, RowOutcome, items_of, row_outcome, try_row
from semel.imports.readers import Format, Lines
from semel.imports.rules import ROWS_REFUSED, WRONG_ROW, Counts, ImportJob, ImportState, Job
from semel.imports.store import KnownRows
from semel.stores.shield import whole

if TYPE_CHECKING:
    from semel.imports.run import Imports

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Preview:
    """The predicted result of a run.

    Parameters: ``key`` of the file; ``job`` that has this key already (then a submission only returns this
    job); ``state`` in which the job would end; ``counts``; ``rows`` the first verdicts that are not BOOKED.
    """

    key: str
    job: ImportJob | None
    state: ImportState
    counts: Counts
    rows: tuple[RowOutcome, ...]
    error_code: str | None = None
    reason: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the preview as JSON."""
        return {
            "preview": True,
            "key": self.key,
            "job": None if self.job is None else self.job.document(),
            "state": self.state.name,
            "counts": self.counts._asdict(),
            "errorCode": self.error_code,
            "reason": self.reason,
            "rows": [row.document() for row in self.rows],
        }


class _Trial:
    """The state of a preview so far."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._seen: dict[str, int] = {}
        self.rows: list[RowOutcome] = []

    def add(self, outcome: ItemOutcome) -> None:
        row = row_outcome(outcome)
        self._seen[row.state] = self._seen.get(row.state, 0) + 1
        if row.state != "BOOKED" and len(self.rows) < self._rows_max:
            self.rows.append(row)

    def counts(self) -> Counts:
        seen, total = self._seen, sum(self._seen.values())
        return Counts(total, total, seen.get("BOOKED", 0), seen.get("SKIPPED", 0), seen.get("FAILED", 0), 0)


async def try_file(imports: Imports, key: str, form: Format, file: IO[bytes], scope: Scope, rows_max: int) -> Preview:
    """Run a file without booking it: atomic rows in one transaction that is rolled back. Raises as a run does."""
    atomic = imports.bulk.policy.effects == "atomic"
    lines = Lines()
    booking = Booking(imports.checks, imports.handler if atomic else None, lines, scope, preview=True)
    refuses = imports.all_or_nothing and await asyncio.to_thread(booking.first_wrong, items_of(form, file, Lines()))
    if refuses:
        booking = Booking(imports.checks, None, lines, scope, refuses=True, preview=True)
    known = _make_known_rows(imports, scope) if imports.skips_known and not refuses else None
    trial = _Trial(rows_max)
    with closing(ItemSpool(imports.bulk.policy.list_terms)) as spool:
        await fill_async(spool, items_of(form, file, lines))
        spool.fingerprint()
        if spool.refusal is not None:
            raise spool.refusal
        if atomic and not refuses:
            await _try_within(imports, spool, booking, known, trial)
        else:
            await _try_rows(imports, spool, booking, None, None, trial)
    state = ImportState.FAILED if refuses else ImportState.DONE
    reason = WRONG_ROW if refuses else None
    return Preview(key, None, state, trial.counts(), tuple(trial.rows), ROWS_REFUSED if refuses else None, reason)


async def _try_within(
    imports: Imports, spool: ItemSpool, booking: Booking, known: KnownItems | None, trial: _Trial
) -> None:
    drive = imports.engine._performer.drive
    begun, cancelled = await whole(drive(ask(Begin())))
    unit: Any = begun
    try:
        if cancelled is not None:
            raise cancelled
        # A unit's transaction begins with its first flow, which must precede the handler.
        scope, rows = booking.scope, imports.rows_kept
        await drive(ask(Within(unit, "import", lambda: rows.by_key(scope.tenant, scope.operation, ""))))
        unit.hand_out()
        await _try_rows(imports, spool, booking, known, unit, trial)
    finally:
        await whole(drive(ask(Rollback(unit))))


async def _try_rows(
    imports: Imports, spool: ItemSpool, booking: Booking, known: KnownItems | None, unit: Any, trial: _Trial
) -> None:
    first = 0
    connection = None if unit is None else unit.connection
    while page := spool.page(first, PAGE):
        first += len(page)
        skipped = frozenset[int]()
        if known is not None:
            ledger, items = known, page
            skipped = await imports.engine._performer.drive(
                ask(Within(unit, "import", lambda: ledger.find_known(items)))  # noqa: B023 - performed at once
            )
        for listed in page:
            trial.add(
                listed.as_known()
                if listed.place in skipped
                else await try_row(booking, imports.engine.backend, listed, connection)
            )


def _make_known_rows(imports: Imports, scope: Scope) -> KnownRows:
    none = Job._make([b"", scope.tenant, scope.operation, scope.caller, *[None] * (len(Job._fields) - 4)])
    return KnownRows(imports.engine.store, none, imports.keep_us)
