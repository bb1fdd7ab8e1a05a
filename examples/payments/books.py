"""The shop's books: rows in the database that has Semel's tables too. The caller commits the connection."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from pydantic import BaseModel

URL = os.environ.get("SEMEL_URL", "sqlite:///payments.db")
FILE = URL.removeprefix("sqlite:///")


class Payment(BaseModel):
    """A payment of a customer; ``charge`` is the provider's id of it. ``amount`` in cents."""

    id: str
    amount: int
    currency: str
    status: str
    charge: str | None = None


def create_table() -> None:
    """Safe to repeat."""
    with closing(sqlite3.connect(FILE)) as db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS payments "
            "(id TEXT PRIMARY KEY, customer TEXT, amount INTEGER, currency TEXT, status TEXT, charge TEXT)"
        )


def reserve(db: sqlite3.Connection, id: str, customer: str, amount: int, currency: str) -> None:
    """Before the charge: what is about to be paid. Its step commits it once, whatever becomes of the charge."""
    row = (id, customer, amount, currency)
    db.execute("INSERT INTO payments VALUES (?, ?, ?, ?, 'reserved', NULL)", row)


def close(db: sqlite3.Connection, id: str, charge: str | None) -> Payment:
    """After it: paid, or declined. Safe to repeat."""
    status = "declined" if charge is None else "paid"
    db.execute("UPDATE payments SET status = ?, charge = ? WHERE id = ?", (status, charge, id))
    [row] = db.execute("SELECT id, amount, currency, status, charge FROM payments WHERE id = ?", (id,))
    return Payment(**dict(zip(Payment.model_fields, row, strict=True)))


def list_payments() -> list[Payment]:
    """List all payments."""
    with closing(sqlite3.connect(FILE)) as db:
        rows = db.execute("SELECT id, amount, currency, status, charge FROM payments ORDER BY id").fetchall()
    return [Payment(**dict(zip(Payment.model_fields, row, strict=True))) for row in rows]
