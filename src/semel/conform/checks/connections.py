"""Checks of requests and answers that are lost, late or cut off in transit."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from semel.conform.attempt import RETRY_SECONDS, Failed, Try
from semel.conform.checks.registry import check
from semel.conform.checks.sending import IN_FLIGHT_PART
from semel.conform.wire import Connection

PIECES: Final = 4
PIECE_SECONDS: Final = 0.05


@check("lost-request")
async def _(t: Try) -> None:
    key = t.key()
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        await connection.write(t.encode(key))
    await asyncio.sleep(RETRY_SECONDS)
    again = await t.retry_until_final(key)
    if not again.ok:
        raise Failed(f"the client left before the answer; its retry got {again.text()}")
    await t.expect_effects(1, f"the retry got {again.text()}")


@check("lost-answer")
async def _(t: Try) -> None:
    key = t.key()
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        await connection.write(t.encode(key))
        await connection.some()
        connection.reset()
    await asyncio.sleep(RETRY_SECONDS)
    again = await t.retry_until_final(key)
    if not again.ok:
        raise Failed(f"the connection broke inside the answer; the retry got {again.text()}")
    await t.expect_effects(1, f"the retry got {again.text()}")


@check("lost-running")
async def _(t: Try) -> None:
    key, slow = t.key(), t.needs("slow")
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        await connection.write(t.encode(key, slow))
        await asyncio.sleep(t.case.slow_seconds * IN_FLIGHT_PART)
        connection.reset()
    again = await t.retry_until_final(key, slow)
    found = await t.count_new_effects()
    if found > 1 or (again.ok and found != 1):
        raise Failed(f"the client left while the request ran; the retry got {again.text()}; {found} effect(s) happened")


@check("half-body")
async def _(t: Try) -> None:
    key, request = t.key(), t.case.request
    half = request.with_body(request.body[: len(request.body) // 2])
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        await connection.write(t.encode(key, half, claimed=len(request.body)))
    again = await t.retry_until_final(key)
    if not again.ok:
        raise Failed(f"after half a body the whole request got {again.text()}")
    await t.expect_effects(1, f"the whole request got {again.text()}")


@check("slow-client")
async def _(t: Try) -> None:
    key = t.key()
    data = t.encode(key)
    head, body = data[: len(data) - len(t.case.request.body)], t.case.request.body
    cuts = [len(body) * number // (PIECES - 1) for number in range(PIECES)]
    pieces = [head, *(body[start:end] for start, end in itertools.pairwise(cuts))]
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        for piece in pieces:
            await connection.write(piece)
            await asyncio.sleep(PIECE_SECONDS)
        first = await connection.read(t.case.request.method)
    again = await t.send(key)
    if not first.ok or not again.ok:
        raise Failed(f"a request in {PIECES} pieces got {first.text()}, its retry {again.text()}")
    await t.expect_effects(1, f"a request in {PIECES} pieces got {first.text()}, its retry {again.text()}")
