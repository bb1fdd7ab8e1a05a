"""One deadline for each store call: a call to a server that hangs times out in every phase."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from semel import Engine, Policy
from semel.core.model import Answer, Settled
from semel.core.outcomes import Succeeded
from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.deadline import STATEMENTS, Deadline
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.stores.redis.url import redis_backend
from tests.engine.shells import MADE, Mode, Shell, command
from tests.servers import redis as redis_servers
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres, schema
from tests.servers.relay import MARIADB, POSTGRES, REDIS, Relay
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

PATIENCE_SECONDS: Final = 0.6
LIMIT_SECONDS: Final = (
    1.1  # the patience, a fifth of it for the answer, and what a busy machine adds; less than twice it
)
ATOMIC = Policy(effects="atomic")
COMMITS = {"psycopg", "psycopg-async", "asyncpg", "pymysql", "asyncmy"}
MODES: dict[str, Mode] = {
    "psycopg": "sync",
    "psycopg-async": "async",
    "asyncpg": "async",
    "pymysql": "sync",
    "asyncmy": "async",
    "redis": "sync",
    "redis-async": "async",
}


class Behind:
    """A store behind a relay, and engines on it that have one connection."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.shells: list[Shell] = []
        self._prefix = redis_servers.prefix()
        if library in ("pymysql", "asyncmy"):
            self._server = mariadb()
            with closing(Engine(mariadb_subject(self._server, None).backend)) as engine:
                engine.migrate()
            self.relay = Relay(self._server.port, MARIADB)
        elif library.startswith("redis"):
            self.relay = Relay(redis_servers.valkey(), REDIS)
            with closing(Engine(self._backend(patience=5.0))) as engine:
                engine.migrate()
        else:
            empty_schema(postgres(), schema())
            self.relay = Relay(urlsplit(postgres()).port or 0, POSTGRES)
            with closing(Engine(self._backend(patience=5.0))) as engine:
                engine.migrate()

    def _backend(self, patience: float = PATIENCE_SECONDS) -> Backend:
        terms: dict[str, Any] = {"connections_max": 1, "patience_seconds": patience}
        if self.library in ("pymysql", "asyncmy"):
            return mariadb_backend(replace(self._server, port=self.relay.port, **terms))
        if self.library.startswith("redis"):
            return redis_backend((("127.0.0.1", self.relay.port),), prefix=self._prefix, accepts_loss=True, **terms)
        return postgres_backend(self.relay.conninfo(), schema=schema(), asyncpg=self.library == "asyncpg", **terms)

    def shell(self, *, warm: str | None = "external") -> Shell:
        """An engine. ``warm``: it has run a command with these effects, and so has its connection."""
        made = Shell(MODES[self.library], self._backend(), confirm_seconds=0.1)
        self.shells.append(made)
        if warm is not None:
            made.run(command(f"warm {len(self.shells)}", policy=Policy(effects=warm)), answer)  # type: ignore[arg-type]
        return made

    def close(self) -> None:
        self.relay.hanging = False
        self.relay.cut()
        for shell in self.shells:
            shell.close()
        self.relay.close()


def answer(permit: object) -> Answer:
    return MADE


def never(permit: object) -> Answer:
    raise AssertionError("the handler ran")


@pytest.fixture(params=list(MODES))
def behind(request: pytest.FixtureRequest) -> Iterator[Behind]:
    made = Behind(request.param)
    yield made
    made.close()


def effects_of(behind: Behind) -> list[str]:
    return ["external", "atomic"] if behind.library in COMMITS else ["external"]


def fails_in_time(act: Callable[[], object], kind: type[Exception] = StoreError, *, calls: int = 1) -> str:
    """The error of an act that makes so many store calls, which is of this kind and comes in time."""
    begun = time.monotonic()
    with pytest.raises(kind) as failed:
        act()
    assert time.monotonic() - begun < calls * LIMIT_SECONDS
    return str(failed.value)


def test_a_statement_that_hangs_times_out(behind: Behind) -> None:
    for effects in effects_of(behind):
        shell = behind.shell(warm=effects)
        what = command(f"hangs {effects}", policy=Policy(effects=effects))  # type: ignore[arg-type]
        behind.relay.hanging = True
        error = StoreTimeout if effects == "external" else StoreError  # where BEGIN hangs, no claim was sent
        fails_in_time(lambda: shell.run(what, never), error)  # noqa: B023 - called at once
        behind.relay.hanging = False
        behind.relay.cut()
        assert shell.run(what, answer, wait_seconds=5).answer == MADE


def test_a_connection_that_hangs_while_opening_times_out(behind: Behind) -> None:
    behind.relay.hanging = True
    shell = behind.shell(warm=None)
    fails_in_time(lambda: shell.run(command(), never), StoreUnavailable)
    behind.relay.hanging = False
    behind.relay.cut()
    assert shell.run(command(), answer).answer == MADE


