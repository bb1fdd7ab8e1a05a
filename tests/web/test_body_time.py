"""How long a body may take over ASGI: what is there is not timed, and what is waited for is awaited as ever."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from semel.http.body_time import BodyClock


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


async def _task_of(receive: Callable[[], Awaitable[Any]], clock: BodyClock) -> asyncio.Task[tuple[Any, float]]:
    """A task that has begun to wait for the piece."""
    task = asyncio.create_task(clock.next_of(receive))
    await asyncio.sleep(0)
    return task


@on_a_loop
async def test_an_available_piece_starts_no_timeout() -> None:
    async def receive() -> str:
        return "piece"

    clock = BodyClock(0.0)
    assert await clock.next_of(receive) == ("piece", 0.0)
    assert await clock.next_of(receive, 12.0) == ("piece", 12.0)


@on_a_loop
async def test_a_body_piece_may_await_several_events() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def receive() -> str:
        await first.wait()
        await asyncio.sleep(0)
        await second.wait()
        return "piece"

    task = await _task_of(receive, BodyClock(60.0))
    first.set()
    second.set()
    message, until = await task
    assert (message, until > asyncio.get_running_loop().time()) == ("piece", True)


@on_a_loop
async def test_an_exception_of_receive_reaches_the_server() -> None:
    failing: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def receive() -> str:
        try:
            return await failing
        except ConnectionError:
            return "noticed"

    task = await _task_of(receive, BodyClock(60.0))
    failing.set_exception(ConnectionError())
    assert (await task)[0] == "noticed"


@on_a_loop
async def test_a_cancellation_reaches_the_server() -> None:
    ended: list[str] = []

    async def receive() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("let go")
        raise AssertionError("nobody sets the event")

    task = await _task_of(receive, BodyClock(60.0))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["let go"]


@pytest.mark.parametrize("swallows", [True, False])
@on_a_loop
async def test_a_piece_that_comes_too_late_is_a_timeout(swallows: bool) -> None:
    async def receive() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return "piece"

    with pytest.raises(TimeoutError):
        await BodyClock(0.0).next_of(receive)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@on_a_loop
async def test_an_abandoned_wait_is_closed() -> None:
    ended: list[str] = []

    async def receive() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("closed")
        return "piece"

    waiting = BodyClock(60.0).next_of(receive)
    waiting.send(None)
    waiting.close()
    assert ended == ["closed"]
