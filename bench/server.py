"""One server of the bench, a process of its own, in the environment of what it serves.

It announces its port with one line on stdout, and ends when its stdin is closed: it cannot outlive the bench.
Imports nothing of Semel: the peers' environment has none.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from importlib import import_module
from pathlib import Path

import uvicorn

from bench.conform.handlers import shop_handlers
from bench.correctness.handlers import order_handlers
from bench.payments import payment_handlers
from bench.setup import App, Setup


def application(setup: Setup) -> App:
    """What the setup asks for."""
    if setup.book is None:
        handlers = payment_handlers()
    else:
        handlers = (shop_handlers if setup.shop else order_handlers)(Path(setup.book))
    app: App = import_module(setup.module).build(setup, handlers)
    return app


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
    """Serve what the command line describes until stdin is closed."""
    setup = Setup.from_json(sys.argv[1])
    app = application(setup)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="on", access_log=False, log_level="warning", workers=1
    )
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart on the same port
    listening.bind(("127.0.0.1", setup.port))
    with listening:
        AnnouncedServer(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
