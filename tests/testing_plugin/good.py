"""Applications and functions that are safe to retry: the same small payment in every way in."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Header, HTTPException
from flask import Flask, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Result, Scope
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import Caller, from_state, single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.starlette import Semel as StarletteSemel

ALICE = {"Authorization": "alice"}
BOB = {"Authorization": "bob"}


class Provider:
    """A payment provider that deduplicates by key, where it is given one."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.keys: set[str] = set()

    def charge(self, amount: int, key: str = "") -> int:
        if not key or key not in self.keys:
            self.keys.add(key)
            self.charges.append(amount)
        return len(self.charges)


async def authenticate(request: Request, authorization: str = Header("")) -> None:
    if not authorization:
        raise HTTPException(401)
    request.state.caller = Caller("acme", authorization)


def fastapi_app(engine: AsyncEngine, provider: Provider, **policy: Any) -> FastAPI:
    """FastAPI, claimed inside the endpoint, behind a dependency that authenticates."""
    app = FastAPI(title="shop")
    semel = FastApiSemel(engine, caller=from_state("caller"))

    @app.post("/payments", status_code=201, dependencies=[Depends(authenticate)])
    @semel.command("payments.create", **policy)
    async def create(body: dict[str, int], permit: Permit | None = semel.permit) -> dict[str, int]:
        key = permit.key_for("charge") if permit is not None and policy.get("effects") == "idempotent" else ""
        return {"id": provider.charge(body["amount"], key)}

    semel.install(app, dependencies=[Depends(authenticate)])
    return app


def atomic_app(engine: AsyncEngine, table: str = "payments") -> FastAPI:
    """FastAPI, ATOMIC: the payment is a row beside the record."""
    app = FastAPI(title="ledger")
    semel = FastApiSemel(engine, caller=single_caller)

    @app.post("/payments", status_code=201)
    @semel.command("payments.create", effects="atomic")
    async def create(body: dict[str, int], permit: Permit = semel.permit) -> dict[str, int]:
        permit.connection.execute(f"INSERT INTO {table} (amount) VALUES (?)", (body["amount"],))
        return {"amount": body["amount"]}

    semel.install(app)
    return app


def create_table(database: Path, table: str = "payments") -> None:
    connection = sqlite3.connect(database)
    connection.execute(f"CREATE TABLE {table} (amount INTEGER)")
    connection.commit()
    connection.close()


def starlette_app(engine: AsyncEngine, provider: Provider) -> Starlette:
    semel = StarletteSemel(engine, caller=single_caller)

    @semel.command("payments.create", key="optional")
    async def create(request: Request) -> Response:
        return JSONResponse({"id": provider.charge((await request.json())["amount"])}, 201)

    app = Starlette(routes=[Route("/payments", create, methods=["POST"])])
    semel.install(app)
    return app


def asgi_app(engine: AsyncEngine, provider: Provider) -> AsgiMiddleware:
    """No framework: the middleware manages the engine."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = json.loads((await receive())["body"])
        number = provider.charge(body["amount"])
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"payment %d" % number})

    operations = [Operation("/payments", Policy(after_expiry="new"))]
    return AsgiMiddleware(app, engine, caller=single_caller, operations=operations, manage_engine=True)


def flask_app(engine: Engine, provider: Provider) -> Flask:
    app = Flask("shop")

    @app.post("/payments")
    def create() -> tuple[dict[str, int], int]:
        return {"id": provider.charge(request.get_json()["amount"])}, 201

    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, engine, caller=single_caller, operations=[Operation("/payments")]
    )
    return app


def wsgi_app(engine: Engine, provider: Provider) -> WsgiMiddleware:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = json.loads(environ["wsgi.input"].read())
        number = provider.charge(body["amount"])
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"payment %d" % number]

    return WsgiMiddleware(app, engine, caller=single_caller, operations=[Operation("/payments")])


def command(key: str, caller: str, amount: int, policy: Policy) -> Command:
    digest = hashlib.sha256(str(amount).encode()).digest()
    return Command(Scope("acme", caller, "pay"), key, digest, "v1", policy)


def check_key(key: str) -> str:
    if not 1 <= len(key) <= 255 or " " in key:
        raise ValueError("the key must be 1 to 255 characters without spaces")
    return key


def function(engine: Engine, provider: Provider, policy: Policy) -> Callable[..., Result]:
    def pay(idempotency_key: str, amount: int, caller: str = "alice") -> Result:
        def handler(permit: Permit) -> Answer:
            return Answer(201, (), b"payment %d" % provider.charge(amount, permit.key_for("charge")))

        return engine.run(command(check_key(idempotency_key), caller, amount, policy), handler)

    return pay


def async_function(engine: AsyncEngine, provider: Provider, policy: Policy) -> Callable[..., Any]:
    async def pay(key: str, amount: int, caller: str = "alice") -> Result:
        async def handler(permit: Permit) -> Answer:
            return Answer(201, (), b"payment %d" % provider.charge(amount, permit.key_for("charge")))

        return await engine.run(command(check_key(key), caller, amount, policy), handler)

    return pay
