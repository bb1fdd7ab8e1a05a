"""Servers that are away, full, loading, replicas, or not ours: a bounded wait, nothing run, a remedy, no restart."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, ResponseError

from semel.core.model import State
from semel.core.outcomes import Succeeded
from semel.errors import SchemaError, StoreError, StoreUnavailable
from semel.stores.urls import connect_backend
from tests.engine.shells import MADE, Shell, command
from tests.redis.conftest import Opens
from tests.servers import redis as servers
from tests.servers.running import Running, free_port, stop

Starts = Callable[..., Running]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Starts]:
    """Starts servers of this test's own."""
    running: list[Running] = []

    def start(*settings: str, name: str = "own", port: int | None = None) -> Running:
        running.append(servers.start(tmp_path / name, *settings, port=port))
        return running[-1]

    yield start
    for each in running:
        stop(each)


def refusal_of(shell: Shell, key: str = "k") -> str:
    """Run a command on a server that refuses; return the error's text. The handler must not run."""

    def never(permit: object) -> Any:
        raise AssertionError("the handler ran")

    with pytest.raises(StoreUnavailable) as told:
        shell.run(command(key), never)
    return str(told.value)


def test_an_unreachable_server_and_its_return(start_server: Starts, open_engine: Opens) -> None:
    port = free_port()
    shell = open_engine(port, ready=False)
    assert "check that the server runs" in refusal_of(shell)
    start_server("appendonly yes", port=port)
    shell.open()
    assert shell.run(command(), lambda permit: MADE).answer == MADE


def test_a_server_that_was_killed_remembers_what_it_wrote(start_server: Starts, open_engine: Opens) -> None:
    """What is written before it is acknowledged survives the process; the engine goes on without a restart.

    With everysec the server acknowledges what it has not written yet while the disk is busy with the flush before.
    """
    first = start_server("appendonly yes", "appendfsync always")
    shell = open_engine(first.port)
    shell.run(command(), lambda permit: MADE)
    with Redis(port=first.port) as plain:
        os.kill(int(plain.info("server")["process_id"]), signal.SIGKILL)
    stop(first)
    assert "cannot be reached" in refusal_of(shell, "other")
    start_server("appendonly yes", "appendfsync always", port=first.port)
    assert shell.run(command(), lambda permit: MADE).replayed


def test_a_full_server_refuses_claims_and_takes_settlements(start_server: Starts, open_engine: Opens) -> None:
    """What has begun may end, what is there is replayed; what is new is refused, until there is room."""
    own = start_server("appendonly yes")
    shell = open_engine(own.port)
    shell.run(command("done"), lambda permit: MADE)
    permit = shell.permit(command("running"))
    with Redis(port=own.port) as plain:
        plain.config_set("maxmemory", 1)
        assert "raise maxmemory" in refusal_of(shell)
        assert shell.run(command("done"), lambda permit: MADE).replayed
        shell.settle(permit, Succeeded(MADE))
        assert shell.run(command("running"), lambda permit: MADE).answer == MADE
        plain.config_set("maxmemory", 0)
    assert not shell.run(command(), lambda permit: MADE).replayed


def test_a_replica_is_named_as_one(start_server: Starts, open_engine: Opens) -> None:
    own = start_server("appendonly yes")
    shell = open_engine(own.port)
    shell.run(command("warm"), lambda permit: MADE)
    with Redis(port=own.port) as plain:
        plain.config_set("repl-diskless-sync-delay", 0)
        plain.replicaof("127.0.0.1", free_port())
        assert "point the URL at the primary" in refusal_of(shell)
        plain.replicaof("NO", "ONE")
    assert shell.run(command(), lambda permit: MADE).answer == MADE


def test_a_server_that_is_loading_is_named_as_the_cause(start_server: Starts, open_engine: Opens) -> None:
    own = start_server("save 3600 1", "rdbcompression no")
    shell = open_engine(own.port, accepts_loss=True)
    shell.run(command("0"), lambda permit: MADE)
    with Redis(port=own.port) as plain:
        for number in range(400):
            plain.set(f"other-{number}", b"x" * 4096)
        plain.save()
    stop(own)
    begun = threading.Thread(
        target=start_server,
        args=("save 3600 1", "key-load-delay 20000", "loading-process-events-interval-bytes 1024"),
        kwargs={"port": own.port},
    )
    begun.start()
    told: list[str] = []

    def loading() -> bool:
        try:
            shell.run(command("0"), lambda permit: MADE)
        except StoreError as error:
            told.append(str(error))
            return "still reading its data" in told[-1]
        return False

    servers.eventually(loading)
    with Redis(port=own.port) as plain:
        plain.config_set("key-load-delay", 0)
    begun.join()
    assert shell.run(command("0"), lambda permit: MADE).replayed


