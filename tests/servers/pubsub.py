"""Google's emulator of Pub/Sub: one a run, since it is a Java program and starts slowly."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.servers.needed import PROGRAMS, needs
from tests.servers.running import Running, binary, free_port, launch, share_server

MARK = needs("pubsub-emulator")
REMEDY = (
    "Install google-cloud-cli-pubsub-emulator from Google's repository, or: gcloud components install pubsub-emulator"
)


def pubsub() -> str:
    """HOST:PORT of this run's emulator. Name topics after your test and process."""
    return f"127.0.0.1:{share_server('pubsub', start).port}"


def start(folder: Path) -> Running:
    port = free_port()
    program = binary("SEMEL_TEST_PUBSUB_EMULATOR", None, list(PROGRAMS["pubsub-emulator"]), REMEDY)

    def ready() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2):
                return True
        except OSError:
            return False

    return launch([str(program), "--host=127.0.0.1", f"--port={port}"], folder, port, ready)
