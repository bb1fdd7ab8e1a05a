"""Clients on scripted servers, whose clocks do not move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from semel.client import AsyncClient, Client, Journal
from semel.client.plan import Outcome

Reply = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


@dataclass
class Server:
    """Replies from a script, the last one for ever; keeps what it received."""

    replies: Sequence[Reply]
    received: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        reply = self.replies[min(len(self.received), len(self.replies) - 1)]
        self.received.append(request)
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            return reply(request)
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("idempotency-key") for request in self.received]


class Colour:
    """Either client, driven alike."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.slept: list[float] = []
        self.journal = Journal(f"sqlite:///{folder / 'intents.db'}", payloads=True)

    def run(self, server: Server, use: Callable[[Any], Any], **options: Any) -> Any:
        """Call ``use(api)``, where ``api`` has blocking methods for both colours."""
        options = {"journal": self.journal, **options}
        transport = httpx.MockTransport(server)
        if self.name == "sync":
            client = Client("https://shop.example", http=httpx.Client(transport=transport), **options)
            client._sleep = self.slept.append
            return use(Plain(client))

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        async def main() -> Any:
            async with httpx.AsyncClient(transport=transport) as http:
                client = AsyncClient("https://shop.example", http=http, **options)
                client._sleep = sleep
                return await anyio.to_thread.run_sync(lambda: use(Plain(client, anyio.from_thread.run)))

        return anyio.run(main)

    def send(self, server: Server, *, intent: dict[str, Any] | None = None, **options: Any) -> Outcome:
        """Send one payment."""
        given = {"json": {"amount": "5.00"}, **(intent or {})}
        outcome: Outcome = self.run(server, lambda api: api.intent("POST", "/payments", **given).send(), **options)
        return outcome


class Plain:
    """Calls the methods of a client or an intent, and wraps the intents that come back."""

    def __init__(self, inner: Any, portal: Callable[..., Any] | None = None) -> None:
        self.inner = inner
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("intent", "child", "send", "resume", "close"):
            return found

        def call(*args: Any, **named: Any) -> Any:
            result = self._portal(lambda: found(*args, **named)) if self._portal is not None else found(*args, **named)
            return Plain(result, self._portal) if name in ("intent", "child") else result

        return call


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest, tmp_path: Path) -> Colour:
    return Colour(request.param, tmp_path)
