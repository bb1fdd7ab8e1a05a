"""A consumer in its own process: `python -m tests.inbox.worker nats|redis|kafka|sqs URL STORE DIES_AT`.

It handles what is there and ends. At its DIES_AT-th acknowledgement (0: never) it kills itself, after the effect is
committed and before the broker hears of it. It prints each receipt.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from typing import Any

from semel import AsyncEngine, AsyncInbox
from semel.inbox.brokers.kafka import KafkaConsumer
from semel.inbox.brokers.nats import JetStreamConsumer
from semel.inbox.brokers.redis_streams import RedisStreamConsumer
from semel.inbox.run import Message
from semel.inbox.store import Receipt

DURABLE = "billing"
STREAM = "orders"


class Told(AsyncInbox):
    """Prints what became of each delivery."""

    async def handle(self, *given: Any, **named: Any) -> Receipt:
        receipt = await super().handle(*given, **named)
        print(receipt.value, flush=True)
        return receipt


def dying(acknowledge: Any, dies_at: int) -> Any:
    """The client's own acknowledgement, until it is this process's last act."""
    done = [0]

    async def acknowledge_or_die(*given: Any) -> Any:
        done[0] += 1
        if done[0] == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return await acknowledge(*given)

    return acknowledge_or_die


async def writes(message: Message, delivery: Any) -> None:
    made = message.connection.execute(f"INSERT INTO effect VALUES ({int(message.id)})")
    if inspect.isawaitable(made):  # on PostgreSQL
        await made


async def nats(url: str, inbox: AsyncInbox, dies_at: int) -> None:
    import nats
    from nats.aio.msg import Msg

    Msg.ack = dying(Msg.ack, dies_at)  # type: ignore[method-assign]
    client = await nats.connect(url)
    stream = client.jetstream()
    subscription = await stream.pull_subscribe_bind(DURABLE, stream=STREAM)
    consumer = JetStreamConsumer(inbox, writes)
    serving = asyncio.create_task(consumer.serve(subscription, batch=5, wait_seconds=0.1))
    while True:
        info = await subscription.consumer_info()
        if info.num_pending == 0 and info.num_ack_pending == 0:
            break
        await asyncio.wait({serving}, timeout=0.05)
    serving.cancel()
    await client.close()


async def redis(url: str, inbox: AsyncInbox, dies_at: int) -> None:
    from redis.asyncio import Redis

    client = Redis.from_url(url)
    client.xack = dying(client.xack, dies_at)  # type: ignore[method-assign]
    name = f"worker-{os.getpid()}"
    consumer = RedisStreamConsumer(inbox, writes, client, stream=STREAM, group=DURABLE, name=name, idle_seconds=0.3)
    while True:
        [group] = await client.xinfo_groups(STREAM)
        if group["pending"] == 0 and group["lag"] == 0:
            break
        await consumer.turn(batch=5, wait_seconds=0.1)
    await client.aclose()


async def kafka(servers: str, inbox: AsyncInbox, dies_at: int) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    client = AIOKafkaConsumer(
        STREAM,
        bootstrap_servers=servers,
        group_id=DURABLE,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=1000,  # after which its group believes a killed member dead
        heartbeat_interval_ms=100,
        retry_backoff_ms=10,
    )
    client.commit = dying(client.commit, dies_at)
    await client.start()
    serving = asyncio.create_task(KafkaConsumer(inbox, writes).serve(client))
    place = TopicPartition(STREAM, 0)
    last = (await client.end_offsets([place]))[place]
    while await client.committed(place) != last:
        await asyncio.wait({serving}, timeout=0.05)
    serving.cancel()
    await client.stop()


async def sqs(url: str, inbox: AsyncInbox, dies_at: int) -> None:
    import boto3

    from semel.inbox.brokers.sqs import SqsConsumer, deduplication_id

    client = boto3.client(
        "sqs", "eu-central-1", endpoint_url=url.partition("/1234")[0], aws_access_key_id="x", aws_secret_access_key="x"
    )
    if dies_at:
        client.delete_message_batch = lambda **_: os.kill(os.getpid(), signal.SIGKILL)
    consumer = SqsConsumer(inbox, writes, client, queue=url, visibility_seconds=1, id_of=deduplication_id)
    left = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    while any(
        value != "0" for value in client.get_queue_attributes(QueueUrl=url, AttributeNames=left)["Attributes"].values()
    ):
        await consumer.turn(batch=5, wait_seconds=1)


async def main(broker: str, url: str, store: str, dies_at: str) -> None:
    async with AsyncEngine.connect(store) as engine:
        await {"nats": nats, "redis": redis, "kafka": kafka, "sqs": sqs}[broker](
            url, Told(engine, consumer=DURABLE), int(dies_at)
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
