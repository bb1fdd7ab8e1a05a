"""Payments: reserve, charge, receipt. Each is a step: recorded, made once, and never made again in the dark.

Another system makes the charge: if its answer is lost, the payment is UNKNOWN until the reconciler has asked the
provider. ``SEMEL_URL`` names the database, which holds the payments too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field

from examples.payments import books, charging
from semel import AsyncEngine, AsyncPermit
from semel.http import from_state
from semel.integrations.fastapi import Semel

LEASE_SECONDS = float(os.environ.get("LEASE_SECONDS", "30"))


class PaymentIn(BaseModel):
    """What a customer wants. ``amount`` in cents; for the cards see the provider."""

    amount: int = Field(gt=0)
    currency: str = "EUR"
    card: str


async def authenticate(request: Request, authorization: str = Header("")) -> None:
    """The token is the name: replace this by your authentication."""
    if authorization not in ("Bearer alice", "Bearer bob"):
        raise HTTPException(401, "send Authorization: Bearer alice (or bob)")
    request.state.caller = authorization.removeprefix("Bearer ")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The shop's table is made when it opens; Semel's are made by ``semel migrate``."""
    books.create_table()
    yield


app = FastAPI(title="Payments", lifespan=lifespan)
semel = Semel(AsyncEngine.connect(books.URL), caller=from_state("caller"))
AUTHENTICATED = [Depends(authenticate)]


@app.post("/payments", status_code=201, dependencies=AUTHENTICATED)
@semel.command("payments.create", effects="external", steps=True, lease_seconds=LEASE_SECONDS)
async def create_payment(wanted: PaymentIn, permit: AsyncPermit = semel.permit) -> books.Payment:
    """Take a payment, once."""
    id, caller = permit.operation_id, permit.command.scope.caller

    async def charge() -> charging.Charge:
        try:
            return await charging.charge(permit.key_for("charge"), wanted.amount, wanted.currency, wanted.card)
        except httpx.HTTPError as error:
            raise HTTPException(504, "the provider did not answer; the payment may have been taken") from error

    await permit.local_step("reserve", lambda db: books.reserve(db, id, caller, wanted.amount, wanted.currency))
    charged = await permit.step("charge", charge)
    payment = await permit.local_step("receipt", lambda db: books.close(db, id, charged.id), returns=books.Payment)
    permit.result("payment", id)
    if charged.declined:
        raise HTTPException(402, charged.declined)
    return payment


@app.get("/payments")
def list_payments() -> list[books.Payment]:
    """List the payments."""
    return books.list_payments()


semel.install(app, dependencies=AUTHENTICATED)
