"""A server whose operation charges and mails, in steps or without: a flag says which, as between two deployments."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from semel import AsyncEngine, AsyncPermit, Policy
from semel.http.caller import single_caller
from semel.integrations.fastapi import Semel
from semel.stores.postgres.url import postgres_backend
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend

DECLARED = {
    "steps": Policy(steps=True, lease_seconds=1, wait_seconds=0),
    "external": Policy(lease_seconds=1, wait_seconds=0),
    "idempotent": Policy(effects="idempotent", lease_seconds=1, wait_seconds=0),
    "atomic": Policy(effects="atomic", lease_seconds=1, wait_seconds=0),
}


def application(url: str, schema: str, log: str, declared: str, *, stays: bool) -> FastAPI:
    """The shop. ``stays``: the mail's call is under way for ever, and the server says so."""
    backend = postgres_backend(url, schema=schema) if schema else sqlite_backend(SqliteDriver(url), 5.0)
    app = FastAPI()
    semel = Semel(AsyncEngine(backend), caller=single_caller)

    def effect(line: str) -> str:
        with open(log, "a") as lines:
            lines.write(f"{line}\n")
        return line

    async def mail() -> str:
        effect("mail")
        if stays:
            print("mailing", flush=True)
            await asyncio.Event().wait()
        return "mailed"

    @app.post("/pay", status_code=201)
    @semel.command("pay", DECLARED[declared])
    async def pay(permit: AsyncPermit = Semel.permit) -> dict[str, Any]:
        if declared == "steps":
            await permit.step("charge", lambda: effect("charge"))
            await permit.step("mail", mail, repeat=True)
        else:
            effect("charge")
            await mail()
        return {"paid": True}

    semel.install(app)
    return app


def main(url: str, schema: str, log: str, declared: str, mode: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = application(url, schema, log, declared, stays=mode == "stays")
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
