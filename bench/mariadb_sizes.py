"""What a record takes on MariaDB, for ``semel size``: ``python -m bench.mariadb_sizes``.

Starts a server of its own, fills one database with answers of 0 bytes and one with answers of 800, both by an engine,
32 at once, reads the sizes that InnoDB states, and times one purge of all of them. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semel import Answer, AsyncEngine, Command, Permit, Policy, Scope
from semel.retention.worker import Reaper
from semel.stores.urls import connect_backend
from tests.servers import mariadb
from tests.servers.running import stop

WAYS = 32
HOUR_US = 3_600_000_000


async def fill(url: str, records: int, answer: bytes) -> None:
    """So many settled records of 97 tenants and 9,973 callers."""
    policy = Policy.of(answer_seconds=1, tombstone_seconds=1)

    async def reply(permit: Permit) -> Answer:
        return Answer(201, (), answer)

    async def run(engine: AsyncEngine, numbers: Iterator[int]) -> None:
        for number in numbers:
            scope = Scope(f"tenant-{number % 97}", f"caller-{number % 9_973}", "payments.create")
            await engine.run(Command(scope, f"8e03978e-40d5-43dd-bc93-{number:012d}", bytes(32), "v1", policy), reply)

    engine = AsyncEngine(connect_backend(url))
    await engine.migrate()
    async with engine:
        numbers = iter(range(records))
        await asyncio.gather(*(run(engine, numbers) for _ in range(WAYS)))


async def purge(url: str) -> None:
    """One purge, which forgets nothing that is younger than its margin."""
    async with AsyncEngine(connect_backend(url)) as engine:
        await Reaper(engine).purge()


def sizes(port: int, database: str, records: int) -> dict[str, float]:
    """Bytes for each record, by index; the table itself is its primary key."""
    with mariadb.connect(port) as connection, connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {database}.semel_record")
        cursor.fetchall()
        cursor.execute(
            "SELECT index_name, stat_value * @@innodb_page_size FROM mysql.innodb_index_stats "
            "WHERE database_name = %s AND table_name = 'semel_record' AND stat_name = 'size'",
            (database,),
        )
        return {name: float(size) / records for name, size in cursor.fetchall()}


def age(port: int, database: str) -> None:
    """Make every record older than a purge's margin, as an hour of waiting would."""
    with mariadb.connect(port) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {database}.semel_record SET answer_until = answer_until - {HOUR_US}, "
            f"forget_after = forget_after - {HOUR_US}, settled_at = settled_at - {HOUR_US}"
        )


def records_of(port: int, database: str) -> int:
    """How many there are."""
    with mariadb.connect(port) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {database}.semel_record")
        [[count]] = cursor.fetchall()
        return int(count)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    options = parser.parse_args()
    found: dict[str, Any] = {"records": options.records}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "server"
        home.mkdir()
        Path(folder).chmod(0o755)  # the server is another user
        running = mariadb.start(home)
        try:
            for answer in (0, 800):
                database = f"sizes_{answer}"
                with mariadb.connect(running.port) as connection, connection.cursor() as cursor:
                    cursor.execute(f"CREATE DATABASE {database}")
                url = f"mysql://root@127.0.0.1:{running.port}/{database}"
                asyncio.run(fill(url, options.records, b"x" * answer))
                found[f"bytes with an answer of {answer}"] = sizes(running.port, database, options.records)
            age(running.port, database)
            started = time.perf_counter()
            asyncio.run(purge(url))
            seconds = time.perf_counter() - started
            left = records_of(running.port, database)
            found["left"], found["purged_per_second"] = left, (options.records - left) / seconds
        finally:
            stop(running)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
