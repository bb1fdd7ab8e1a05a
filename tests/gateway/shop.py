"""A service, of which two run behind a proxy: it records its requests and effects, and dies on demand."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response

from semel import AsyncEngine, Permit
from semel.http import single_caller
from semel.integrations.fastapi import Semel

FOLDER = Path(os.environ["SHOP_FOLDER"])
SEEN, EFFECTS, DIES = FOLDER / "seen.jsonl", FOLDER / "effects.txt", FOLDER / "dies"
DIES_ANSWERING = FOLDER / "dies-answering"
with sqlite3.connect(FOLDER / "semel.db") as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
connection.close()

engine = AsyncEngine.connect(f"sqlite:///{FOLDER}/semel.db")
api = FastAPI()
semel = Semel(engine, caller=single_caller)


def act(effect: str) -> None:
    """The effect; then, where the next one is to die, nothing more."""
    with EFFECTS.open("a") as file:
        file.write(f"{effect}\n")
    die(DIES)


def die(wanted: Path) -> None:
    """Kill this process if the test wants that, once."""
    if wanted.exists():
        wanted.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@api.post("/payments", status_code=201)
@semel.command("payments.create", effects="external", lease_seconds=1, wait_seconds=20)
async def pay(request: Request) -> dict[str, Any]:
    body = await request.json()
    act(body["order"])
    return {"order": body["order"]}


@api.put("/orders/{order}/state", status_code=201)
@semel.command("orders.set", effects="idempotent", lease_seconds=1, wait_seconds=20, dedup_for_seconds=600)
async def set_state(request: Request, order: str, permit: Permit = semel.permit) -> dict[str, Any]:
    act(f"{order} {permit.key_for('state')}")
    return {"order": order}


@api.post("/orders", status_code=201)
@semel.command("orders.place", effects="atomic", lease_seconds=1, wait_seconds=20)
def place(order: Annotated[str, Body(embed=True)], permit: Permit = semel.permit) -> dict[str, str]:
    permit.connection.execute("INSERT INTO orders VALUES (?)", (order,))
    die(DIES)  # before its commit
    return {"order": order}


@api.api_route("/notes/{status}", methods=["GET", "POST", "PUT"])
async def note(status: int, request: Request) -> Response:
    if request.method != "GET":
        act("note")
    return Response(f"status {status}", status_code=status)


semel.install(api)


async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """The service; every request is written down before it is handled."""
    if scope["type"] == "http":
        keys = [value.decode("latin-1") for name, value in scope["headers"] if name == b"idempotency-key"]
        seen = {"method": scope["method"], "path": scope["path"], "keys": keys}
        seen["underscores"] = [name.decode() for name, _ in scope["headers"] if b"_" in name]
        with SEEN.open("a") as file:
            file.write(json.dumps(seen) + "\n")

    async def send_or_die(message: Any) -> None:
        die(DIES_ANSWERING)
        await send(message)

    await api(scope, receive, send_or_die)
