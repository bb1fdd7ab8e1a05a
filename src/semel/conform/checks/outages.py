"""Checks of crashes, store outages and key expiry, which the case's hooks bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from semel.conform.attempt import RETRY_SECONDS, Failed, Try, now
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.sending import IN_FLIGHT_PART
from semel.conform.wire import Reply


@check("crash-remembers")
async def _(t: Try) -> None:
    key = t.key()
    first = await t.first(key)
    await t.hook("kill")
    await t.hook("restart")
    await t.await_service()
    again = await t.retry_until_final(key)
    if not again.ok or again.body != first.body:
        raise Failed(f"after a kill and a restart the retry got {again.text()}")
    await t.expect_effects(1, again.text())


async def _crash_while_running(t: Try) -> tuple[str, Request]:
    key, slow = t.key(), t.needs("slow")
    running = asyncio.create_task(t.send(key, slow))
    await asyncio.sleep(t.case.slow_seconds * IN_FLIGHT_PART)
    await t.hook("kill")
    await running
    await t.hook("restart")
    await t.await_service()
    return key, slow


@check("crash-one-effect")
async def _(t: Try) -> None:
    key, slow = await _crash_while_running(t)
    again = await t.retry_until_final(key, slow, seconds=t.case.lease_seconds * 2 + 0.2)
    found = await t.count_new_effects()
    if found > 1 or (again.ok and found != 1):
        raise Failed(f"killed while it ran; the retry got {again.text()}; {found} effect(s) happened")


@check("crash-not-forever")
async def _(t: Try) -> None:
    key, slow = await _crash_while_running(t)
    begun = now()
    while now() - begun < t.case.lease_seconds * 2 + 0.2:
        reply = await t.send(key, slow)
        if reply.status and reply.header("retry-after") is None and reply.status < 500:
            return
        await asyncio.sleep(RETRY_SECONDS)
    raise Failed(f"two leases after a kill the retry still gets {reply.text()} with Retry-After")


async def _outage(t: Try, act: Callable[[], Awaitable[Reply]], hook: str = "store_off") -> Reply:
    await t.hook(hook)
    try:
        return await act()
    finally:
        await t.hook("store_on")


@check("outage-no-effect")
async def _(t: Try) -> None:
    key = t.key()
    reply = await _outage(t, lambda: t.send(key))
    again = await t.retry_until_final(key)
    found = await t.count_new_effects()
    if found > 1 or reply.ok:
        raise Failed(f"without its store: {reply.text()}, afterwards {again.text()}; {found} effect(s) happened")


@check("outage-replay")
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key)
    reply = await _outage(t, lambda: t.send(key))
    await t.expect_effects(1, f"a retry without the store got {reply.text()}")


@check("outage-status")
async def _(t: Try) -> None:
    reply = await _outage(t, lambda: t.send(t.key()))
    if reply.status != 503 and not reply.ok:
        raise Failed(f"without its store: {reply.text()}, not 503")


@check("outage-hang")
async def _(t: Try) -> None:
    key = t.key()
    reply = await _outage(t, lambda: t.send(key), "store_hang")
    if not reply.status or reply.ok:
        raise Failed(f"while its store hangs: {reply.text()}, not an error within its time")
    again = await t.retry_until_final(key)
    found = await t.count_new_effects()
    if found > 1:
        raise Failed(f"while its store hangs: {reply.text()}, afterwards {again.text()}; {found} effects happened")


@check("outage-recovers")
async def _(t: Try) -> None:
    key = t.key()
    await _outage(t, lambda: t.send(key))
    again = await t.retry_until_final(key)
    if not again.ok:
        raise Failed(f"after the outage the retry got {again.text()}")


@check("expiry-not-early")
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key)
    await t.hook("clock", f"{t.case.expiry_seconds / 2:g}")
    again = await t.send(key)
    await t.expect_effects(1, f"at half of the promised time the retry got {again.text()}")


@check("expiry-clean")
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key)
    await t.hook("clock", f"{t.case.expiry_seconds * 2:g}")
    again = await t.send(key)
    if again.status >= 500 or not again.status:
        raise Failed(f"after the promised time the retry got {again.text()}")
