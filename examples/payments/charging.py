"""The shop's side of the provider: how it charges, and how it asks what was charged.

``PROVIDER_URL`` and ``PROVIDER_SECONDS`` (how long an answer is waited for) can be set.
"""

from __future__ import annotations

import os

import httpx
from pydantic import BaseModel

from semel import NothingHappened

URL = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8001")
SECONDS = float(os.environ.get("PROVIDER_SECONDS", "2"))


class Charge(BaseModel):
    """What the provider answered: the id of a charge, or that the card was declined."""

    id: str | None = None
    declined: str | None = None


async def charge(key: str, amount: int, currency: str, card: str) -> Charge:
    """Charge a card.

    Raises NothingHappened where the provider was not reached, and httpx.HTTPError where the outcome is open.
    """
    wanted = {"amount": amount, "currency": currency, "card": card}
    async with httpx.AsyncClient(base_url=URL, timeout=SECONDS) as client:
        try:
            answer = await client.post("/charges", json=wanted, headers={"Idempotency-Key": key})
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NothingHappened("the provider was not reached") from error
    if answer.status_code == 402:
        return Charge(declined=answer.json()["detail"])
    answer.raise_for_status()
    return Charge(id=answer.json()["id"])


async def find(key: str) -> Charge | None:
    """Return what was charged under a key; None: nothing so far. Raises httpx.HTTPError."""
    async with httpx.AsyncClient(base_url=URL, timeout=SECONDS) as client:
        answer = await client.get("/charges", params={"key": key})
    answer.raise_for_status()
    found = answer.json()
    return Charge(id=found[0]["id"]) if found else None
