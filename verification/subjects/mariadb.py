"""The MariaDB store as a subject of the conformance suite: a separate database on a running server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pymysql

from semel.core.model import Record
from semel.stores.backend import Backend
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.url import mariadb_backend
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock


def mariadb_subject(server: MariadbServer, clock: SettableClock | None) -> Subject:
    """An empty database on the server, of the name that ``server`` carries; whatever Semel had in it is deleted.

    Tables that are there stay, empty: making them costs more than most cases.

    Parameters: ``clock`` of the store; None: the server's own.
    """
    ours = replace(server, clock=clock)
    with _connect(server, database=None) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{server.database}`")
        cursor.execute(f"SHOW TABLES FROM `{server.database}` LIKE 'semel%'")
        for (table,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM `{server.database}`.`{table}`")

    def open_backend() -> Backend:
        return mariadb_backend(ours)

    def corrupt(row: Record) -> None:
        with _connect(server, database=server.database) as connection, connection.cursor() as cursor:
            cursor.execute(
                "UPDATE semel_record SET state = %s, body = %s WHERE id = %s", (int(row.state), row.body, row.id)
            )

    return Subject(open_backend(), corrupt, open_backend)


def _connect(server: MariadbServer, *, database: str | None) -> Any:
    options = {**server.options(), "database": database}
    return pymysql.connect(autocommit=True, binary_prefix=True, **options)
