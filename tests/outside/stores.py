"""The stores whose commands are interrupted, and how a handler and a user of them write a row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pymysql
import redis

from tests.servers import mariadb, postgres
from tests.servers import redis as valkey


@dataclass(frozen=True, slots=True)
class Store:
    """A store: its URL, and a connection of the user's own to the same database (None: it has no transactions)."""

    name: str
    url: str
    connect: Callable[[], Any] | None

    def make_table(self) -> None:
        """The application's own, empty table."""
        if self.connect is not None:
            with closing(self.connect()) as connection:
                execute(connection, "DROP TABLE IF EXISTS effect")
                execute(connection, "CREATE TABLE effect (name VARCHAR(80))")
                connection.commit()

    def rows(self) -> list[str]:
        """What was written in it, by name."""
        if self.connect is None:
            return []
        with closing(self.connect()) as connection:
            return sorted(name for (name,) in execute(connection, "SELECT name FROM effect"))


def execute(connection: Any, statement: str) -> list[Any]:
    """Run one statement on a connection of any of the libraries; return its rows."""
    cursor = connection.cursor()
    cursor.execute(statement)
    return list(cursor.fetchall()) if cursor.description else []


def on_sqlite(folder: Path) -> Store:
    path = folder / "semel.db"
    return Store("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path, check_same_thread=False))


def on_postgres(folder: Path) -> Store:
    server, schema = postgres.postgres(), postgres.schema()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return Store(
        "postgresql",
        f"{server}?schema={schema}",
        lambda: psycopg.connect(server, options=f"-c search_path={schema}"),
    )


def on_mariadb(folder: Path) -> Store:
    server = mariadb.mariadb()

    def connect(**options: Any) -> Any:
        return pymysql.connect(host=server.host, port=server.port, user=server.user, **options)

    with closing(connect(autocommit=True)) as connection:
        execute(connection, f"DROP DATABASE IF EXISTS {server.database}")
        execute(connection, f"CREATE DATABASE {server.database}")
    return Store("mariadb", mariadb.url(server), lambda: connect(database=server.database))


def on_redis(folder: Path) -> Store:
    port = valkey.valkey()
    with redis.Redis(port=port) as client:
        client.flushall()
    return Store("redis", f"redis://127.0.0.1:{port}", None)


STORES: Final[Mapping[str, Callable[[Path], Store]]] = {
    "sqlite": on_sqlite,
    "postgresql": on_postgres,
    "mariadb": on_mariadb,
    "redis": on_redis,
}
