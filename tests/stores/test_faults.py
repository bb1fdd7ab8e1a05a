"""Every verb of the SQLite store under every fault: all of it happened or nothing, and repeating it is safe.

The store calls of upkeep, operators and migrations too, which no command's own run passes through.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel.core.flow import MakeFlow
from semel.core.model import Grant, Proceed, Resolution, State
from semel.errors import StoreError
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.store import SqliteStore
from semel.testing.attempts import IDEMPOTENT, OK, attempt, renewal, settlement
from semel.testing.clock import SettableClock
from semel.testing.faults import KINDS, Crash, Faults, Kind, When, every_fault, faulty_sqlite

STORE = SqliteStore()
DAY_US = 86_400_000_000
LATER = SettableClock().advance(31 * DAY_US)

Verb = Callable[[dict[str, Grant]], MakeFlow[Any]]

VERBS: dict[str, Verb] = {
    "claim": lambda grants: partial(STORE.claim, [attempt(key, nonce=7) for key in ("new", "old", "done", "newer")]),
    "claim_in_unit": lambda grants: partial(STORE.claim_in_unit, attempt("new", nonce=7)),
    "settle": lambda grants: partial(STORE.settle, [settlement(grants["open"]), settlement(grants["old"])]),
    "settle unknown": lambda grants: partial(STORE.settle, [settlement(grants["open"], State.UNKNOWN)]),
    "give back": lambda grants: partial(STORE.settle, [settlement(grants["idempotent"], State.PROCESSING)]),
    "renew": lambda grants: partial(STORE.renew, [renewal(grants[key]) for key in ("young", "open", "done")]),
    "mark_not_kept": lambda grants: partial(STORE.mark_not_kept, [renewal(grants[key]) for key in ("young", "open")]),
    "abandon": lambda grants: partial(STORE.abandon, [(grants[k].id, grants[k].nonce) for k in ("young", "open")]),
    "resolve": lambda grants: partial(
        STORE.resolve, Resolution(grants["old"].id, grants["old"].fence, True, OK, "olga", "asked")
    ),
    "lapse": lambda grants: partial(STORE.lapse, 10),
    "purge": lambda grants: partial(STORE.purge, None, 10),
    "migrate": lambda grants: partial(STORE.migrate, "again", b"none"),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Grant]]:
    """A file with a record in every walk of life, long after most of them began."""
    path = tmp_path_factory.mktemp("start") / "semel.db"
    clock = SettableClock()
    driver = SqliteDriver(str(path), synchronous="OFF", clock=clock)
    driver.run(partial(STORE.migrate, "faults", b"none"))
    grants: dict[str, Grant] = {}

    def grant(key: str, **options: Any) -> None:
        [verdict] = driver.run(partial(STORE.claim, (attempt(key, **options),)))
        assert isinstance(verdict, Proceed)
        grants[key] = verdict.grant

    for key in ("open", "old", "done", "released"):
        grant(key)
    grant("idempotent", policy=IDEMPOTENT)
    driver.run(
        partial(STORE.settle, [settlement(grants["done"]), settlement(grants["released"], State.FAILED_NOT_REPLAYABLE)])
    )
    clock.set(LATER)
    grant("young")
    driver.close()
    return path, grants


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def perform(path: Path, make: MakeFlow[Any], faults: Faults) -> None:
    faulty = faulty_sqlite(str(path), SettableClock(LATER), faults)
    with suppress(StoreError, Crash):
        faulty.backend.driver.run(make)
    faulty.bury()


@pytest.mark.parametrize(("kind", "when", "once"), KINDS, ids=lambda value: str(getattr(value, "value", value)))
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_happens_whole_or_not_at_all(
    name: str, kind: Kind, when: When, once: bool, start: tuple[Path, dict[str, Grant]], tmp_path: Path
) -> None:
    template, grants = start
    make = VERBS[name](grants)
    whole = tmp_path / "whole.db"
    shutil.copyfile(template, whole)
    perform(whole, make, Faults())
    before, after = dump(template), dump(whole)
    for fault in every_fault(kind, when, once=once):
        path = tmp_path / f"{fault.n}.db"
        shutil.copyfile(template, path)
        faults = Faults(fault)
        perform(path, make, faults)
        committed = faults.clean or (faults.asks[fault.n - 1] == "COMMIT" and when is When.AFTER)
        assert dump(path) == (after if committed else before), (str(fault), faults.asks)
        perform(path, make, Faults())
        assert dump(path) == after, f"repeated after {fault}"
        if faults.clean:
            return


def test_a_first_migration_happens_whole_or_not_at_all(tmp_path: Path) -> None:
    make: MakeFlow[Any] = partial(STORE.migrate, "first", b"none")
    whole = tmp_path / "whole.db"
    perform(whole, make, Faults())
    for kind, when, once in KINDS:
        for fault in every_fault(kind, when, once=once):
            path = tmp_path / f"{fault}.db"
            faults = Faults(fault)
            perform(path, make, faults)
            committed = faults.clean or (faults.asks[fault.n - 1] == "COMMIT" and when is When.AFTER)
            assert (dump(path) == dump(whole)) is committed, (str(fault), faults.asks)
            perform(path, make, Faults())
            assert dump(path) == dump(whole)
            if faults.clean:
                break
