"""The same application as a shop has it: each payment is a row of its own table, written in one of two ways.

``unit``: the operation is ATOMIC and the row is written on ``permit.connection``: one commit for claim, row, answer.
``own``: the operation is not, and the row is written on a connection of the shop's: three commits, in the same order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from bench.plain import CONNECTS
from bench.protected import protect
from bench.setup import App, Handler, Handlers, Setup
from semel import Policy
from semel.stores.deadline import Deadline
from semel.stores.pool import AsyncConnectionPool

CONNECTIONS: Final = 8  # as many as Semel has for its transactions; with 16 both forms are slower on two cores
_VALUES: Final = ("129.90", "EUR")
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS bench_payment (id {serial} PRIMARY KEY, amount varchar(20), currency char(3))"
)
_ROW: Final = "INSERT INTO bench_payment (amount, currency) VALUES ({0}, {1})"

Write = Callable[[Any], Awaitable[None]]


def build(setup: Setup, handlers: Handlers) -> App:
    """Every handler writes its row before it answers."""
    assert setup.store is not None
    kind = urlsplit(setup.store).scheme
    make_table(kind, setup.store)
    unit = setup.module == "bench.atomic"
    shop = {path: (_in_unit if unit else _on_own)(handler, kind, setup.store) for path, handler in handlers.items()}
    if not unit:
        return protect(setup, shop, Policy())
    return protect(setup, shop, Policy(effects="atomic"))


def _in_unit(handler: Handler, kind: str, url: str) -> Handler:
    write = WRITES[kind]

    async def pay(request: Request) -> Response:
        await write(request.state.semel_permit.connection)
        return await handler(request)

    return pay


def _on_own(handler: Handler, kind: str, url: str) -> Handler:
    write = WRITES[kind]
    connections = own_connections(kind, url)

    async def pay(request: Request) -> Response:
        connection, _ = await connections.take(Deadline(60.0))
        try:
            await write(connection)
        finally:
            connections.give(connection)
        return await handler(request)

    return pay


def own_connections(kind: str, url: str) -> AsyncConnectionPool[Any]:
    """The shop's connections, as cheap as they can be: kept open, the warmest first, each statement in autocommit."""
    return AsyncConnectionPool(lambda deadline: CONNECTS[kind](url), CONNECTIONS)


async def _write_psycopg(connection: Any) -> None:
    await connection.execute(_ROW.format("%s", "%s"), _VALUES)


async def _write_asyncpg(connection: Any) -> None:
    await connection.execute(_ROW.format("$1", "$2"), *_VALUES)


async def _write_asyncmy(connection: Any) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(_ROW.format("%s", "%s"), _VALUES)


async def _write_sqlite(connection: Any) -> None:
    connection.execute(_ROW.format("?", "?"), _VALUES)


WRITES: Final[Mapping[str, Write]] = {
    "postgresql": _write_psycopg,
    "postgresql+asyncpg": _write_asyncpg,
    "mysql": _write_asyncmy,
    "sqlite": _write_sqlite,
}


def make_table(kind: str, url: str) -> None:
    """The shop's table, where there is none yet."""
    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute(_TABLE.format(serial="integer"))
    elif kind == "mysql":
        import pymysql

        parts = urlsplit(url)
        with pymysql.connect(
            host=parts.hostname, port=parts.port, user=parts.username, database=parts.path.strip("/")
        ) as server:
            server.cursor().execute(_TABLE.format(serial="bigint AUTO_INCREMENT"))
    else:
        import psycopg

        with psycopg.connect(url.replace("+asyncpg", "", 1), autocommit=True) as database:
            database.execute(_TABLE.format(serial="bigserial"))
