"""Checks that a retry of the same request has no second effect and gets the same answer."""

from __future__ import annotations

import asyncio
from functools import partial

from semel.conform.attempt import Failed, NotTried, Try, with_headers
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.replies import is_marked, tally
from semel.conform.checks.sending import PADDING, pad, send_twice
from semel.conform.order import BESIDE_OTHERS
from semel.conform.wire import Connection, Reply


@check("replay-once")
async def _(t: Try) -> None:
    _, again = await send_twice(t)
    await t.expect_effects(1, f"the retry got {again.text()}")


@check("replay-again")
async def _(t: Try) -> None:
    key = t.key()
    replies = [await t.first(key)] + [await t.send(key) for _ in range(4)]
    await t.expect_effects(1, tally(replies))


@check("replay-status", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, again = await send_twice(t)
    if again.status != first.status:
        raise Failed(f"first {first.text()}, then {again.text()}")


@check("replay-body", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, again = await send_twice(t)
    if again.ok and again.body != first.body:
        raise Failed(f"the retry's body differs: {len(first.body)} bytes first, then {len(again.body)}")


async def _same_header(t: Try, name: str, *, must_be_there: bool) -> None:
    first, again = await send_twice(t)
    given, replayed = first.header(name.lower()), again.header(name.lower())
    if must_be_there and given is None:
        raise NotTried(f"the first answer has no {name}")
    if again.ok and replayed != given:
        raise Failed(f"{name} {given} first, then {replayed}")


check("replay-content-type", BESIDE_OTHERS)(partial(_same_header, name="Content-Type", must_be_there=False))
check("replay-location", BESIDE_OTHERS)(partial(_same_header, name="Location", must_be_there=True))
check("replay-etag", BESIDE_OTHERS)(partial(_same_header, name="ETag", must_be_there=True))


@check("replay-no-cookie", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, again = await send_twice(t)
    cookie = first.header("set-cookie")
    if cookie is not None and again.header("set-cookie") == cookie:
        raise Failed("the retry got the first answer's Set-Cookie")


@check("replay-marked", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, again = await send_twice(t)
    if again.ok and not is_marked(t, again):
        raise Failed(f"the retry's answer has no {t.case.replayed_header}: true")


@check("replay-first-unmarked", BESIDE_OTHERS)
async def _(t: Try) -> None:
    if is_marked(t, await t.first(t.key())):
        raise Failed(f"the first answer has {t.case.replayed_header}: true")


@check("replay-framing", BESIDE_OTHERS)
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key)
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        await connection.write(t.encode(key))
        again = await connection.read(t.case.request.method)
        more = await connection.leftover()
    if again.framing or more:
        raise Failed(again.framing or f"after the retry's answer came {len(more)} byte(s) more")


@check("replay-same-connection")
async def _(t: Try) -> None:
    key = t.key()
    try:
        async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
            await connection.write(t.encode(key, close=False))
            first = await connection.read(t.case.request.method)
            await connection.write(t.encode(key))
            again = await connection.read(t.case.request.method)
    except TimeoutError:
        raise Failed("the retry on the same connection got no answer") from None
    except Exception as error:
        if "closed" in str(error) or isinstance(error, asyncio.IncompleteReadError):
            raise NotTried("the API closes a connection after each answer") from None
        raise
    if not first.ok:
        raise Failed(f"the first request got {first.text()}")
    await t.expect_effects(1, f"the retry got {again.text()}")


@check("replay-chunked")
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key)
    again = await t.send(key, chunked=True)
    if again.status in (411, 501):
        raise NotTried(f"the API takes no chunked bodies ({again.text()})")
    if not again.ok:
        raise Failed(f"the same body in chunks got {again.text()}")
    await t.expect_effects(1, f"the same body in chunks got {again.text()}")


@check("replay-other-headers")
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key)
    again = await t.send(key, with_headers(t.case.request, {"X-Conform": "another"}))
    if not again.ok:
        raise Failed(f"a retry with another X-Conform header got {again.text()}")
    await t.expect_effects(1, f"a retry with another X-Conform header got {again.text()}")


@check("replay-large-body")
async def _(t: Try) -> None:
    large = pad(t.case.request, PADDING)
    key = t.key()
    first, again = await t.send(key, large), await t.send(key, large)
    if not first.ok and 400 <= first.status < 500:
        return await t.expect_effects(0, first.text())
    if not first.ok or not again.ok:
        raise Failed(f"first {first.text()}, then {again.text()}")
    return await t.expect_effects(1, again.text())


@check("replay-huge-body")
async def _(t: Try) -> None:
    huge = pad(t.case.request, t.case.limits.body_bytes)
    key = t.key()
    first = await t.send(key, huge)
    again = await t.send(key, huge)
    if any(reply.status >= 500 for reply in (first, again)):
        raise Failed(f"first {first.text()}, then {again.text()}")
    if not (await t.send(t.key())).ok:
        raise Failed("after a huge body the API did not accept an ordinary request")
    if (found := await t.count_new_effects()) > 2:
        raise Failed(f"first {first.text()}, then {again.text()}; the huge body had {found - 1} effects")


async def _same_bytes(t: Try, request: str) -> None:
    first, again = await send_twice(t, t.needs(request))
    if again.ok and again.body != first.body:
        raise Failed(f"{len(first.body)} bytes first, then {len(again.body)} other bytes as {again.text()}")
    await t.expect_effects(1, f"the retry got {again.text()}")


check("replay-large-answer")(partial(_same_bytes, request="large_answer"))
check("replay-binary")(partial(_same_bytes, request="binary_answer"))
check("replay-stream")(partial(_same_bytes, request="stream_answer"))


@check("replay-huge-answer")
async def _(t: Try) -> None:
    first, again = await send_twice(t, t.needs("huge_answer"))
    if again.status >= 500 or not again.status:
        raise Failed(f"after an answer of {len(first.body)} bytes the retry got {again.text()}")
    if again.ok and again.body != first.body:
        raise Failed(f"{len(first.body)} bytes first, then {len(again.body)} bytes as {again.text()}")
    await t.expect_effects(1, f"the retry got {again.text()}")


async def _empty(t: Try) -> tuple[str, Request, Reply]:
    key, request = t.key(), t.needs("empty_answer")
    first = await t.send(key, request)
    if first.status not in (204, 205, 304):
        raise NotTried(f"[empty_answer] got {first.text()}, not 204, 205 or 304")
    return key, request, first


@check("replay-empty")
async def _(t: Try) -> None:
    key, request, first = await _empty(t)
    again = await t.send(key, request)
    if again.status != first.status:
        raise Failed(f"first {first.text()}, then {again.text()} with {len(again.body)} bytes")
    await t.expect_effects(1, f"the retry got {again.text()}")


@check("replay-empty-framing", BESIDE_OTHERS)
async def _(t: Try) -> None:
    key, request, first = await _empty(t)
    async with asyncio.timeout(t.case.limits.timeout_seconds), Connection(t.target) as connection:
        await connection.write(t.encode(key, request))
        again = await connection.read(request.method)
        more = await connection.leftover() if again.status == first.status else b""
    if more:
        raise Failed(f"after the retry's {again.status} came {len(more)} byte(s) of a body")
    length, coding = again.header("content-length"), again.header("transfer-encoding")
    if again.status == 204 and (length is not None or coding is not None):
        raise Failed(f"the retry's 204 has {'Content-Length' if length is not None else 'Transfer-Encoding'}")
