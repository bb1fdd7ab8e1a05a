"""A list and an import on a shop's file, which die where it says so, for the shops of ASGI frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from semel import AsyncBulk, AsyncEngine
from semel.bulk.declaration import BulkItem
from semel.imports import Imports, Row
from semel.stores.sql.sqlalchemy import session_on

INSERT = text("INSERT INTO effect VALUES (:what)")


def list_on(engine: AsyncEngine, die_once: Callable[[], None]) -> tuple[AsyncBulk, Any]:
    """A bulk of two items a chunk, and its handler: an ORM session on the chunk's own connection."""

    async def approve(item: BulkItem) -> str:
        with session_on(item.connection) as session:
            session.execute(INSERT, {"what": item.value["what"]})
            session.commit()
        if item.value.get("do") == "kill":
            die_once()
        return f"r-{item.place}"

    return AsyncBulk(engine, operation="cases", effects="atomic", chunk_items=2, lease_seconds=2), approve


def imports_on(engine: AsyncEngine, die_once: Callable[[], None]) -> Imports:
    """Imports of rows that have an effect each, and may be the last of their process."""
    stock = Imports(engine, operation="stock.import", file_bytes_max=300_000_000, lease_seconds=2)

    @stock.row
    async def book(row: Row) -> None:
        row.connection.execute("INSERT INTO effect VALUES (?)", (row.value["what"],))
        if row.value["do"] == "kill":
            die_once()

    return stock
