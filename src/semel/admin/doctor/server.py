"""The checks of `semel doctor` that a store declares: of its server, its tables, its file and its disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from semel.core.contract import DoctorCheck, DoctorFinding, Level, Observable
from semel.engine.sync_engine import Engine
from semel.errors import StatementRefused

ShowSlow = Callable[[str, Callable[[], list[DoctorFinding]]], list[DoctorFinding]]
"""Runs slow work of this name, and shows its progress."""

TABLES: Final = "tables"
_OF_LOSS: Final = frozenset({"appendfsync", "durability"})  # checks that ``?persistence=none`` in the URL accepts
_LEVELS: Final[Mapping[str, Level]] = {
    "ok": "ok",
    "note": "note",
    "warning": "warning",
    "forgets": "problem",
    "unusable": "problem",
}


def look_at_tables(engine: Engine) -> DoctorFinding | None:
    """Return the finding on tables that an ATOMIC transaction cannot cover; None for a store without that check."""
    for check in engine.store.doctor(full=False, quick=True):
        if check.name == TABLES:
            return engine.perform("doctor", check.look)[0]
    return None


def look_at_store(
    engine: Engine,
    *,
    full: bool = False,
    quick: bool = False,
    show: ShowSlow = lambda name, work: work(),
) -> Iterator[DoctorFinding]:
    """Yield findings on the server's settings (of all nodes of a cluster), and those of the store's own checks.

    A setting that may lose acknowledged writes is reported as a note where the URL accepts that.

    Parameters: ``full`` and ``quick`` as :meth:`~semel.core.contract.Store.doctor` has them; ``show`` runs slow checks.

    Raises StoreError and SchemaError.
    """
    for finding in _look_at_all(engine, full, quick, show):
        accepted = engine.backend.accepts_loss and finding.check in _OF_LOSS and finding.level == "warning"
        yield replace(finding, level="note") if accepted else finding


def _look_at_all(engine: Engine, full: bool, quick: bool, show: ShowSlow) -> Iterator[DoctorFinding]:
    if isinstance(engine.store, Observable):
        for seen in engine.perform("observe", engine.store.observe):
            yield DoctorFinding(seen.check, _LEVELS[seen.level], seen.detail, seen.remedy or None)
    for check in engine.store.doctor(full=full, quick=quick):
        yield from _perform(engine, check, show)


def _perform(engine: Engine, check: DoctorCheck, show: ShowSlow) -> list[DoctorFinding]:
    try:
        if check.is_slow:
            return show(check.name, lambda: engine.perform("doctor", check.look))
        return engine.perform("doctor", check.look)
    except StatementRefused:
        if check.refused is None:
            raise
        return [check.refused]
