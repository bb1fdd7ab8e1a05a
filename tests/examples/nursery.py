"""Starts shops and reconcilers by forking: its imports are shared, so that a process costs milliseconds.

A script of its own, which has one thread and opens nothing. It reads one JSON document a line, what to start, and
answers with the child's process id; the child serves until it dies or is ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from typing import Any

import uvicorn

from examples.payments import charging
from semel.reconciliation import worker as reconciling
from tests.examples.points import OnTheWire, Points
from tests.examples.shop import make_app, reconcile


def serve(told: dict[str, Any]) -> None:
    """Serve one shop on the socket that it was given."""
    charging.URL, charging.SECONDS = told["provider"], told["provider_seconds"]
    points = Points(told.get("doom"))
    points.install()
    app = make_app(told["url"], lease_seconds=told["lease_seconds"], deadline_seconds=told["deadline_seconds"])
    config = uvicorn.Config(OnTheWire(app, points), log_level="warning", loop="asyncio", timeout_graceful_shutdown=10)
    with socket.create_server(("127.0.0.1", told["port"]), reuse_port=False) as listening:
        uvicorn.Server(config).run([listening])


def look(told: dict[str, Any]) -> None:
    """Run one round of a reconciler; its output says how many payments it has settled."""
    charging.URL = told["provider"]
    Points(told.get("doom")).install()
    reconciling.LEASE_MARGIN_SECONDS = 0.5  # type: ignore[misc]  # one that dies while it asks is not waited for
    print("settled", asyncio.run(reconcile(told["url"])), flush=True)


def main() -> None:
    """Until there is nothing more to start."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not waited for
    for line in sys.stdin:
        told = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(told["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            code = 1
            try:
                (look if told["looks"] else serve)(told)
                code = 0
            finally:
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
