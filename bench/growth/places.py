"""Where the records are: one store of each size, side by side, so that sizes are compared in alternating rounds.

On PostgreSQL each is a schema of the database that the URL names, on SQLite a file beside the one that it names.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from bench.growth.records import Population
from semel import Engine
from semel.core.model import Record
from semel.stores.sqlite.connection import open_connection

CHUNK: Final = 20_000
PREFIX: Final = "semel_growth_"
REPORT_SECONDS: Final = 10.0
REST_SECONDS: Final = 0.2
_COLUMNS: Final = ", ".join(Record._fields)


class PlaceError(Exception):
    """The records cannot be put there; says what to do."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the record table takes, in bytes; ``indexes`` by name. ``rows`` as counted."""

    rows: int
    table: int
    indexes: dict[str, int]

    @property
    def per_record(self) -> float:
        """Bytes of one record, with its part of the indexes."""
        return (self.table + sum(self.indexes.values())) / self.rows if self.rows else 0.0


class Place(Protocol):
    """One store of a certain size."""

    url: str

    def exists(self) -> bool:
        """Whether something of this name is there already."""

    def make(self, population: Population) -> None:
        """Migrate a new store and load the population."""

    def rows(self) -> int:
        """How many records it holds."""

    def sizes(self) -> Sizes:
        """Return the sizes of the place; looks at every page on SQLite."""

    def settle_down(self) -> None:
        """Have the database do now what it would do in the background some time later."""

    def log_bytes(self) -> int | None:
        """How much the database has logged since ever; None where it does not say."""

    def clean_up(self) -> float | None:
        """Have the database make the room of dropped rows free; the seconds it took, or None where it needs nothing."""

    def drop(self) -> float:
        """Remove it; the seconds it took."""


def place(url: str, records: int) -> Place:
    """Where so many records are, by the URL of the run.

    Raises PlaceError where the URL is of neither database, or has options.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not parts.query:
        return SqlitePlace(url, records)
    if parts.scheme in ("postgresql", "postgresql+asyncpg") and not parts.query:
        return PostgresPlace(url, records)
    raise PlaceError(
        "give --url sqlite:///PATH or postgresql://USER@HOST/DATABASE (or postgresql+asyncpg://), without options"
    )


def chunks(population: Population, name: str) -> Iterator[list[Record]]:
    """The population's rows in chunks; tells how far it has come, on stderr."""
    rows, done, began = population.rows(), 0, time.monotonic()
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
        done += len(chunk)
        if done % (CHUNK * 25) == 0:
            seconds = time.monotonic() - began
            print(f"growth: {name}: {done:,} of {population.records:,} loaded in {seconds:.0f} s", file=sys.stderr)


# --- SQLite -----------------------------------------------------------------------------------


