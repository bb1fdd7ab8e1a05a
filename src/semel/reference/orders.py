"""Orders: business rows in the same database as Semel's records, so that one transaction holds both."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from semel.core.flow import Flow, ask
from semel.stores.sql.statements import Query, Script, statements

LISTED_MAX: Final = 10_000
SQL: Final = statements("semel.reference", "orders.sql")


@dataclass(frozen=True, slots=True)
class Order:
    """One order."""

    id: str
    caller: str
    sku: str
    quantity: int


def create_table() -> Flow[None]:
    """Create the service's own table; safe to repeat."""
    return ask(Script((SQL["create_table"].text, SQL["create_index"].text)))


def place(connection: Any, caller: str, sku: str, quantity: int) -> Order:
    """Write an order on ``permit.connection``: the order commits with the record, or not at all."""
    order = Order(f"ord_{secrets.token_hex(8)}", caller, sku, quantity)
    connection.execute(SQL["insert_order"].text, asdict(order))
    return order


def list_placed(caller: str) -> Flow[list[Order]]:
    """Return one caller's orders, in their order."""
    rows = yield from ask(Query(SQL["list_orders"], {"caller": caller, "limit": LISTED_MAX}))
    return [Order(*cast("tuple[str, str, str, int]", row)) for row in rows]
