"""Payments and orders as the examples have them, on the database that Semel's URL names.

The examples write on SQLite, because it needs no server. These two write the same rows on PostgreSQL, too: with the
same provider, steps, keys and events.
"""

from __future__ import annotations

import inspect
import json
import sqlite3
from contextlib import closing
from functools import partial
from typing import Any

import httpx
import psycopg
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from examples.payments import charging
from semel import Answer, AsyncEngine, Permit, Policy
from semel.http.caller import single_caller
from semel.integrations.fastapi import Semel
from semel.reconciliation.worker import Case, DidNotHappen, Finding, Reconciling, SucceededWith, reconciler
from tests.examples.points import die

TABLES = (
    "CREATE TABLE payments (id TEXT, amount INTEGER, charge TEXT)",
    "CREATE TABLE orders (id TEXT, sku TEXT)",
)
"""Without a unique column: whatever happens twice is seen twice."""


class PaymentIn(BaseModel):
    """What a customer wants. ``amount`` in cents."""

    amount: int
    card: str


class OrderIn(BaseModel):
    """What a customer wants."""

    sku: str


def make_app(url: str, *, lease_seconds: float, deadline_seconds: float) -> FastAPI:
    """The shop on one store."""
    app = FastAPI()
    semel = Semel(AsyncEngine.connect(url), caller=single_caller)
    policy = partial(Policy, lease_seconds=lease_seconds, deadline_seconds=deadline_seconds)
    mark = "?" if url.startswith("sqlite") else "%s"

    async def write(connection: Any, text: str, *values: Any) -> None:
        done = connection.execute(text.replace("?", mark), values)
        if inspect.isawaitable(done):
            await done

    @app.post("/payments", status_code=201)
    @semel.command("payments.create", policy(effects="external", steps=True))
    async def create_payment(wanted: PaymentIn, permit: Permit = semel.permit) -> dict[str, str | None]:
        id = permit.operation_id

        async def charge() -> charging.Charge:
            try:
                return await charging.charge(permit.key_for("charge"), wanted.amount, "EUR", wanted.card)
            except httpx.HTTPError as error:
                raise HTTPException(504, "the provider did not answer") from error

        async def reserve(db: Any) -> None:
            # No "if it is not there yet": after "it did not happen" of the charge this step has still finished.
            await write(db, "INSERT INTO payments VALUES (?, ?, NULL)", id, wanted.amount)

        async def receipt(db: Any) -> None:
            await write(db, "UPDATE payments SET charge = ? WHERE id = ?", charged.id, id)

        await permit.local_step("reserve", reserve)
        charged = await permit.step("charge", charge)
        await permit.local_step("receipt", receipt)
        return {"id": id, "charge": charged.id}

    @app.post("/orders", status_code=201)
    @semel.command("orders.place", policy(effects="atomic"))
    async def place_order(order: OrderIn, permit: Permit = semel.permit) -> dict[str, str]:
        await write(permit.connection, "INSERT INTO orders VALUES (?, ?)", permit.operation_id, order.sku)
        permit.emit("orders.placed", {"sku": order.sku}, aggregate=("order", permit.operation_id))
        return {"id": permit.operation_id}

    @app.post("/poison", status_code=201)
    @semel.command("poison.take", policy(effects="idempotent", attempts_max=2))
    async def poison(order: OrderIn, permit: Permit = semel.permit) -> dict[str, str]:
        die()

    semel.install(app)
    return app


def outside(url: str, text: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Run one statement on the shop's database, on its own connection, and commit it."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            return file.execute(text, values).fetchall()
    conninfo, _, schema = url.partition("?schema=")
    with psycopg.connect(conninfo, autocommit=True, options=f"-c search_path={schema}") as server:
        done = server.execute(text.replace("?", "%s").encode(), values)
        return [] if done.description is None else done.fetchall()


async def reconcile(url: str) -> int:
    """Run one round of a worker; return how many payments were settled."""

    @reconciler("payments.create", quiet_for=0, timeout_seconds=1)
    async def ask_provider(case: Case) -> Finding:
        # It answers at once or never: nothing of a call that has ended waits in its own queue.
        found = await charging.find(case.key_for("charge"))
        if found is None:
            return DidNotHappen()
        outside(url, "UPDATE payments SET charge = ? WHERE id = ?", (found.id, case.operation_id))
        answer = json.dumps({"id": case.operation_id, "charge": found.id}).encode()
        return SucceededWith(Answer(201, ((b"content-type", b"application/json"),), answer))

    async with AsyncEngine.connect(url) as engine:
        return (await Reconciling(engine, [ask_provider]).run_once()).settled
