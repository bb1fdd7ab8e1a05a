"""What an idle fleet asks of a Redis server: its reapers take turns, and a lapse is still visible in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from semel import Policy, State
from tests.engine.shells import command
from tests.redis.conftest import backend
from tests.servers import redis as servers
from tests.worker.fleets import Fleet

FLEET = 20


def fleet_of(port: int, *, cluster: bool = False) -> Fleet:
    prefix = servers.prefix()
    return Fleet(lambda clock: backend(port, prefix=prefix, clock=clock, cluster=cluster, accepts_loss=True))


def commands_of(port: int) -> int:
    """How many commands clients have sent to a server: what scripts call inside does not count as EVALSHA."""
    with Redis(port=port) as plain:
        stats: dict[str, Any] = plain.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "wait", "info", "exists"))


@pytest.fixture
def fleet(own: int) -> Fleet:
    return fleet_of(own)


def test_an_idle_fleet_of_20_sends_less_than_one_command_a_second(own: int, fleet: Fleet) -> None:
    async def scenario() -> None:
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)  # each has taken its first turns
        before = commands_of(own)
        await fleet.run(120)
        assert 100 <= commands_of(own) - before <= 110
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


def test_a_fleet_replaced_at_once_continues_to_check(own: int, fleet: Fleet) -> None:
    """The turns of processes that are gone are not waited for."""

    async def scenario() -> None:
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)
        fleet.kill(*range(1, FLEET + 1))
        await fleet.run(3)
        await fleet.begin(FLEET)
        before = commands_of(own)
        for _ in range(10):
            await fleet.run(1.0)
            now = commands_of(own)
            assert now > before
            before = now
        await fleet.close()

    asyncio.run(scenario())


def test_a_cluster_s_idle_fleet_sends_less_than_one_command_a_second_to_each_primary() -> None:
    async def scenario() -> None:
        fleet = fleet_of(servers.cluster(), cluster=True)
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)
        before = fleet.statements
        await fleet.run(60)
        assert 150 <= fleet.statements - before <= 3 * 55
        permit = await fleet.engines[-1].claim(command("k", policy=Policy(effects="external", lease_seconds=5)))
        operation_id = permit.grant.operation_id  # type: ignore[union-attr]
        fleet.engines[-1].core.live.clear()

        async def is_unknown() -> bool:
            return (await fleet.record(operation_id)).state == State.UNKNOWN

        assert await fleet.run(10, is_unknown) <= 6.0
        # What is known of the nodes is checked at each turn: all sets of another node are found where they are.
        for engine in fleet.engines:
            store: Any = engine.store
            store._due_by_node = [sets[::-1] for sets in store._due_by_node[::-1]]
        for key in ("k1", "k2", "k3"):
            permit = await fleet.engines[-1].claim(command(key, policy=Policy(effects="external", lease_seconds=5)))
            operation_id = permit.grant.operation_id  # type: ignore[union-attr]
            fleet.engines[-1].core.live.clear()
            assert await fleet.run(10, is_unknown) <= 6.0
        await fleet.close()

    asyncio.run(scenario())
