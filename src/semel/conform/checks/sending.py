"""Requests that several chapters of checks send: a request and its retry, a mismatch, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from semel.conform.attempt import Try
from semel.conform.case import Request
from semel.conform.wire import Reply

IN_FLIGHT_PART: Final = 0.35  # the share of the slow request's time after which its duplicate is sent
PADDING: Final = 200_000


async def send_twice(t: Try, request: Request | None = None) -> tuple[Reply, Reply]:
    """Send a request and its retry."""
    key = t.key()
    return await t.first(key, request), await t.send(key, request)


async def send_mismatch(t: Try) -> tuple[Reply, Reply, str]:
    """Send a request, then another payload under the same key."""
    key = t.key()
    first = await t.first(key)
    return first, await t.send(key, t.needs("other")), key


async def send_at_once(t: Try, requests: Sequence[tuple[str, Request | None]]) -> list[Reply]:
    """Send many requests concurrently."""
    return list(await asyncio.gather(*(t.send(key, request) for key, request in requests)))


def pad(request: Request, size: int) -> Request:
    """Prefix a JSON body with ``size`` spaces."""
    return request.with_body(b" " * size + request.body)
