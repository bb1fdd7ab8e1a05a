"""A server of this run behind both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from redis import Redis

from semel.stores.backend import Backend
from semel.stores.redis.url import redis_backend
from tests.engine.shells import Mode, Shell
from tests.servers import redis as servers
from tests.servers.running import stop


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    """Which engine performs."""
    chosen: Mode = request.param
    return chosen


Opens = Callable[..., Shell]


@pytest.fixture
def open_engine(mode: Mode) -> Iterator[Opens]:
    """Makes engines on a server: ``open_engine(port, wait_replicas=1)``; they are closed at the end."""
    with ExitStack() as stack:

        def open_(port: int, *, ready: bool = True, confirm_seconds: float = 0.3, **options: Any) -> Shell:
            shell = Shell(mode, backend(port, **options), confirm_seconds=confirm_seconds)
            stack.callback(shell.close)
            if ready:
                shell.open()
            return shell

        yield open_


def backend(port: int, **options: Any) -> Backend:
    """A backend with a prefix of its own."""
    return redis_backend((("127.0.0.1", port),), **{"prefix": servers.prefix(), "patience_seconds": 5.0, **options})


@pytest.fixture
def client() -> Iterator[Any]:
    """A plain client of this run's server."""
    with Redis(port=servers.valkey()) as plain:
        yield plain


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server for this test alone: its commands can be counted and its data flushed."""
    server = servers.start(tmp_path_factory.mktemp("own") / "server", "appendonly yes")
    yield server.port
    stop(server)


@contextmanager
def monitor_commands(port: int, *, in_scripts: bool = False) -> Iterator[list[str]]:
    """Collect the commands that clients send meanwhile, as MONITOR shows them; or those that scripts call."""
    said: list[str] = []
    with Redis(port=port) as plain, plain.monitor() as monitor:
        yield said
        mark = f"end-{id(said)}"
        with Redis(port=port) as other:
            other.echo(mark)
        for each in monitor.listen():
            if mark in str(each["command"]):
                return
            if (each["client_type"] == "lua") is in_scripts:
                said.append(str(each["command"]).split(" ", 1)[0].upper())