def test_a_wrong_password_is_reported_and_never_shown(start_server: Starts, mode: str) -> None:
    own = start_server("appendonly yes", "requirepass s3cret-of-ours")

    def shell_of(user: str) -> Shell:
        chosen: Any = mode
        return Shell(chosen, connect_backend(f"redis://{user}127.0.0.1:{own.port}/0?prefix=own"))

    told: list[str] = []
    for user in ("", ":s3cret-of-nobody@", "joe:s3cret-of-nobody@"):
        shell = shell_of(user)
        told.append(refusal_of(shell))
        shell.close()
    assert "put it into the URL" in told[0]
    assert "check the URL" in told[1]
    assert "s3cret" not in "".join(told)
    right = shell_of(":s3cret-of-ours@")
    with pytest.raises(SchemaError, match="run: semel migrate --url") as unmigrated:
        right._end(right.engine.open())
    assert "s3cret" not in str(unmigrated.value)
    right.open()
    assert right.run(command(), lambda permit: MADE).answer == MADE
    assert "s3cret" not in repr(right.engine.backend.driver.server)
    right.close()


def test_a_missing_right_is_named(start_server: Starts, mode: str) -> None:
    own = start_server("appendonly yes", "user joe on >pw ~* +@all -evalsha")
    chosen: Any = mode
    shell = Shell(chosen, connect_backend(f"redis://joe:pw@127.0.0.1:{own.port}"))
    shell.engine.core.checked = True  # of a store that has been made
    assert "allow it EVALSHA" in refusal_of(shell)
    shell.close()


def test_a_foreign_script_that_blocks_is_ended(start_server: Starts, open_engine: Opens) -> None:
    """BUSY is a refusal; after SCRIPT KILL all is well. A database that is not there is named."""
    own = start_server("appendonly yes", "busy-reply-threshold 50")
    shell = open_engine(own.port)
    shell.run(command("warm"), lambda permit: MADE)

    def forever() -> None:
        with Redis(port=own.port) as plain, pytest.raises(ResponseError, match=r"killed|KILL"):
            plain.eval("while true do end", 0)

    blocking = threading.Thread(target=forever)
    blocking.start()
    told: list[str] = []

    def busy() -> bool:
        try:
            shell.run(command(f"{len(told)}"), lambda permit: MADE)
        except StoreError as error:
            told.append(str(error))
            return "SCRIPT KILL" in told[-1]
        told.append("")
        return False

    servers.eventually(busy)
    with Redis(port=own.port) as plain:
        plain.script_kill()
    blocking.join()
    assert shell.run(command(), lambda permit: MADE).answer == MADE


def test_a_claim_that_was_killed_before_it_wrote_did_nothing(open_engine: Opens) -> None:
    """What the server says of a killed script, of an old server, of a database it has not got."""
    from semel.stores.redis.remedies import remedy_of

    assert "SCRIPT KILL" in remedy_of("ERR", "Error running script: Script killed by user with SCRIPT KILL.")
    old = "Error compiling script (new function): user_script:1: unexpected symbol near '#'"
    assert "Redis 7.0" in remedy_of("ERR", old)
    shell = open_engine(servers.valkey(), ready=False, options={"db": 9999})
    assert "names a database" in refusal_of(shell)


def test_a_cluster_addressed_as_a_server_and_the_reverse_are_reported(open_engine: Opens) -> None:
    alone = open_engine(servers.cluster(), ready=False)
    alone.engine.core.checked = True  # what one node has of the store is read there
    told: set[str] = set()
    for number in range(12):
        try:
            alone.run(command(f"{number}"), lambda permit: MADE)
        except StoreUnavailable as error:
            told.add(str(error))
    assert told == {"the server is part of a cluster; use redis+cluster:// in the URL"}
    assert "use redis:// in the URL" in refusal_of(open_engine(servers.valkey(), ready=False, cluster=True))


def test_a_servers_state_is_reported_to_later_callers(open_engine: Opens) -> None:
    """Two engines, two prefixes: the same key is another command."""
    one, other = open_engine(servers.valkey()), open_engine(servers.valkey())
    one.run(command(), lambda permit: MADE)
    assert other.row(command()) is None
    row = one.row(command())
    assert row is not None
    assert row.state == State.SUCCEEDED
