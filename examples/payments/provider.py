"""A payment provider: another company's system, with its own process and ledger, and the habits of real ones.

Its test cards say how it behaves, as those of real providers do:

- ``tok_good`` is charged and answered.
- ``tok_slow`` is charged, and the answer never comes: the client hangs up.
- ``tok_lost`` is lost on its way in: nothing is charged, and no answer comes.
- ``tok_declined`` is refused: a definite no.

With ``PROVIDER_DEDUPLICATES=1`` a key that was charged is answered with its charge, whatever the card; without, it is
charged again, as by providers that do not read the header. Either way it can be asked: ``GET /charges?key=...``.
``PROVIDER_LEDGER`` names its file.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel

LEDGER = os.environ.get("PROVIDER_LEDGER", "provider.db")
DEDUPLICATES = os.environ.get("PROVIDER_DEDUPLICATES") == "1"

app = FastAPI(title="A payment provider")


class Charge(BaseModel):
    """What a merchant asks for. ``amount`` in cents."""

    amount: int
    currency: str
    card: str


class Charged(BaseModel):
    """A line of the ledger."""

    id: str
    key: str
    amount: int
    currency: str


def ledger() -> closing[sqlite3.Connection]:
    """The ledger, durable with each commit."""
    db = sqlite3.connect(LEDGER, isolation_level=None, timeout=10)
    db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS charges (id TEXT, key TEXT, amount INTEGER, currency TEXT)")
    return closing(db)


def read_charges(key: str | None = None) -> list[Charged]:
    """The lines of the ledger, or those with one key."""
    with ledger() as db:
        rows = db.execute("SELECT id, key, amount, currency FROM charges WHERE ? IS NULL OR key = ?", (key, key))
        return [Charged(id=id, key=key, amount=amount, currency=currency) for id, key, amount, currency in rows]


@app.post("/charges", status_code=201)
async def charge(wanted: Charge, request: Request, idempotency_key: Annotated[str, Header()]) -> Charged:
    """Charge a card."""
    if DEDUPLICATES and (known := read_charges(idempotency_key)):
        return known[0]
    if wanted.card == "tok_declined":
        raise HTTPException(402, "the card was declined")
    made = Charged(id=f"ch_{secrets.token_hex(6)}", key=idempotency_key, amount=wanted.amount, currency=wanted.currency)
    if wanted.card != "tok_lost":
        with ledger() as db:
            db.execute("INSERT INTO charges VALUES (?, ?, ?, ?)", (made.id, made.key, made.amount, made.currency))
    if wanted.card in ("tok_slow", "tok_lost"):
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the rest of a request, of which there is none
    return made


@app.get("/charges")
def list_charges(response: Response, key: str | None = None) -> list[Charged]:
    """List the charges, all or those under one key: only the provider knows what happened."""
    response.headers["Cache-Control"] = "no-store"
    return read_charges(key)
