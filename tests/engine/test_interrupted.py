"""Ctrl-C inside the claim of an ATOMIC command: a program that catches it continues, and no lock is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel import Engine, Permit, Policy
from semel.errors import InProgressError
from semel.stores.backend import Backend
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, command
from tests.servers import mariadb, postgres
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

ATOMIC = Policy(effects="atomic")


def on_sqlite(folder: Path) -> Backend:
    return sqlite(folder / "semel.db", busy_seconds=0.2)


def on_mariadb(folder: Path) -> Backend:
    server = mariadb.mariadb()
    mariadb_subject(server, None).backend.driver.close()
    return mariadb_backend(replace(server, connections_max=1, patience_seconds=1.0))


def on_postgres(folder: Path) -> Backend:
    empty_schema(postgres.postgres(), postgres.schema())
    return postgres_backend(postgres.postgres(), schema=postgres.schema(), connections_max=1, patience_seconds=1.0)


@pytest.fixture(params=[on_sqlite, pytest.param(on_mariadb, marks=mariadb.MARK), on_postgres])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """A migrated store with room for one unit."""
    made: Backend = request.param(tmp_path)
    with closing(Engine(made)) as engine:
        engine.migrate()
    yield made
    made.driver.close()


@pytest.mark.parametrize("after", [False, True], ids=["before it is sent", "after its answer"])
def test_an_interrupted_call_holds_neither_a_connection_nor_a_lock(backend: Backend, after: bool) -> None:
    begun: list[Any] = []

    def begin() -> Any:
        assert backend.unit is not None
        unit = backend.unit()
        if not begun:
            run = unit.run

            def interrupt(make: Any) -> Any:
                if after:
                    run(make)
                raise KeyboardInterrupt

            vars(unit)["run"] = interrupt
        begun.append(unit)
        return unit

    def handler(permit: Permit) -> Any:
        return MADE

    with closing(Engine(replace(backend, unit=begin))) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.run(command(policy=ATOMIC), handler)
        assert not engine.core.running
        assert not engine.core.entering
        for key in ("k", "another"):
            assert engine.run(command(key, policy=ATOMIC), handler, wait_seconds=0).replayed is False


@pytest.mark.parametrize("same", [True, False], ids=["the same request", "another"])
def test_an_attempt_without_a_grant_reports_nothing_about_another(backend: Backend, same: bool) -> None:
    """Found by a checked history: a retry learned that its key belonged to a request that was itself refused."""
    told: list[str] = []

    def asking(permit: Permit) -> Any:
        return MADE

    def begin() -> Any:
        assert backend.unit is not None
        if not told:  # the first asks for its unit: it holds nothing
            told.append("")
            with pytest.raises(InProgressError):
                engine.run(command(request=1 if same else 2, policy=ATOMIC), asking, wait_seconds=0)
        return backend.unit()

    with closing(Engine(replace(backend, unit=begin))) as engine:
        engine.open()
        assert engine.run(command(request=1, policy=ATOMIC), asking).replayed is False
    assert told
