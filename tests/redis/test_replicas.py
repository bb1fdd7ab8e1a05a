"""``wait_replicas``: what replicas have not confirmed is not known yet, on whatever connection it is asked again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from semel.core.model import Settled, State
from semel.core.outcomes import Succeeded
from semel.errors import StatementRefused, StoreTimeout
from tests.engine.shells import MADE, command
from tests.redis.conftest import Opens, monitor_commands
from tests.servers import needed
from tests.servers import redis as servers
from tests.servers.running import stop


@pytest.fixture(params=["valkey", pytest.param("redis", marks=needed.needs("redis"))])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A primary, and a replica that has caught up: their ports."""
    of = servers.program() if request.param == "valkey" else needed.program("redis")
    primary = servers.start(
        tmp_path / "primary", "appendonly yes", "repl-diskless-sync-delay 0", "shutdown-timeout 0", of=of
    )
    follows = f"replicaof 127.0.0.1 {primary.port}"
    replica = servers.start(tmp_path / "replica", follows, of=of)
    with Redis(port=primary.port) as plain:
        servers.eventually(lambda: plain.set("caught-up", 1) and plain.wait(1, 100) == 1)
    yield primary.port, replica.port
    stop(replica)
    stop(primary)


@contextmanager
def stop_server(port: int) -> Iterator[None]:
    """Stop the server at ``port`` with SIGSTOP, and continue it at the end."""
    with Redis(port=port) as plain:
        pid = int(plain.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_claim_without_a_replica_is_not_granted(pair: tuple[int, int], open_engine: Opens) -> None:
    """Nor is it by asking again: WAIT alone would say yes to a connection that has written nothing."""
    primary, replica = pair
    shell = open_engine(primary, wait_replicas=1, wait_seconds=0.05)
    ran: list[Any] = []
    with stop_server(replica):
        for _ in range(3):  # the claim stands on the primary, and is not ours to use
            with pytest.raises(StoreTimeout, match="check the replicas"):
                shell.run(command(), lambda permit: ran.append(1))  # type: ignore[arg-type,return-value]
    assert ran == []
    assert not shell.run(command(), lambda permit: MADE, wait_seconds=5).replayed


def test_a_replay_is_on_the_replicas_too(pair: tuple[int, int], open_engine: Opens) -> None:
    """An answer that a failover could take back is not shown to anybody."""
    primary, replica = pair
    shared = {"prefix": servers.prefix(), "wait_replicas": 1, "wait_seconds": 0.05}
    shell, reader = open_engine(primary, **shared), open_engine(primary, **shared)
    permit = shell.permit(command())
    with stop_server(replica):
        with pytest.raises(StoreTimeout):
            shell.settle(permit, Succeeded(MADE))
        with pytest.raises(StoreTimeout):
            reader.run(command(), lambda permit: MADE)
    assert reader.run(command(), lambda permit: MADE, wait_seconds=5).replayed
    row = shell.row(command())
    assert row is not None
    assert row.state == State.SUCCEEDED


def test_the_wait_command_travels_with_the_call(pair: tuple[int, int], open_engine: Opens) -> None:
    primary, _ = pair
    shell = open_engine(primary, wait_replicas=1)
    shell.run(command("warm"), lambda permit: MADE)
    with monitor_commands(primary) as said:
        shell.run(command(), lambda permit: MADE)
    assert [word for word in said if word in ("EVALSHA", "SET", "WAIT")] == ["EVALSHA", "SET", "WAIT"] * 2


def test_a_full_server_still_settles_and_replays(pair: tuple[int, int], open_engine: Opens) -> None:
    """What has begun may end there: what is written for the replicas' sake must not be refused before it."""
    primary, _ = pair
    shell = open_engine(primary, wait_replicas=1, confirm_seconds=0)
    permit = shell.permit(command())
    with Redis(port=primary) as plain:
        plain.config_set("maxmemory", "1mb")
    assert shell.settle(permit) == Settled()
    assert shell.run(command(), lambda permit: MADE).replayed
    with pytest.raises(StatementRefused, match="raise maxmemory"):
        shell.run(command("new"), lambda permit: MADE)
