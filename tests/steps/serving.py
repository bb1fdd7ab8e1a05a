"""A server whose one operation is resumable; its handler tells when its second step is under way, and stays there."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn

from semel import AsyncEngine, AsyncPermit, Permit, Policy
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation

SHIP = Policy(steps=True, resumable=True, lease_seconds=1, wait_seconds=0)


def application(log: str, *, stays: bool) -> Any:
    """The application inside the middleware: charges, ships and answers."""

    def effect(line: str) -> str:
        with open(log, "a") as lines:
            lines.write(f"{line}\n")
        return line

    async def ship(permit: Permit, body: bytes) -> None:
        if stays:
            print("shipping", flush=True)
            await asyncio.Event().wait()
        effect(f"ship {body.decode()} {permit.key_for('ship')}")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("there is nothing to start")
        body = (await receive())["body"]
        permit: AsyncPermit = scope["semel.permit"]
        await permit.step("charge", lambda: effect("charge"))
        await permit.step("ship", lambda: ship(permit, body), repeat=True)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"shipped"})

    return app


def main(path: str, log: str, mode: str) -> None:
    engine = AsyncEngine.connect(f"sqlite:///{path}")
    app = SemelMiddleware(
        application(log, stays=mode == "stays"),
        engine,
        caller=single_caller,
        operations=[Operation("/ship", SHIP, name="ship")],
        manage_engine=True,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main(*sys.argv[1:])
