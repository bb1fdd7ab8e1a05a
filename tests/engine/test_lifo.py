"""A waiter is woken for each connection that becomes free, even if other waiters leave."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from semel.errors import StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.pool import AsyncConnectionPool

LONG_SECONDS = 30.0


def lifo(most: int) -> AsyncConnectionPool[int]:
    numbers = count(1)

    async def open(deadline: Deadline) -> int:
        return next(numbers)

    return AsyncConnectionPool(open, most)


@pytest.mark.parametrize("freed", ["given", "gone"])
def test_a_waiter_cancelled_while_it_is_woken_passes_its_turn_on(freed: str) -> None:
    async def story() -> tuple[int, bool]:
        connections = lifo(1)
        taken, _ = await connections.take(Deadline(0))
        first, second = (asyncio.ensure_future(connections.take(Deadline(LONG_SECONDS))) for _ in range(2))
        await asyncio.sleep(0)
        if freed == "given":
            connections.give(taken)
        else:
            connections.forget()
        first.cancel()
        async with asyncio.timeout(LONG_SECONDS / 10):
            return await second

    assert asyncio.run(story()) == ((1, True) if freed == "given" else (2, False))


def test_a_waiter_that_times_out_leaves_the_queue() -> None:
    async def story() -> tuple[int, bool]:
        connections = lifo(1)
        taken, _ = await connections.take(Deadline(0))
        with pytest.raises(StoreUnavailable, match="all 1 connections"):
            await connections.take(Deadline(0.01))
        connections.give(taken)
        return await connections.take(Deadline(0))

    assert asyncio.run(story()) == (1, True)


def test_a_waiter_whose_time_is_over_as_a_connection_becomes_free_is_passed_over() -> None:
    async def story() -> tuple[int, bool]:
        connections = lifo(1)
        taken, _ = await connections.take(Deadline(0))
        first = asyncio.ensure_future(connections.take(Deadline(0)))
        second = asyncio.ensure_future(connections.take(Deadline(LONG_SECONDS)))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.001, connections.give, taken)  # behind the end of the first one's wait
        with pytest.raises(StoreUnavailable, match="all 1 connections"):
            await first
        async with asyncio.timeout(LONG_SECONDS / 10):
            return await second

    assert asyncio.run(story()) == (1, True)


def test_a_waiter_that_is_closed_leaves_the_queue() -> None:
    async def story() -> tuple[int, bool]:
        connections = lifo(1)
        taken, _ = await connections.take(Deadline(0))
        waiting = connections.take(Deadline(LONG_SECONDS))
        waiting.send(None)
        waiting.close()
        second = asyncio.ensure_future(connections.take(Deadline(LONG_SECONDS)))
        await asyncio.sleep(0)
        connections.give(taken)
        async with asyncio.timeout(LONG_SECONDS / 10):
            return await second

    assert asyncio.run(story()) == (1, True)
