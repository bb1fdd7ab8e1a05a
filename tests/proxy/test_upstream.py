"""What passes through the proxy without protection: it ends where the service stops reading, and with the proxy."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from semel.proxy.configuration import Origin
from semel.proxy.upstream import Upstream

SCOPE = {"type": "http", "method": "PUT", "path": "/file", "headers": [(b"transfer-encoding", b"chunked")]}


async def passed(
    receive: Callable[[], Awaitable[dict[str, Any]]], idle_seconds: float, then: Callable[[Upstream], Awaitable[None]]
) -> tuple[int, str]:
    """Status and code of a request to a service that takes connections, and neither reads nor answers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        upstream = Upstream(Origin("http", "127.0.0.1", silent.getsockname()[1]), {}, idle_seconds=idle_seconds)
        async with asyncio.timeout(60):
            await asyncio.gather(upstream(SCOPE, receive, send), then(upstream))
    assert not upstream.passing
    return sent[0]["status"], json.loads(sent[1]["body"])["code"]


def test_an_upload_ends_where_the_service_stops_reading() -> None:
    async def endless() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    async def nothing(_: Upstream) -> None:
        pass

    assert asyncio.run(passed(endless, 0.3, nothing)) == (504, "IDEMPOTENCY_UPSTREAM_TIMEOUT")


def test_what_is_no_command_is_cut_when_the_proxy_ends() -> None:
    begun = asyncio.Event()

    async def receive() -> dict[str, Any]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def end(upstream: Upstream) -> None:
        await begun.wait()
        for task in upstream.passing:
            task.cancel()

    assert asyncio.run(passed(receive, 300, end)) == (502, "IDEMPOTENCY_UPSTREAM_BROKE_OFF")
