"""A real RabbitMQ: a consumer whose connection ends between the commit and the acknowledgement."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aio_pika

from semel import AsyncEngine, AsyncInbox
from semel.inbox.brokers.rabbitmq import RabbitConsumer
from semel.inbox.run import Message
from tests.bulk.fellows import Home, sqlite_home
from tests.engine.shells import until
from tests.servers.rabbitmq import MARK, rabbitmq

MESSAGES = 6
pytestmark = MARK


def test_an_unacknowledged_message_is_redelivered_and_does_nothing(tmp_path: Path) -> None:
    home = sqlite_home(str(tmp_path / "inbox.db"))
    asyncio.run(asyncio.wait_for(_story(home, rabbitmq(), f"semel-inbox-{os.getpid()}"), 60))
    assert home.effects() == list(range(MESSAGES))


async def _story(home: Home, url: str, name: str) -> None:
    async with AsyncEngine(home.backend("sqlite-async")) as engine, await aio_pika.connect(url) as connection:
        inbox = AsyncInbox(engine, consumer="billing")
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        for n in range(MESSAGES):
            message = aio_pika.Message(b"{}", message_id=str(n))
            await channel.default_exchange.publish(message, routing_key=name)
        met: list[tuple[str, bool]] = []

        async def writes(message: Message, delivery: Any) -> None:
            message.connection.execute("INSERT INTO effect VALUES (?)", (int(message.id),))

        taken = RabbitConsumer(inbox, writes)

        async def first_life(delivery: Any) -> None:
            if delivery.message_id == "2":  # its effect is committed; the broker hears of an ended connection
                delivery = SimpleNamespace(message_id="2", headers=delivery.headers, ack=ends)
            await taken(delivery)

        async def second_life(delivery: Any) -> None:
            await taken(delivery)
            met.append((delivery.message_id, delivery.redelivered))  # behind its effect: the story ends with the last

        over = asyncio.Event()

        async def ends() -> None:
            over.set()

        lost = await aio_pika.connect(url)
        their = await lost.channel()
        await their.set_qos(prefetch_count=1)
        await (await their.get_queue(name)).consume(first_life)
        await over.wait()
        await lost.close()
        await channel.set_qos(prefetch_count=1)
        await queue.consume(second_life)
        await until(lambda: len(met) == MESSAGES - 2)
        assert met[0] == ("2", True)
        await queue.delete(if_unused=False, if_empty=False)
