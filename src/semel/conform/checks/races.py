"""Checks of concurrent duplicates, and of duplicates while the first request is still running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from semel.conform.attempt import IN_PROGRESS, Failed, NotTried, Try, with_headers
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.replies import count_answers, expect_problem, is_accepted, tally
from semel.conform.checks.sending import IN_FLIGHT_PART, send_at_once
from semel.conform.wire import Reply


async def while_slow(t: Try, act: Callable[[str, Request], Awaitable[Reply]]) -> tuple[Reply, Reply, bool]:
    """Run ``act`` during a slow request; return the slow answer, act's answer, and whether act ended first."""
    slow, key = t.needs("slow"), t.key()
    first = asyncio.create_task(t.send(key, slow))
    await asyncio.sleep(t.case.slow_seconds * IN_FLIGHT_PART)
    try:
        if first.done():
            raise NotTried("the slow request was answered at once: give [slow] a request that takes slow.seconds")
        other = await act(key, slow)
        ended_first = not first.done()
        answer = await first
    finally:
        first.cancel()
    if not answer.ok:
        raise Failed(f"the slow request itself got {answer.text()}")
    return answer, other, ended_first


async def conflict(t: Try) -> Reply:
    """Return the 409 that a duplicate in flight gets. Raises NotTried if the API answers anything else."""
    _, other, _ = await while_slow(t, lambda key, slow: t.send(key, with_headers(slow, t.case.no_wait_headers)))
    if other.status != 409:
        raise NotTried(f"the API answers a duplicate in flight with {other.text()}, not with 409")
    return other


async def _race(t: Try) -> list[list[Reply]]:
    """Run all rounds, and return the answers of each."""
    limits = t.case.limits
    t.races[:] = [await send_at_once(t, [(t.key(), None)] * limits.parallel) for _ in range(limits.rounds)]
    return t.races


@check("race-one-effect")
async def _(t: Try) -> None:
    rounds = await _race(t)
    await t.expect_effects(len(rounds), tally([reply for each in rounds for reply in each]))


@check("race-one-answer")
async def _(t: Try) -> None:
    for each in t.races or await _race(t):
        if (answers := count_answers(t, each)) > 1:
            raise Failed(f"{answers} different successful answers for one key ({tally(each)})")


@check("race-losers")
async def _(t: Try) -> None:
    for each in t.races or await _race(t):
        if not any(reply.ok for reply in each):
            raise Failed(f"no duplicate was successful: {tally(each)}")
        bad = [reply for reply in each if not reply.ok and reply.status not in IN_PROGRESS]
        if bad:
            raise Failed(f"duplicates at the same time got {tally(bad)}; the replay or 409 expected")


@check("race-crowd")
async def _(t: Try) -> None:
    replies = await send_at_once(t, [(t.key(), None)] * t.case.limits.crowd)
    await t.expect_effects(1, tally(replies))


@check("race-payloads")
async def _(t: Try) -> None:
    other, effects = t.needs("other"), 0
    for _ in range(max(t.case.limits.rounds // 4, 1)):
        key = t.key()
        replies = await send_at_once(t, [(key, None), (key, other)] * (t.case.limits.parallel // 2))
        found = await t.count_new_effects() - effects
        if count_answers(t, replies) > 1 or found > 1:
            raise Failed(f"both payloads were accepted under one key: {tally(replies)}; {found} effect(s) happened")
        effects += found


@check("race-keys")
async def _(t: Try) -> None:
    count = t.case.limits.parallel
    replies = await send_at_once(t, [(t.key(), None) for _ in range(count)])
    accepted = sum(reply.ok for reply in replies)
    refusals = [reply for reply in replies if not reply.ok and reply.status not in (429, 503)]
    if refusals:
        raise Failed(f"different keys at the same time: {tally(replies)}")
    await t.expect_effects(accepted, tally(replies))


@check("flight-duplicate")
async def _(t: Try) -> None:
    answer, other, _ = await while_slow(t, t.send)
    if other.ok and other.body != answer.body and not is_accepted(t, other):
        raise Failed(f"the duplicate got {other.text()} with another answer than the first request")
    if not other.ok and other.status != 409:
        raise Failed(f"the duplicate got {other.text()}; 409 or the first request's answer expected")


@check("flight-one-effect")
async def _(t: Try) -> None:
    _, other, _ = await while_slow(t, t.send)
    await t.expect_effects(1, f"the duplicate of a running request got {other.text()}")


@check("flight-then-replay")
async def _(t: Try) -> None:
    keys: list[str] = []

    async def duplicate(key: str, slow: Request) -> Reply:
        keys.append(key)
        return await t.send(key, slow)

    answer, _, _ = await while_slow(t, duplicate)
    again = await t.send(keys[0], t.needs("slow"))
    if not again.ok or again.body != answer.body:
        raise Failed(f"after the first request ended, its retry got {again.text()}")


@check("flight-retry-after")
async def _(t: Try) -> None:
    reply = await conflict(t)
    value = reply.header("retry-after")
    if value is None:
        raise Failed("409 without Retry-After")


@check("flight-retry-after-value")
async def _(t: Try) -> None:
    value = (await conflict(t)).header("retry-after")
    if value is not None and not value.isdigit() and not value.endswith("GMT"):
        raise Failed(f"Retry-After: {value[:60]!r} is neither seconds nor a date")


@check("flight-problem")
async def _(t: Try) -> None:
    expect_problem(await conflict(t))


@check("flight-other-payload")
async def _(t: Try) -> None:
    _, other, _ = await while_slow(t, lambda key, slow: t.send(key, t.needs("other")))
    if other.ok or other.status >= 500 or not other.status:
        raise Failed(f"another payload under a running request's key got {other.text()}; 422 or 409 expected")


@check("flight-other-key")
async def _(t: Try) -> None:
    _, other, ended_first = await while_slow(t, lambda key, slow: t.send(t.key()))
    if not other.ok or not ended_first:
        raise Failed(f"an ordinary request with another key {'waited' if other.ok else f'got {other.text()}'}")
