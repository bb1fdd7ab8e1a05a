"""One bad request of a batch is its caller's alone: the others are served with any driver."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from semel.core.flow import Flow, MakeFlow, perform
from semel.errors import PolicyError, StatementRefused, StoreTimeout
from semel.stores.batching import Coalescer
from semel.stores.urls import connect_backend
from tests.engine.shells import Shell, command


@pytest.mark.parametrize("refusal", [StatementRefused("bad"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "bad")])
def test_a_request_that_cannot_be_written_down_fails_alone(refusal: Exception) -> None:
    sent: list[tuple[int, ...]] = []

    def verb(requests: Sequence[Any]) -> Flow[list[Any]]:
        sent.append(tuple(requests))
        if 3 in requests:
            raise refusal
        yield from ()
        return [request * 10 for request in requests]

    replies = asyncio.run(run_verb(verb))
    assert replies == [10, 20, refusal, 40, 50]
    assert sent == [(1, 2, 3, 4, 5), (1,), (2,), (3,), (4,), (5,)]


def test_a_lost_batch_fails_for_all_and_is_sent_once() -> None:
    sent: list[tuple[int, ...]] = []
    lost = StoreTimeout("lost")

    def verb(requests: Sequence[Any]) -> Flow[list[Any]]:
        sent.append(tuple(requests))
        yield from ()
        raise lost

    assert asyncio.run(run_verb(verb)) == [lost] * 5
    assert sent == [(1, 2, 3, 4, 5)]


def test_a_missing_reply_leaves_no_caller_waiting() -> None:
    """It is not known whose each reply is; the next batch is served."""

    def verb(requests: Sequence[Any]) -> Flow[list[Any]]:
        yield from ()
        return [request * 10 for request in requests[1:] or requests]

    async def gather_replies() -> tuple[list[Any], Any]:
        async def run(make: MakeFlow[list[Any]], waited: float) -> list[Any]:
            return perform(make(), lambda needed: None)

        coalescer = Coalescer(verb, run, patience_seconds=5.0, keeps=True)
        asked = [coalescer.ask(number) for number in (1, 2, 3)]
        return await asyncio.gather(*asked, return_exceptions=True), await coalescer.ask(4)

    replies, last = asyncio.run(gather_replies())
    assert [str(reply) for reply in replies] == ["2 replies to 3 requests"] * 3
    assert last == 40


async def run_verb(verb: Any) -> list[Any]:
    async def run(make: MakeFlow[list[Any]], waited: float) -> list[Any]:
        flow = make()
        try:
            next(flow)
        except StopIteration as stop:
            replies: list[Any] = stop.value
            return replies
        raise AssertionError("this verb asks nothing")

    coalescer = Coalescer(verb, run, patience_seconds=5.0, keeps=True)
    return await asyncio.gather(*(coalescer.ask(number) for number in range(1, 6)), return_exceptions=True)


@pytest.mark.parametrize(("keeps", "sent_with"), [(False, (3, 4)), (True, (2, 3, 4))])
def test_a_caller_that_is_cancelled_takes_no_reply_from_another(keeps: bool, sent_with: tuple[int, ...]) -> None:
    """One while it waits for its batch, and one while the batch is out."""
    sent: list[tuple[int, ...]] = []

    def verb(requests: Sequence[Any]) -> Flow[list[Any]]:
        sent.append(tuple(requests))
        yield from ()
        return [request * 10 for request in requests]

    async def gather_replies() -> tuple[Any, ...]:
        asked: list[asyncio.Future[Any]] = []

        async def run(make: MakeFlow[list[Any]], waited: float) -> list[Any]:
            if not sent:  # of the first alone: the others come meanwhile
                asked.extend(coalescer.ask(number) for number in (2, 3, 4))
                asked[1].cancel()
            else:
                asked[2].cancel()
            return perform(make(), lambda needed: None)

        coalescer = Coalescer(verb, run, patience_seconds=5.0, keeps=keeps)
        asked.append(coalescer.ask(1))
        await asyncio.sleep(0)
        return tuple(await asyncio.gather(*asked, return_exceptions=True))

    first, second, third, fourth = asyncio.run(gather_replies())
    assert sent == [(1,), sent_with]
    assert (first, fourth) == (10, 40)
    assert {type(second), type(third)} == {asyncio.CancelledError}


def _begin_at_once(loop: asyncio.AbstractEventLoop, work: Any, **_: Any) -> Any:
    """A task factory as ``asyncio.eager_task_factory``, for Python 3.11: a task's first step runs where it is made."""
    try:
        awaited = work.send(None)
    except StopIteration as stop:
        ended = loop.create_future()
        ended.set_result(stop.value)
        return ended
    return asyncio.Task(_go_on(work, awaited), loop=loop)


async def _go_on(work: Any, awaited: Any) -> Any:
    return await _Rest(work, awaited)


class _Rest:
    def __init__(self, work: Any, awaited: Any) -> None:
        self._work, self._awaited = work, awaited

    def __await__(self) -> Any:
        awaited = self._awaited
        try:
            while True:
                awaited = self._work.send((yield awaited))
        except StopIteration as stop:
            return stop.value


@pytest.mark.parametrize("suspends", [True, False])
def test_a_loop_whose_tasks_are_eager_is_served(suspends: bool) -> None:
    """Each request is sent, also where its batch has ended before its task is known."""

    def verb(requests: Sequence[Any]) -> Flow[list[Any]]:
        yield from ()
        return [request * 10 for request in requests]

    async def run(make: MakeFlow[list[Any]], waited: float) -> list[Any]:
        if suspends:
            await asyncio.sleep(0)
        return perform(make(), lambda needed: None)

    async def gather_replies() -> list[Any]:
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", _begin_at_once))
        coalescer = Coalescer(verb, run, patience_seconds=5.0, keeps=True)
        asked = [coalescer.ask(number) for number in (1, 2, 3)]
        for _ in range(10):
            await asyncio.sleep(0)
        asked.append(coalescer.ask(4))
        for _ in range(10):
            await asyncio.sleep(0)
        return [each.done() and each.result() for each in asked]

    assert asyncio.run(gather_replies()) == [10, 20, 30, 40]


@pytest.mark.parametrize("names", [("order", "\ud800"), ("\udfff", "7"), ("order", 7)])
def test_a_resource_that_cannot_be_stored_is_refused_by_name(names: tuple[str, Any]) -> None:
    shell = Shell("sync", connect_backend("memory://"))
    shell.open()
    permit = shell.permit(command())
    with pytest.raises(PolicyError, match="without lone surrogates"):
        permit.result(*names)
    permit.result("order", "\U0001f600")
    assert permit.resource_id == "\U0001f600"
    shell.settle(permit)
    shell.close()
