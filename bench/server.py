"""One server of the bench, a process of its own: the bare application, or the same under Semel.

It announces its port with one line on stdout, and ends when its stdin is closed: it cannot outlive the bench.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.subjects import COUNTS_PATH, PATH
from semel import AsyncEngine, Engine, Policy
from semel.telemetry import Counting
from semel.web.asgi import SemelMiddleware
from semel.web.caller import single_caller
from semel.web.routing import Operation

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def bare_app(*more: Route) -> Starlette:
    """The application that everything is compared with: about 200 bytes of JSON in, about 100 out."""
    numbers = itertools.count(1)

    async def pay(request: Request) -> JSONResponse:
        order = await request.json()
        payment = {
            "paymentId": f"pay_{next(numbers):016d}",
            "status": "captured",
            "amount": order["amount"],
            "currency": order["currency"],
            "version": 1,
        }
        return JSONResponse(payment, status_code=201)

    return Starlette(routes=[Route(PATH, pay, methods=["POST"]), *more])


def protected_app(url: str, *, counted: bool) -> App:
    """The same application under Semel. Only where it is ``counted`` does an observer watch the store calls."""
    counting = Counting()
    engine = AsyncEngine.connect(url, observer=counting) if counted else AsyncEngine.connect(url)

    async def counts(request: Request) -> JSONResponse:
        # Those of requests: the reaper looks at the store by the clock, whatever is asked of it.
        calls = sum(counting.counts["store_call_seconds", (verb,)] for verb in ("claim", "settle"))
        commits: int | None = getattr(engine.backend.driver, "commits", None)
        return JSONResponse({"store_calls": calls, "commits": commits})

    app = bare_app(*([Route(COUNTS_PATH, counts)] if counted else []))
    operations = [Operation(PATH, Policy())]
    return SemelMiddleware(app, engine, caller=single_caller, operations=operations, manage_engine=True)


def migrate(url: str) -> None:
    """Make the store ready, as an operator would have before."""
    engine = Engine.connect(url)
    engine.migrate()
    engine.close()


class AnnouncedServer(uvicorn.Server):
    """uvicorn, saying where it listens and ending with its parent."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then announce the port."""
        assert sockets is not None
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self.end)
        await super().startup(sockets)
        print(json.dumps({"port": sockets[0].getsockname()[1]}), flush=True)

    def end(self) -> None:
        """The parent has closed our stdin, or is gone."""
        self.should_exit = True


def main() -> None:
    """Serve until stdin is closed."""
    parser = argparse.ArgumentParser(description="One server of the bench.")
    parser.add_argument("--store", help="a store URL; without it the bare application is served")
    parser.add_argument("--counted", action="store_true", help=f"count store calls and commits: GET {COUNTS_PATH}")
    options = parser.parse_args()
    app = bare_app() if options.store is None else protected_app(options.store, counted=options.counted)
    if options.store is not None:
        migrate(options.store)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="on", access_log=False, log_level="warning", workers=1
    )
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    with listening:
        AnnouncedServer(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
