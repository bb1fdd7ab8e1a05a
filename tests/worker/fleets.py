"""Processes on one store whose workers wake by a clock that does not move while they look, and what they ask of it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from semel import Answer, AsyncEngine, Permit, Policy, State
from semel.core.flow import Flow, MakeFlow
from semel.core.model import Record
from semel.errors import StoreUnavailable
from semel.reconciliation.rules import StillUnknown
from semel.reconciliation.worker import Case, Reconciling, reconciler
from semel.resuming.worker import Completer
from semel.retention.worker import Reaper
from semel.stores.backend import Backend
from semel.stores.mariadb.requests import SeveralStatements
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.stores.redis.scripts import Calls
from semel.stores.sql.statements import Now, TakeTurn, Together
from semel.testing.clock import SettableClock
from semel.workers import turns
from semel.workers.loop import Loop
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, command
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres, schema
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

SECOND_US = 1_000_000
FLEET: Final = 20
OpenBackend = Callable[[SettableClock], Backend]
FLEET_STORES: Final = ("sqlite", "psycopg", "asyncpg", "asyncmy")


def empty_store(kind: str, folder: Path) -> OpenBackend:
    """An empty store of one of these kinds, and how a process opens it."""
    match kind:
        case "sqlite":
            return lambda clock: sqlite(folder / "semel.db", clock)
        case "asyncmy":
            server = mariadb()
            _ = mariadb_subject(server, None)
            return lambda clock: mariadb_backend(replace(server, clock=clock, connections_max=1))
        case library:
            empty_schema(postgres(), schema())
            options: dict[str, Any] = {"schema": schema(), "connections_max": 1, "asyncpg": library == "asyncpg"}
            return lambda clock: postgres_backend(postgres(), clock=clock, **options)


class CountingDriver:
    """Counts the statements that a driver sends; a transaction's begin and commit are two more."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.statements = 0
        self.is_away = False  # whether the store cannot be reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def run_async(self, make: MakeFlow[Any]) -> Any:
        self._check()
        return await self._driver.run_async(lambda: self._count_statements(make()))

    async def run_uncut(self, make: MakeFlow[Any], waited: float = 0.0) -> Any:
        self._check()
        return await self._driver.run_uncut(lambda: self._count_statements(make()), waited)

    def _check(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")

    def _count_statements(self, flow: Flow[Any]) -> Flow[Any]:
        try:
            needed = next(flow)
            while True:
                self.statements += _statements_of(needed)
                needed = flow.send((yield needed))
        except StopIteration as stop:
            return stop.value


def _statements_of(needed: Any) -> int:
    match needed:
        case Now() | TakeTurn():  # the host's clock, and a file that is no database
            return 0
        case Together():
            return 2
        case SeveralStatements():
            return len(needed.parts)
        case Calls():
            return len(needed.calls)
        case _:
            return 1


@dataclass
class Fleet:
    """Processes on one store.

    Parameters: ``open_backend`` one process's, whose store has this clock; ``make_worker`` what runs in it.
    """

    open_backend: Callable[[SettableClock], Backend]
    make_worker: Callable[[AsyncEngine], Loop] = Reaper
    clock: SettableClock = field(default_factory=SettableClock)

    def __post_init__(self) -> None:
        self._wakes: list[tuple[int, tuple[int, int], Loop]] = []  # when, of which process, and the worker
        self._pushed = itertools.count()
        self.engines: list[AsyncEngine] = []
        self.drivers: list[CountingDriver] = []

    async def begin(self, processes: int, apart_us: int = 50_000) -> None:
        """Start so many more processes."""
        for number in range(processes):
            made = self.open_backend(self.clock)
            self.drivers.append(CountingDriver(made.driver))
            engine = AsyncEngine(replace(made, driver=self.drivers[-1]))
            if not self.engines:
                await engine.migrate()
            self.engines.append(engine)
            wakes = self.clock() + number * apart_us
            self._push(wakes, len(self.engines), self.make_worker(engine))

    def join(self, make_worker: Callable[[AsyncEngine], Loop], apart_us: int = 50_000, *, first: int = 0) -> None:
        """Start one more worker in each process, or in those behind the first ones."""
        for number, engine in enumerate(self.engines[first:], start=first):
            self._push(self.clock() + number * apart_us, number + 1, make_worker(engine))

    def _push(self, wakes: int, number: int, worker: Loop) -> None:
        if isinstance(worker, Reaper):
            worker._purge_at = float("inf")  # the purge has its own hour
        heapq.heappush(self._wakes, (wakes, (number, next(self._pushed)), worker))

    def kill(self, *numbers: int) -> None:
        """Kill these processes."""
        self._wakes = [each for each in self._wakes if each[1][0] not in numbers]
        heapq.heapify(self._wakes)

    @property
    def next_to_look(self) -> int:
        """The number of the process that wakes next."""
        return self._wakes[0][1][0]

    @property
    def statements(self) -> int:
        """How many statements all processes have sent."""
        return sum(driver.statements for driver in self.drivers)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The store cannot be reached meanwhile."""
        for driver in self.drivers:
            driver.is_away = True
        yield
        for driver in self.drivers:
            driver.is_away = False

    async def run(self, seconds: float, until: Callable[[], Any] | None = None) -> float:
        """Let the time go by; how many seconds it were when ``until`` held."""
        with patch.object(turns, "monotonic", lambda: self.clock() / SECOND_US):
            return await self._run(seconds, until)

    async def _run(self, seconds: float, until: Callable[[], Any] | None) -> float:
        began = self.clock()
        ends = began + int(seconds * SECOND_US)
        while self._wakes and self._wakes[0][0] <= ends:
            wakes, number, worker = heapq.heappop(self._wakes)
            self.clock.set(max(wakes, self.clock()))
            rest = await worker._look_safely()
            again = self.clock() + max(1, int(max(rest, worker._next_rest()) * SECOND_US))
            heapq.heappush(self._wakes, (again, number, worker))
            if until is not None and await until():
                return (self.clock() - began) / SECOND_US
        self.clock.set(ends)
        return seconds

    async def record(self, operation_id: bytes) -> Record:
        """A record as the store has it. It is not counted."""
        before = self.drivers[0].statements
        store = self.engines[0].store
        [found] = await self.engines[0].perform("read", lambda: store.read_operations((operation_id,)))
        self.drivers[0].statements = before
        assert found is not None
        return found

    async def close(self) -> None:
        """Let what runs come to its end."""
        for _, _, worker in self._wakes:
            await worker._leave()
        for engine in self.engines:
            await engine.close()


def completer_of(engine: AsyncEngine) -> Loop:
    completer = Completer(engine)

    async def handler(permit: Permit, request: bytes) -> Answer:
        return MADE

    completer.register("pay", Policy(steps=True, resumable=True), handler)
    return completer


def reconciling_of(engine: AsyncEngine) -> Loop:
    @reconciler("pay", quiet_for=0)
    def ask(case: Case) -> StillUnknown:
        return StillUnknown("no word yet")

    return Reconciling(engine, [ask])


async def seconds_until_unknown(fleet: Fleet, lease_seconds: float, holder: int = 0) -> float:
    """How long a command reads PROCESSING whose holder dies at once."""
    engine = fleet.engines[holder - 1]
    policy = Policy(effects="external", lease_seconds=lease_seconds)
    permit = await engine.claim(command(f"k{lease_seconds}", policy=policy))
    operation_id = permit.grant.operation_id  # type: ignore[union-attr]
    engine.core.live.clear()  # nothing renews it

    async def is_unknown() -> bool:
        return (await fleet.record(operation_id)).state == State.UNKNOWN

    return await fleet.run(lease_seconds + 5, is_unknown)
