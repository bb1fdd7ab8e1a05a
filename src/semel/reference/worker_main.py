"""One worker process of the reference service: uvicorn on a socket that it inherits from its supervisor.

``python -m semel.reference.worker_main --socket FD --lifeline FD --ready FD [--metrics FD]``. The lifeline is the
reading end of a pipe that only the supervisor holds open: once the supervisor has ended in any way, the worker drains
and ends. ``--ready`` is the writing end of a pipe, to which the worker writes one byte when it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import uvicorn

from semel.errors import ConfigurationError
from semel.reference.app import create_app
from semel.reference.metrics import Page
from semel.reference.settings import Settings

DRAIN_SECONDS: Final = 10
LOOK_SECONDS: Final = 0.02
LOOKS_MAX: Final = 25  # at the end, waits half a second for a connection's first request
BACKLOG: Final = 2048
CONFIGURATION_EXIT: Final = 3  # it could not start; after a few such failures in a row the supervisor gives up


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it serves, and answers the requests it has accepted before it ends."""

    def __init__(self, config: uvicorn.Config, tells: int | None) -> None:
        super().__init__(config)
        self._tells = tells

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and report it."""
        await super().startup(sockets)
        if self.started and self._tells is not None:
            os.write(self._tells, b"1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new connections, serve the requests of those just accepted, drain."""
        for server in self.servers:
            server.close()
        for _ in range(LOOKS_MAX):  # at least once: an accepted socket becomes a connection in the loop's next turns
            await asyncio.sleep(LOOK_SECONDS)
            if not any(map(_has_not_asked, self.server_state.connections)):
                break
        await super().shutdown(sockets)


def _has_not_asked(connection: object) -> bool:
    """Return whether a connection is too young to have sent its first request."""
    return getattr(connection, "cycle", connection) is None


def run_server(
    settings: Settings, listening: socket.socket, tells: int | None = None, measuring: socket.socket | None = None
) -> int:
    """Serve on a bound socket until SIGTERM or SIGINT; running handlers may end within the drain.

    Parameters: ``tells``, a descriptor that gets one byte when the server serves; ``measuring`` the bound
    socket of the metrics page.
    """
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s {os.getpid()} %(name)s: %(message)s")
    page = None if measuring is None else Page(settings, measuring)
    app = create_app(settings) if page is None else page.beside(create_app(settings, page.observer))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        backlog=BACKLOG,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        log_config=None,
    )
    server = _Server(config, tells)
    with suppress(KeyboardInterrupt):  # uvicorn drains on SIGINT, then raises it again
        server.run(sockets=[listening, *([] if measuring is None else [measuring])])
    if page is not None:
        page.close()
    return 0 if server.started else CONFIGURATION_EXIT


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the supervisor asks to end, or dies."""
    parser = argparse.ArgumentParser(prog="semel.reference.worker_main", description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--metrics", type=int)
    options = parser.parse_args(argv)
    measuring = None if options.metrics is None else socket.socket(fileno=options.metrics)
    threading.Thread(target=_hold, args=(options.lifeline,), name="semel-lifeline", daemon=True).start()
    try:
        return run_server(Settings.read(), socket.socket(fileno=options.socket), options.ready, measuring)
    except ConfigurationError as error:
        print(f"semel: {error}", file=sys.stderr)  # noqa: T201  # the only output of this process
        return CONFIGURATION_EXIT


def _hold(lifeline: int) -> None:
    os.read(lifeline, 1)  # no byte ever comes: it returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main())