def test_a_reconnect_that_hangs_ends_with_the_call_that_needs_it(behind: Behind) -> None:
    for effects in effects_of(behind):
        shell = behind.shell(warm=effects)
        what = command(f"reconnects {effects}", policy=Policy(effects=effects))  # type: ignore[arg-type]
        behind.relay.hanging = True
        behind.relay.cut()
        fails_in_time(lambda: shell.run(what, never))  # noqa: B023 - called at once
        behind.relay.hanging = False
        behind.relay.cut()
        assert shell.run(what, answer, wait_seconds=5).answer == MADE


def test_calls_that_wait_for_the_only_connection_end_with_the_one_that_has_it(behind: Behind) -> None:
    """A batch that is out, and the pool's only connection: what waits for either has no patience of its own behind."""
    shell = behind.shell()
    behind.relay.hanging = True
    if shell.runner is None:
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(fails_in_time, partial(shell.run, command(f"k{n}"), never)) for n in range(2)]:
                done.result()
        return

    async def one(call: Callable[[], Any]) -> None:
        begun = time.monotonic()
        with pytest.raises(StoreError):
            await call()
        assert time.monotonic() - begun < LIMIT_SECONDS

    async def story() -> None:
        first = asyncio.ensure_future(one(lambda: shell.engine.run(command("k0"), never)))
        for _ in range(20):  # its batch is out
            await asyncio.sleep(0)
        await asyncio.gather(
            first,
            one(lambda: shell.engine.run(command("k1"), never)),  # the coalescer's next batch
            one(lambda: shell.engine.perform("identity", shell.engine.store.identity)),  # waits for the connection
        )

    shell.runner.run(story())


@pytest.mark.parametrize("library", sorted(COMMITS))
def test_a_commit_that_hangs_is_not_known_and_safe_to_retry(library: str) -> None:
    behind = Behind(library)
    try:
        shell = behind.shell(warm="atomic")
        permit = shell.permit(command(policy=ATOMIC))
        behind.relay.hanging = True
        fails_in_time(lambda: shell.settle(permit, Succeeded(MADE)), StoreTimeout, calls=2)  # the record is read back
        behind.relay.hanging = False
        behind.relay.cut()
        assert not shell.run(command(policy=ATOMIC), answer, wait_seconds=5).replayed
        permit = shell.permit(command("lost", policy=ATOMIC))
        behind.relay.lose("both", "COMMIT")
        begun = time.monotonic()
        assert isinstance(shell.settle(permit, Succeeded(MADE)), Settled)
        assert time.monotonic() - begun < LIMIT_SECONDS
        assert shell.run(command("lost", policy=ATOMIC), never).replayed
    finally:
        behind.close()


@pytest.mark.parametrize("library", sorted(COMMITS))
def test_a_rollback_that_hangs_ends_in_time(library: str) -> None:
    behind = Behind(library)

    def fail(permit: object) -> Answer:
        behind.relay.hanging = True
        raise ZeroDivisionError

    try:
        shell = behind.shell(warm="atomic")
        fails_in_time(lambda: shell.run(command(policy=ATOMIC), fail), Exception, calls=2)  # it is looked for outside
    finally:
        behind.close()


def test_a_cluster_that_hangs_on_its_map_times_out() -> None:
    for mode in ("sync", "async"):
        relay = Relay(redis_servers.cluster(), REDIS)
        backend = redis_backend(
            (("127.0.0.1", relay.port),),
            prefix=redis_servers.prefix(),
            cluster=True,
            accepts_loss=True,
            patience_seconds=PATIENCE_SECONDS,
        )
        shell = Shell(mode, backend)
        relay.hanging = True
        fails_in_time(lambda: shell.run(command(), never), StoreUnavailable)  # noqa: B023 - called at once
        shell.close()
        relay.close()


def test_the_remaining_time_shrinks_and_an_answer_gets_a_little_more() -> None:
    fresh, late, over = Deadline(10.0), Deadline(10.0, waited=9.0), Deadline(10.0, waited=20.0)
    assert 9.9 < fresh.before_sending() <= 10.0 < fresh.for_answer() <= 11.0
    assert 0.9 < late.before_sending() <= 1.0 < late.for_answer() <= 2.0
    assert 0 < over.before_sending() < 0.01
    assert 0 < over.for_answer() < 0.01
    assert fresh.share(1) is fresh
    assert fresh.share(4).for_answer() <= 3.0


def test_a_walk_through_many_pages_has_a_timeout_for_each_page() -> None:
    walk = Deadline(10.0, waited=9.0)
    for _ in range(STATEMENTS - 1):
        walk.note_answer()
    assert walk.before_sending() <= 1.0
    walk.note_answer()
    assert 9.9 < walk.before_sending() <= 10.0
