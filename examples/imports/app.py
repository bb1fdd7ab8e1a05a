"""Suppliers send their price lists: ``POST /suppliers/{supplier}/prices`` takes a CSV file.

``uvicorn examples.imports.app:app --port 8000`` serves it. Each supplier has a token of its own, and sends its own
files alone. A file that is sent again is the same import; a file that grew books what is new.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from decimal import Decimal

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from semel import AsyncEngine
from semel.http import Caller
from semel.imports import Csv, Imports, Row
from semel.integrations.fastapi import Semel

TOKENS = {"token-of-acme": "ACME", "token-of-beta": "BETA"}  # a real service has them hashed, and elsewhere
URL = os.environ.get("PRICES_URL", "sqlite:///prices.db")
TABLE = "CREATE TABLE IF NOT EXISTS price (supplier TEXT, sku TEXT, price TEXT, PRIMARY KEY (supplier, sku))"
UPSERT = "INSERT INTO price VALUES (?, ?, ?) ON CONFLICT (supplier, sku) DO UPDATE SET price = excluded.price"


class Price(BaseModel):
    """A row of a price list."""

    sku: str = Field(pattern=r"^[A-Z]-\d{1,6}$")
    price: Decimal = Field(gt=0, max_digits=10, decimal_places=2)


def supplier_of(request: Request) -> Caller | None:
    """Return the supplier that the token names."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Caller("prices", TOKENS[token]) if token in TOKENS else None


def may_send(request: Request, supplier: str) -> bool:
    """A supplier sends and sees its own files alone."""
    caller = supplier_of(request)
    return caller is not None and caller.id == supplier


engine = AsyncEngine.connect(URL)
prices = Imports(
    engine,
    operation="prices.import",
    formats=[Csv()],
    validate=Price,
    rows="skip-known",
    file_bytes_max=16 * 1024 * 1024,
)


@prices.row
async def set_price(row: Row) -> str:
    """Set one price, committed together with its row's outcome."""
    row.connection.execute(UPSERT, (row.supplier, row.value.sku, str(row.value.price)))
    return f"{row.supplier}/{row.value.sku}"


def make_table() -> None:
    """Make the service's own table, once, beside `semel migrate`."""
    with closing(sqlite3.connect(URL.removeprefix("sqlite:///"))) as connection:
        connection.execute(TABLE)


app = FastAPI(title="prices")
semel = Semel(engine, caller=supplier_of)
semel.imports(app, prices, path="/suppliers/{supplier}/prices", supplier="path:supplier", may=may_send)
semel.install(app)
