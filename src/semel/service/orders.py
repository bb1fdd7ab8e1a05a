"""Orders: business rows in the same database as Semel's records, so that one transaction holds both."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final, cast

from semel.flow import Flow, ask
from semel.stores.statements import Query, Script, Statement

LISTED_MAX: Final = 10_000
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS shop_order (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    caller TEXT NOT NULL,
    sku TEXT NOT NULL,
    quantity INTEGER NOT NULL
) STRICT
"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS shop_order_by_caller ON shop_order (caller, seq)"
_INSERT: Final = "INSERT INTO shop_order (id, caller, sku, quantity) VALUES (?, ?, ?, ?)"
_LIST: Final = Statement(
    "list_orders",
    "SELECT id, caller, sku, quantity FROM shop_order WHERE caller = :caller ORDER BY seq LIMIT :limit",
    writes=False,
)


@dataclass(frozen=True, slots=True)
class Order:
    """One order."""

    id: str
    caller: str
    sku: str
    quantity: int


def create_table() -> Flow[None]:
    """The service's own schema step; safe to repeat."""
    return ask(Script((_TABLE, _INDEX)))


def place(connection: Any, caller: str, sku: str, quantity: int) -> Order:
    """Write an order on ``permit.connection``: it commits with the record, or not at all."""
    order = Order(f"ord_{secrets.token_hex(8)}", caller, sku, quantity)
    connection.execute(_INSERT, (order.id, caller, sku, quantity))
    return order


def placed(caller: str) -> Flow[list[Order]]:
    """One caller's orders, in their order."""
    rows = yield from ask(Query(_LIST, {"caller": caller, "limit": LISTED_MAX}))
    return [Order(*cast("tuple[str, str, str, int]", row)) for row in rows]
