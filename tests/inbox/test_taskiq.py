"""Taskiq's own receiver: handled once by the task's id or a declared one, acknowledged after the commit. 1 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from taskiq import AckableMessage, AsyncBroker, BrokerMessage, Context, InMemoryBroker, TaskiqDepends
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.receiver import Receiver

from semel import AsyncEngine, AsyncInbox
from semel.errors import ConfigurationError, StoreUnavailable
from semel.inbox.brokers.taskiq import inbox_task
from semel.inbox.run import Message
from tests.bulk.fellows import Home, sqlite_home

CONTEXT: Any = TaskiqDepends()


class Redelivers(AsyncBroker):
    """A broker that keeps what is not acknowledged, and delivers it again when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.result_backend = InmemoryResultBackend()
        self.kept: dict[int, bytes] = {}
        self.loses_acks = 0

    async def kick(self, message: BrokerMessage) -> None:
        self.kept[len(self.kept)] = message.message

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        for number in list(self.kept):
            yield self.delivery(number)

    def delivery(self, number: int) -> AckableMessage:
        def ack() -> None:
            if self.loses_acks:
                self.loses_acks -= 1
                raise ConnectionError("the broker is away")
            del self.kept[number]

        return AckableMessage(data=self.kept[number], ack=ack)

    async def deliver(self) -> None:
        """Deliver all stored messages through Taskiq's own receiver."""
        receiver = Receiver(self, max_async_tasks=1)
        async for message in self.listen():
            await receiver.callback(message)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


def run(home: Home, story: Callable[[AsyncInbox], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), AsyncEngine(home.backend("sqlite-async")) as engine:
            await story(AsyncInbox(engine, consumer="billing", tries_max=3))

    asyncio.run(body())


def test_a_task_is_handled_once_by_its_id_and_keeps_its_first_result(home: Home) -> None:
    async def story(inbox: AsyncInbox) -> None:
        broker = InMemoryBroker(await_inplace=True)

        @inbox_task(broker, inbox)
        async def bill(message: Message, order: int, note: str = "", *, own: Context = CONTEXT) -> str:
            assert own.message.task_id == message.id
            message.connection.execute("INSERT INTO effect VALUES (?)", (order,))
            return f"{message.id} {note}"

        sent = await bill.kicker().with_task_id("order-7").kiq(7, note="first")
        assert (await sent.wait_result()).return_value == "order-7 first"
        again = await bill.kicker().with_task_id("order-7").kiq(7, note="again")
        assert (await again.wait_result()).return_value == "order-7 first"
        await broker.shutdown()

    run(home, story)
    assert home.effects() == [7]


def test_an_unacknowledged_message_is_redelivered_and_does_nothing(home: Home) -> None:
    async def story(inbox: AsyncInbox) -> None:
        broker = Redelivers()

        @inbox_task(broker, inbox, id_of=lambda order: f"order-{order}")
        async def bill(message: Message, order: int) -> None:
            message.connection.execute("INSERT INTO effect VALUES (?)", (order,))

        await bill.kiq(7)
        await bill.kiq(7)  # the publisher's own repetition, under another task id
        broker.loses_acks = 1
        await broker.deliver()
        assert len(broker.kept) == 1
        await broker.deliver()
        assert not broker.kept

    run(home, story)
    assert home.effects() == [7]


def test_a_failure_is_retried_until_it_is_parked_and_fails_the_task(home: Home) -> None:
    async def story(inbox: AsyncInbox) -> None:
        broker = Redelivers()
        errors: list[Exception] = [StoreUnavailable("away")] * 5 + [ValueError("once")]
        ran: list[int] = []

        @inbox_task(broker, inbox, retry_seconds=0)
        async def bill(message: Message, order: int) -> None:
            ran.append(order)
            message.connection.execute("INSERT INTO effect VALUES (?)", (order,))
            if order == 13:
                raise ValueError("no")
            if errors:
                raise errors.pop(0)

        bad, good = await bill.kiq(13), await bill.kiq(7)
        await broker.deliver()
        assert (await bad.get_result()).is_err
        assert not (await good.get_result()).is_err
        assert ran == [13] * 3 + [7] * 7
        assert [(each.message_id, each.reason) for each in await inbox.find_parked()] == [
            (bad.task_id, "ValueError: no")
        ]
        assert not broker.kept

    run(home, story)
    assert home.effects() == [7]


def test_a_cancelled_worker_acknowledges_nothing(home: Home) -> None:
    """Taskiq takes a cancelled task for one that has ended, and would acknowledge it."""

    async def story(inbox: AsyncInbox) -> None:
        broker, begun, hangs = Redelivers(), asyncio.Event(), [True]

        @inbox_task(broker, inbox)
        async def bill(message: Message, order: int) -> None:
            message.connection.execute("INSERT INTO effect VALUES (?)", (order,))
            begun.set()
            if hangs:
                await asyncio.Event().wait()

        await bill.kiq(7)
        worker = asyncio.create_task(broker.deliver())
        await begun.wait()
        worker.cancel()
        await asyncio.wait({worker})
        assert len(broker.kept) == 1
        hangs.clear()
        await broker.deliver()
        assert not broker.kept

    run(home, story)
    assert home.effects() == [7]


def test_a_message_without_an_id_is_parked_under_the_tasks_id(home: Home) -> None:
    async def story(inbox: AsyncInbox) -> None:
        broker = Redelivers()

        @inbox_task(broker, inbox, id_of=lambda order: order["id"], retry_seconds=0)
        async def bill(message: Message, order: dict[str, Any]) -> None:
            raise AssertionError

        sent = await bill.kiq({})
        await broker.deliver()
        assert [each.message_id for each in await inbox.find_parked()] == [sent.task_id]
        assert not broker.kept

    run(home, story)


def test_a_task_that_is_called_has_no_id_unless_one_is_declared(home: Home) -> None:
    async def story(inbox: AsyncInbox) -> None:
        broker = Redelivers()

        @inbox_task(broker, inbox)
        async def bill(message: Message, order: int) -> None:
            raise AssertionError

        @inbox_task(broker, inbox, id_of=str, task_name="named")
        async def handle_order(message: Message, order: int) -> int:
            return order

        with pytest.raises(ConfigurationError, match="called, not sent"):
            await bill(7)
        assert (await handle_order(7), await handle_order(7)) == (7, None)

    run(home, story)


@pytest.mark.parametrize("label", ["ack_type", "timeout", "retry_on_error", "max_retries"])
def test_a_label_that_would_end_a_message_before_its_inbox_is_refused(label: str, home: Home) -> None:
    inbox = AsyncInbox(AsyncEngine(home.backend("sqlite-async")), consumer="billing")
    with pytest.raises(ConfigurationError, match=label):
        inbox_task(InMemoryBroker(), inbox, **{label: 1})  # type: ignore[arg-type]


def test_a_plain_function_is_refused(home: Home) -> None:
    inbox = AsyncInbox(AsyncEngine(home.backend("sqlite-async")), consumer="billing")
    with pytest.raises(ConfigurationError, match="async def"):
        inbox_task(InMemoryBroker(), inbox)(lambda message: None)  # type: ignore[arg-type, return-value]
