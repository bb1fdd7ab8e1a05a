"""The database servers that a run starts for its subjects, each on a free port of the loopback interface.

How a server is made is the test suite's business (``tests/servers``); what is particular here is that every one of
them flushes its log to the disk at each commit, which MariaDB's need not do in tests. Redis is in ``bench.stores``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.stores import REMEDY as REDIS_REMEDY
from bench.stores import StoreServerError, redis_program, redis_server
from tests.servers import mariadb, needed, postgres
from tests.servers.running import ENVIRONMENT, begin_run, end_run, stop

DATABASE: Final = "bench"
# No checkpoint falls into one cell and not into another; the log is flushed at each commit all the same.
POSTGRES_SETTINGS: Final = (
    *("fsync=on", "synchronous_commit=on", "max_connections=500"),
    *("checkpoint_timeout=1h", "max_wal_size=8GB", "shared_buffers=256MB"),
)
MARIADB_SETTINGS: Final = ("innodb-flush-method=fsync", "innodb-doublewrite=1", "max-connections=500")


def slow_flush(milliseconds: float) -> tuple[str, ...]:
    """PostgreSQL's settings for a disk that needs this much longer to flush.

    It sleeps before each flush while it holds the lock of its log, so that other commits gather behind it, as they do
    behind a flush that takes longer. Source: "commit_delay" in https://www.postgresql.org/docs/current/wal-configuration.html
    """
    return (f"commit_delay={round(milliseconds * 1000)}", "commit_siblings=0") if milliseconds else ()


SERVER_OF: Final[Mapping[str, str]] = {
    "redis": "redis",
    "postgresql": "postgresql",
    "postgresql+asyncpg": "postgresql",
    "mariadb": "mariadb",
}
"""Which server a kind of store is on."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a run has started: the URLs of its stores by kind, and where PostgreSQL's programs are."""

    urls: Mapping[str, str]
    programs: Path | None = None


def missing(server: str) -> str | None:
    """Why a kind of server cannot be started here, with the remedy; None where it can."""
    if server == "redis":
        return None if redis_program() is not None else f"no Redis server here ({REDIS_REMEDY})"
    if server == "mariadb":
        return None if needed.is_here("mariadb") else f"no MariaDB server here ({needed.REMEDY})"
    with _folder():
        try:
            postgres.programs()
        except AssertionError as error:
            return str(error)
    return None


@contextmanager
def start_servers(
    servers: set[str], place: Path, settings: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[Started]:
    """These servers for the length of a block, and their stores.

    Parameters: ``place`` a folder for Redis; ``settings`` more settings of a server, by its name.

    Raises StoreServerError: one is not installed, or did not start.
    """
    urls: dict[str, str] = {}
    programs: Path | None = None
    running = []
    more = settings or {}
    with _folder() as folder:
        try:
            if "postgresql" in servers:
                programs = postgres.programs()
                running.append(
                    postgres.start(_make_folder(folder, "postgresql"), *POSTGRES_SETTINGS, *more.get("postgresql", ()))
                )
                urls["postgresql"] = postgres.conninfo(running[-1])
                urls["postgresql+asyncpg"] = urls["postgresql"].replace("postgresql:", "postgresql+asyncpg:", 1)
            if "mariadb" in servers:
                running.append(
                    mariadb.start(_make_folder(folder, "mariadb"), *MARIADB_SETTINGS, *more.get("mariadb", ()))
                )
                with mariadb.connect(running[-1].port) as connection:
                    connection.cursor().execute(f"CREATE DATABASE {DATABASE}")
                urls["mariadb"] = f"mysql://root@127.0.0.1:{running[-1].port}/{DATABASE}"
            if "redis" in servers:
                with redis_server(place) as url:
                    yield Started({**urls, "redis": url}, programs)
            else:
                yield Started(urls, programs)
        except AssertionError as error:  # this is how the suite's servers say that they did not start
            raise StoreServerError(str(error)) from error
        finally:
            for server in running:
                stop(server)


def mariadb_program() -> Path:
    """The server's program."""
    return needed.program("mariadb")


def version_of(program: Path) -> str:
    """Return the version that a server's program prints."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return said.replace(str(program), program.name)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that servers may use which refuse to run as root; it goes with the block."""
    before = os.environ.get(ENVIRONMENT)
    folder = begin_run()
    try:
        yield folder
    finally:
        os.environ.pop(ENVIRONMENT)
        if before is not None:
            os.environ[ENVIRONMENT] = before
        end_run(folder)


def _make_folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made
