"""RabbitMQ from the system's packages: one node per run, with a port mapper of its own that ends with it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from tests.servers.needed import needs, program
from tests.servers.running import Running, free_port, launch, own, share_server

MARK: Final = needs("rabbitmq")
USER: Final = "rabbitmq"

# The node would start a port mapper that outlives it. The wrapper of the package goes through su; its own script not.
SCRIPT: Final = """#!/bin/sh
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 &
mapper=$!
{program} &
node=$!
trap 'kill -TERM $node' TERM INT
while kill -0 $node 2>/dev/null; do wait $node; done
kill -TERM $mapper
wait $mapper
"""


def rabbitmq() -> str:
    """The URL of this run's node. Queues are shared by the run: name yours after your test and process."""
    return url(share_server("rabbitmq", start))


def url(server: Running) -> str:
    """How to connect to a node."""
    return f"amqp://guest:guest@127.0.0.1:{server.port}/"


def start(folder: Path, port: int | None = None) -> Running:
    """Start a node in ``folder``. Started again on the same folder and port it has its queues still."""
    port = free_port() if port is None else port
    folder.chmod(0o755)
    own(folder, USER)
    script = folder / "run.sh"
    script.write_text(SCRIPT.format(program=program("rabbitmq")))
    script.chmod(0o755)
    (folder / "plugins").write_text("[].")
    environment = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"semel{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }

    def ready() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as asked:
                asked.settimeout(2)
                asked.sendall(b"AMQP\x00\x00\x09\x01")
                return b"RabbitMQ" in asked.recv(4096)
        except OSError:
            return False

    return launch([str(script)], folder, port, ready, user=USER, seconds=90, environment=environment)
