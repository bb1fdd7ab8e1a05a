"""A call that is cancelled when its time is over, as ``asyncio.timeout`` does it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from semel.stores.deadline import run_within

LONG_SECONDS = 30.0
Story = Callable[[], Awaitable[object]]


async def hang() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("no")


def test_results_and_errors_within_the_timeout_pass_through() -> None:
    async def story() -> int:
        async def seven() -> int:
            return 7

        with pytest.raises(ValueError, match="no"):
            await run_within(fail(), LONG_SECONDS)
        return await run_within(seven(), LONG_SECONDS)

    assert asyncio.run(story()) == 7


def test_a_timeout_leaves_the_task_uncancelled() -> None:
    async def story() -> int:
        with pytest.raises(TimeoutError) as late:
            await run_within(hang(), 0)
        assert isinstance(late.value.__cause__, asyncio.CancelledError)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(story()) == 0


def test_an_outside_cancellation_is_not_turned_into_a_timeout() -> None:
    async def story() -> bool:
        task = asyncio.ensure_future(run_within(hang(), LONG_SECONDS))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert asyncio.run(story())


def test_a_timeout_and_a_cancellation_together_are_a_cancellation() -> None:
    async def story() -> bool:
        async def meets_both() -> None:
            try:
                await hang()
            except asyncio.CancelledError:
                task.cancel()  # while its end by time is on the way
                raise

        task = asyncio.ensure_future(run_within(meets_both(), 0))
        await asyncio.wait((task,))
        return task.cancelled()

    assert asyncio.run(story())


def test_a_call_that_swallows_its_end_is_not_cancelled_again() -> None:
    async def story() -> tuple[str, int]:
        async def goes_on() -> str:
            with pytest.raises(asyncio.CancelledError):
                await hang()
            return "done"

        done = await run_within(goes_on(), 0)
        task = asyncio.current_task()
        assert task is not None
        return done, task.cancelling()

    assert asyncio.run(story()) == ("done", 0)


@pytest.mark.parametrize("call", [fail, hang])
def test_no_error_leaves_a_cycle(call: Story) -> None:
    async def story() -> int:
        gc.collect()
        task = asyncio.ensure_future(run_within(call(), 0 if call is hang else LONG_SECONDS))
        await asyncio.wait((task,))
        assert task.exception() is not None
        del task
        return gc.collect()

    asyncio.run(story())  # what asyncio itself imports and keeps
    gc.disable()
    try:
        assert asyncio.run(story()) == 0
    finally:
        gc.enable()