class SqlitePlace:
    """A file of its own."""

    def __init__(self, url: str, records: int) -> None:
        path = Path(urlsplit(url).path.removeprefix("/"))
        if not path.name:
            raise PlaceError("sqlite:/// needs a file, for example sqlite:////var/tmp/growth.db")
        self._file = path.with_name(f"{path.stem}-{records}{path.suffix}")
        self.url = f"sqlite:///{self._file}"

    def exists(self) -> bool:
        return self._file.exists()

    def make(self, population: Population) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        _migrate(self.url)
        with closing(open_connection(str(self._file), "FULL")) as connection:
            # The load may be repeated, so it need not survive a power cut; what is measured later does.
            for pragma in ("synchronous=OFF", "cache_size=-1000000", "wal_autocheckpoint=100000"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            marks = ", ".join("?" * len(Record._fields))
            for chunk in chunks(population, "SQLite"):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(f"INSERT INTO semel_record ({_COLUMNS}) VALUES ({marks})", chunk)
                connection.execute("COMMIT")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def rows(self) -> int:
        with closing(sqlite3.connect(self._file)) as connection:
            [(rows,)] = connection.execute("SELECT count(*) FROM semel_record")
            return int(rows)

    def sizes(self) -> Sizes:
        with closing(sqlite3.connect(self._file)) as connection:
            # Pages, not pgsize: its sum is a number of 32 bits in SQLite 3.40.
            found = dict(
                connection.execute(
                    "SELECT name, pageno * (SELECT page_size FROM pragma_page_size) FROM dbstat WHERE aggregate = 1"
                    " AND name IN (SELECT name FROM sqlite_master WHERE tbl_name = 'semel_record')"
                )
            )
        return Sizes(self.rows(), found.pop("semel_record"), found)

    def settle_down(self) -> None:
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def log_bytes(self) -> int | None:
        return None

    def clean_up(self) -> float | None:
        return None  # a page that is free is used by the next record

    def drop(self) -> float:
        began = time.perf_counter()
        for end in ("", "-wal", "-shm"):
            self._file.with_name(self._file.name + end).unlink(missing_ok=True)
        return time.perf_counter() - began


# --- PostgreSQL -------------------------------------------------------------------------------


class PostgresPlace:
    """A schema of its own."""

    def __init__(self, url: str, records: int) -> None:
        self._schema = f"{PREFIX}{records}"
        self._server = url.replace("postgresql+asyncpg:", "postgresql:", 1)
        self.url = f"{url}?schema={self._schema}"

    def _connect(self) -> Any:
        try:
            import psycopg
        except ImportError as error:
            raise PlaceError("postgresql:// needs psycopg 3; run: pip install 'semel[postgresql]'") from error
        try:
            return psycopg.connect(
                self._server, autocommit=True, options=f"-c search_path={self._schema} -c jit=off", connect_timeout=10
            )
        except psycopg.OperationalError as error:
            raise PlaceError(f"PostgreSQL cannot be reached: {error}") from error

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connect() as connection:
            cursor = connection.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return rows

    def exists(self) -> bool:
        return bool(self._query(f"SELECT 1 FROM pg_namespace WHERE nspname = '{self._schema}'"))

    def make(self, population: Population) -> None:
        self._query(f"CREATE SCHEMA {self._schema}")
        _migrate(self.url)
        kinds = dict(
            self._query("SELECT attname, atttypid FROM pg_attribute WHERE attrelid = 'semel_record'::regclass")
        )
        types = [kinds[name] for name in Record._fields]
        with self._connect() as connection:
            connection.execute("SET synchronous_commit = off")  # the load may be repeated; what is measured waits
            for chunk in chunks(population, "PostgreSQL"):
                with connection.cursor().copy(f"COPY semel_record ({_COLUMNS}) FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(types)
                    for row in chunk:
                        copy.write_row(row)
        self._query("VACUUM (ANALYZE) semel_record")
        self.settle_down()

    def rows(self) -> int:
        [(rows,)] = self._query("SELECT count(*) FROM semel_record")
        return int(rows)

    def sizes(self) -> Sizes:
        [(table,)] = self._query("SELECT pg_table_size('semel_record'::regclass)")
        indexes = self._query(
            "SELECT c.relname, pg_relation_size(c.oid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = 'semel_record'::regclass ORDER BY 1"
        )
        return Sizes(self.rows(), table, dict(indexes))

    def settle_down(self) -> None:
        self._query("CHECKPOINT")

    def log_bytes(self) -> int | None:
        [(written,)] = self._query("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        return int(written)

    def count_touched(self, least: float = 0) -> tuple[int, ...]:
        """Count the whole scans, index scans and pages of the table and its indexes since its creation.

        A session reports when it ends: this waits until all together are at least ``least``, and do not grow any more.
        """
        ends, before = time.monotonic() + REPORT_SECONDS, (-1,)
        while True:
            [found] = self._query(
                "SELECT t.seq_scan, t.idx_scan, coalesce(heap_blks_read + heap_blks_hit, 0),"
                " coalesce(idx_blks_read + idx_blks_hit, 0) FROM pg_stat_user_tables AS t"
                " JOIN pg_statio_user_tables USING (relid) WHERE relid = 'semel_record'::regclass"
            )
            if (found == before and sum(found) >= least) or time.monotonic() > ends:
                return found
            before = found
            time.sleep(REST_SECONDS)

    def clean_up(self) -> float | None:
        began = time.perf_counter()
        self._query("VACUUM semel_record")
        return time.perf_counter() - began

    def drop(self) -> float:
        began = time.perf_counter()
        self._query(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")
        return time.perf_counter() - began


def _migrate(url: str) -> None:
    engine = Engine.connect(url)
    engine.migrate()
    engine.close()
