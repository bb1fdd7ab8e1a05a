"""Work that is done to its end, however often its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from semel.stores.shield import whole


def cancelled_twice(fails: bool) -> tuple[list[str], asyncio.Task[object]]:
    said: list[str] = []

    async def story() -> asyncio.Task[object]:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def work() -> str:
            begun.set()
            await may_end.wait()
            said.append("done")
            if fails:
                raise ValueError("the work's own")
            return "result"

        async def caller() -> object:
            return await whole(work())

        task = asyncio.create_task(caller())
        await begun.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        await asyncio.wait((task,))
        return task

    return said, asyncio.run(story())


def test_the_result_and_the_cancellation_are_returned() -> None:
    said, task = cancelled_twice(fails=False)
    assert said == ["done"]
    told = task.result()
    assert isinstance(told, tuple)
    assert told[0] == "result"
    assert isinstance(told[1], asyncio.CancelledError)


def test_a_failure_of_the_work_keeps_the_cancellation() -> None:
    said, task = cancelled_twice(fails=True)
    assert said == ["done"]
    assert task.cancelled()


def test_work_without_a_cancellation_returns_its_result() -> None:
    async def work() -> int:
        return 7

    assert asyncio.run(whole(work())) == (7, None)


def test_an_exception_of_the_work_is_raised() -> None:
    async def work() -> int:
        raise ValueError("the work's own")

    with pytest.raises(ValueError, match="the work's own"):
        asyncio.run(whole(work()))
