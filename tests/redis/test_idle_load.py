"""What an idle fleet asks of a Redis server: its reapers take turns, and a lapse is still visible in time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis import Redis

from semel import AsyncEngine, Policy, State
from semel.core.model import Record
from semel.testing.clock import SettableClock
from semel.workers.reaper import Reaper
from tests.engine.shells import command
from tests.redis.conftest import backend
from tests.servers import redis as servers

FLEET = 20
SECOND_US = 1_000_000


@dataclass
class Fleet:
    """Processes on one store, whose reapers wake by a clock that stands still while they look."""

    port: int
    cluster: bool = False
    clock: SettableClock = field(default_factory=SettableClock)
    prefix: str = field(default_factory=servers.prefix)

    def __post_init__(self) -> None:
        self._wakes: list[tuple[int, int, Reaper]] = []
        self.engines: list[AsyncEngine] = []

    async def begin(self, processes: int, apart_us: int = 50_000) -> None:
        """Start so many more processes."""
        for number in range(processes):
            made = backend(self.port, prefix=self.prefix, clock=self.clock, cluster=self.cluster, accepts_loss=True)
            engine = AsyncEngine(made)
            await engine.migrate()
            self.engines.append(engine)
            wakes = self.clock() + number * apart_us
            reaper = Reaper(engine)
            reaper._purge_at = float("inf")  # the purge has its own hour
            heapq.heappush(self._wakes, (wakes, len(self.engines), reaper))

    def kill(self, *numbers: int) -> None:
        """End these processes without a word."""
        self._wakes = [each for each in self._wakes if each[1] not in numbers]
        heapq.heapify(self._wakes)

    async def run(self, seconds: float, until: Callable[[], Any] | None = None) -> float:
        """Let the time go by; how many seconds it were when ``until`` held."""
        began = self.clock()
        ends = began + int(seconds * SECOND_US)
        while self._wakes and self._wakes[0][0] <= ends:
            wakes, number, reaper = heapq.heappop(self._wakes)
            self.clock.set(max(wakes, self.clock()))
            await reaper._look()
            again = self.clock() + max(1, int(reaper._next_rest() * SECOND_US))
            heapq.heappush(self._wakes, (again, number, reaper))
            if until is not None and await until():
                return (self.clock() - began) / SECOND_US
        self.clock.set(ends)
        return seconds

    async def record(self, operation_id: bytes) -> Record:
        store = self.engines[0].store
        [found] = await self.engines[0].perform("read", lambda: store.read_operations((operation_id,)))
        assert found is not None
        return found

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()


def commands_of(port: int) -> int:
    """How many commands clients have sent to a server: what scripts call inside does not count as EVALSHA."""
    with Redis(port=port) as plain:
        stats: dict[str, Any] = plain.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "wait", "info", "exists"))


@pytest.fixture
def fleet(own: int) -> Fleet:
    return Fleet(own)


def test_an_idle_fleet_of_20_sends_one_command_a_second(fleet: Fleet) -> None:
    async def scenario() -> None:
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)  # each has taken its first turns
        before = commands_of(fleet.port)
        await fleet.run(120)
        assert 100 <= commands_of(fleet.port) - before <= 121
        await fleet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("killed", [(), (1,), (3, 4), tuple(range(2, 21))], ids=["none", "one", "two", "all-but-one"])
@pytest.mark.parametrize("lease_seconds", [1, 5, 30])
def test_a_lapse_is_unknown_within_its_lease_and_one_second(
    lease_seconds: int, killed: tuple[int, ...], fleet: Fleet
) -> None:
    """Also where processes have died that had a turn, as the holder itself has."""

    async def scenario() -> None:
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)
        fleet.kill(*killed)
        if len(killed) > 2:
            await fleet.run(2.1 * FLEET)  # what is left has had its turn
        policy = Policy(effects="external", lease_seconds=lease_seconds)
        permit = await fleet.engines[-1].claim(command("k", policy=policy))
        operation_id = permit.grant.operation_id  # type: ignore[union-attr]
        fleet.engines[-1].core.live.clear()  # its process dies: nothing renews it

        async def is_unknown() -> bool:
            return (await fleet.record(operation_id)).state == State.UNKNOWN

        took = await fleet.run(lease_seconds + 5, is_unknown)
        assert took <= lease_seconds + 1.0
        await fleet.close()

    asyncio.run(scenario())


def test_a_fleet_that_is_replaced_at_once_goes_on_looking(fleet: Fleet) -> None:
    """The turns of processes that are gone are not waited for."""

    async def scenario() -> None:
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)
        fleet.kill(*range(1, FLEET + 1))
        await fleet.run(3)
        await fleet.begin(FLEET)
        before = commands_of(fleet.port)
        for _ in range(10):
            await fleet.run(1.0)
            now = commands_of(fleet.port)
            assert now > before
            before = now
        await fleet.close()

    asyncio.run(scenario())


def test_a_cluster_s_fleet_takes_turns_too() -> None:
    """No script sees all slots, so that each turn asks each tag; a lapse is met all the same."""

    async def scenario() -> None:
        fleet = Fleet(servers.cluster(), cluster=True)
        await fleet.begin(3)
        await fleet.run(6)
        permit = await fleet.engines[-1].claim(command("k", policy=Policy(effects="external", lease_seconds=5)))
        operation_id = permit.grant.operation_id  # type: ignore[union-attr]
        fleet.engines[-1].core.live.clear()

        async def is_unknown() -> bool:
            return (await fleet.record(operation_id)).state == State.UNKNOWN

        assert await fleet.run(10, is_unknown) <= 6.0
        await fleet.close()

    asyncio.run(scenario())
