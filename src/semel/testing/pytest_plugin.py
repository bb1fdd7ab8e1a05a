"""The pytest plugin: a settable clock, engines on it, a spy, and ``assert_idempotent`` as fixtures.

Every pytest run in an environment with Semel loads it, so it imports only pytest at load, and does nothing for tests
that do not use its fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from semel.engine.async_engine import AsyncEngine
    from semel.engine.sync_engine import Engine
    from semel.stores.backend import Backend
    from semel.testing.clock import SettableClock
    from semel.testing.idempotent.counting import Spy

MARKER: Final = "semel_store"
STORES: Final = ("memory", "sqlite")
SERVERS: Final = ("postgresql:", "postgresql+asyncpg:", "mysql:", "mariadb:")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*names): the stores of semel_engine and semel_async_engine, one test run each: "
        f"{', '.join(STORES)} or the URL of a test's own PostgreSQL or MariaDB database (memory by default)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each store that its marker names."""
    if MARKER not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    unknown = [name for name in marker.args if name not in STORES and not str(name).startswith(SERVERS)]
    if unknown or not marker.args:
        given = [name if name in STORES else _scheme_of(name) for name in marker.args]
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: semel_store takes names of stores, {' or '.join(map(repr, STORES))}, and "
            f"URLs of test databases, such as 'postgresql+asyncpg://...' or 'mysql://...'; it has {given}"
        )
    names = [name if name in STORES else _scheme_of(name) for name in marker.args]  # no password of a URL in an id
    metafunc.parametrize(MARKER, marker.args, indirect=True, ids=names)


def _scheme_of(url: object) -> str:
    return str(url).partition(":")[0]


@pytest.fixture
def semel_clock() -> SettableClock:
    """The clock of this test's stores: it moves only with ``semel_clock.advance(seconds=60)``."""
    from semel.testing.clock import SettableClock

    return SettableClock()


@pytest.fixture
def semel_store(request: pytest.FixtureRequest) -> str:
    """The name or URL of this test's store; chosen with ``@pytest.mark.semel_store("memory", "sqlite")``.

    A URL names a PostgreSQL or MariaDB database that only tests use: the fixture migrates it, and its store's clock is
    ``semel_clock``. In a shared database, other processes' leases would lapse when a test moves the clock.
    """
    return str(getattr(request, "param", STORES[0]))


@pytest.fixture
def semel_database(tmp_path: Path) -> Path:
    """The file of this test's SQLite store. The test's own tables may live in it, and must for ATOMIC operations."""
    return tmp_path / "semel.db"


@pytest.fixture
def semel_engine(semel_store: str, semel_database: Path, semel_clock: SettableClock) -> Iterator[Engine]:
    """An open, migrated :class:`semel.Engine` on the settable clock: for functions and WSGI applications."""
    from semel.engine.sync_engine import Engine

    engine = Engine(_backend(semel_store, semel_database, semel_clock))
    engine.migrate()
    engine.open()
    yield engine
    engine.close()


@pytest.fixture
def semel_async_engine(semel_store: str, semel_database: Path, semel_clock: SettableClock) -> Iterator[AsyncEngine]:
    """A migrated :class:`semel.AsyncEngine` on the settable clock: for ASGI applications, whose lifespan opens it."""
    from semel.engine.async_engine import AsyncEngine
    from semel.engine.sync_engine import Engine

    backend = _backend(semel_store, semel_database, semel_clock)
    Engine(backend).migrate()
    backend.driver.close()
    yield AsyncEngine(backend)
    backend.driver.close()


def _backend(store: str, database: Path, clock: SettableClock) -> Backend:
    if store == "sqlite":
        from semel.stores.sqlite.driver import SqliteDriver
        from semel.stores.sqlite.url import sqlite_backend

        # Commits do not wait for the disk: tests kill processes, not machines.
        return sqlite_backend(SqliteDriver(str(database), synchronous="OFF", clock=clock))
    from semel.stores.backend import Backend

    if store.startswith(SERVERS):
        from semel.stores.urls import connect_backend

        backend = connect_backend(store)
        # Frozen, and shared by the driver and its connections; nothing has read its clock yet.
        object.__setattr__(backend.driver.server, "clock", clock)
        return backend
    from semel.stores.memory.driver import LocalDriver
    from semel.stores.memory.store import MemoryStore

    return Backend("memory", MemoryStore(), LocalDriver(clock=clock))


@pytest.fixture
def semel_spy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Spy]:
    """Counts the calls of a function for ``effects=``: ``semel_spy(provider, "charge")``. It still runs."""
    from semel.testing.idempotent.counting import Spy

    def spy(owner: Any, name: str) -> Spy:
        seen = Spy(getattr(owner, name))
        monkeypatch.setattr(owner, name, seen)
        return seen

    return spy


@pytest.fixture
def assert_idempotent() -> Callable[..., Any]:
    """:func:`semel.testing.idempotent.assert_idempotent`."""
    from semel.testing import idempotent

    return idempotent.assert_idempotent


@pytest.fixture
def assert_idempotent_async() -> Callable[..., Any]:
    """:func:`semel.testing.idempotent.assert_idempotent_async`, for anyio and pytest-asyncio."""
    from semel.testing import idempotent

    return idempotent.assert_idempotent_async
