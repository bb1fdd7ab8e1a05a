"""One worker process of the reference service: uvicorn on a socket that it inherits from its supervisor.

``python -m semel.service.worker_main --socket FD --lifeline FD``. The lifeline is the reading end of a pipe
that only the supervisor holds open: when the supervisor is gone, however it ended, the worker drains and ends.
"""

from __future__ import annotations

import argparse
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
from semel.service.app import create_app
from semel.service.settings import Settings

DRAIN_SECONDS: Final = 10
BACKLOG: Final = 2048
CONFIGURATION_EXIT: Final = 3  # it could not start; after a few such starts in a row the supervisor gives up


def run_server(settings: Settings, listening: socket.socket) -> int:
    """Serve on a bound socket until SIGTERM or SIGINT; handlers that run may end within the drain."""
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s {os.getpid()} %(name)s: %(message)s")
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        backlog=BACKLOG,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        log_config=None,
    )
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):  # uvicorn drains on SIGINT, then raises it once more
        server.run(sockets=[listening])
    return 0 if server.started else CONFIGURATION_EXIT


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the supervisor says so, or is gone."""
    parser = argparse.ArgumentParser(prog="semel.service.worker_main", description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(argv)
    threading.Thread(target=_hold, args=(options.lifeline,), name="semel-lifeline", daemon=True).start()
    try:
        return run_server(Settings.read(), socket.socket(fileno=options.socket))
    except ConfigurationError as error:
        print(f"semel: {error}", file=sys.stderr)  # noqa: T201  # a process's last words
        return CONFIGURATION_EXIT


def _hold(lifeline: int) -> None:
    os.read(lifeline, 1)  # nobody ever writes: it returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main())
