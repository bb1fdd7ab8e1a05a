"""What the tests of sinks have in common: an event, a sink that is closed, and a story with an end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from semel.outbox.event import Event
from semel.outbox.run import own_event
from semel.outbox.sinks.base import Refused, Reply, Sink
from semel.outbox.sinks.urls import connect_sink

SECRET = b"0123456789abcdef0123456789abcdef"
WRITTEN = f"whsec_{base64.b64encode(SECRET).decode()}"


def event(topic: str, payload: Any = b"\x00\xffbytes", **options: Any) -> Event:
    return own_event(None, topic, payload, None, ("order", options.pop("id", "7é")), options.pop("headers", None), "")


def run_story(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(run())


@asynccontextmanager
async def sink_of(url: str) -> AsyncIterator[Sink]:
    sink = connect_sink(url)
    try:
        yield sink
    finally:
        await sink.close()


def assert_refused(reply: Reply, says: str, *, for_good: bool = False) -> None:
    assert isinstance(reply, Refused), reply
    assert says in reply.reason
    assert reply.for_good == for_good
