"""The implementation of each check of the catalogue. A check returns if it passes, and raises Failed otherwise."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from semel.client.plan import status_link
from semel.conform.case import REQUESTS, Case, Request
from semel.conform.catalogue import Check
from semel.conform.order import ALONE, BESIDE_OTHERS, WITHOUT_EFFECTS, Place
from semel.conform.run import IN_PROGRESS, RETRY_SECONDS, Failed, NotTried, Try, now, with_headers
from semel.conform.wire import Connection, Reply, exchange

Perform = Callable[[Try], Awaitable[None]]
CHECKS: Final[dict[str, Perform]] = {}
PLACES: Final[dict[str, Place]] = {}
PIECES: Final = 4
PIECE_SECONDS: Final = 0.05
IN_FLIGHT_PART: Final = 0.35  # of the slow request's time, until its duplicate is sent
LONG_KEY: Final = 300
HUGE_KEY: Final = 8_000
PADDING: Final = 200_000
_REFERENCES_MAX: Final = 10  # one after the other


def check(name: str, place: Place = ALONE) -> Callable[[Perform], Perform]:
    """Register what performs a check of the catalogue, and beside which others it may run."""

    def register(perform: Perform) -> Perform:
        CHECKS[name], PLACES[name] = perform, place
        return perform

    return register


def missing(wanted: Check, case: Case) -> str:
    """The parts of the case that a check lacks; empty if it has all."""
    has = {
        **{name: name in case.requests for name in REQUESTS},
        "numbers": "number_a" in case.requests,
        "caller": bool(case.caller),
        "other_caller": case.other_caller is not None,
        "json": case.request.members is not None,
        "required": case.key_required,
        "optional": not case.key_required,
        "multipart": bool(case.multipart),
        "openapi": bool(case.openapi),
        "kill": "kill" in case.hooks,
        "store_off": "store_off" in case.hooks,
        "store_hang": "store_hang" in case.hooks,
        "clock": "clock" in case.hooks and case.expiry_seconds > 0,
        "lease": case.lease_seconds > 0,
    }
    texts = {
        "numbers": "the case has no [number_a] and [number_b]",
        "caller": "the case has no [callers.first]",
        "other_caller": "the case has no [callers.second]",
        "json": "the case's body is not a JSON object",
        "required": "key.required is false",
        "optional": "key.required is true",
        "kill": "the case has no hooks.kill and hooks.restart",
        "store_off": "the case has no hooks.store_off and hooks.store_on",
        "store_hang": "the case has no hooks.store_hang and hooks.store_on",
        "clock": "the case has no hooks.clock and hooks.expiry_seconds",
        "lease": "the case has no hooks.lease_seconds",
    }
    return next((texts.get(name, f"the case has no [{name}]") for name in wanted.needs if not has[name]), "")


# --- helpers ---


def is_marked(t: Try, reply: Reply) -> bool:
    """Whether an answer is marked as a replay."""
    return (reply.header(t.case.replayed_header) or "").strip().lower() in ("true", "?1", "1")


async def expect_refusal(t: Try, spell: Callable[[Try, str], list[bytes]]) -> None:
    """A request with such key lines must get a 4xx and do nothing."""
    reply = await t.send(None, lines=spell(t, t.key()))
    if not 400 <= reply.status < 500:
        raise Failed(f"{reply.text()}, not a 4xx; {await t.count_new_effects()} effect(s) happened")
    await t.expect_effects(0, reply.text())


async def same_key(t: Try, spell: Callable[[Try, str], tuple[bytes, bytes]], *, key_name: str = "") -> None:
    """Two spellings of one key: one effect, and both are accepted."""
    one, two = spell(t, t.key())
    await t.first(None, lines=[one])
    again = await t.send(None, lines=[two], key_name=key_name)
    if not again.ok:
        raise Failed(f"the second spelling got {again.text()}")
    await t.expect_effects(1, f"the second spelling got {again.text()}")


async def two_keys(t: Try, spell: Callable[[Try, str], tuple[bytes, bytes]]) -> None:
    """Two keys that are not the same: two effects, unless the API refuses such keys."""
    replies = [await t.send(None, lines=[line]) for line in spell(t, t.key())]
    told = f"{replies[0].text()} and {replies[1].text()}"
    if any(reply.status >= 500 or not reply.status or reply.status in IN_PROGRESS for reply in replies):
        raise Failed(told)
    await t.expect_effects(sum(reply.ok for reply in replies), told)


async def twice(t: Try, request: Request | None = None) -> tuple[Reply, Reply]:
    """A request and its retry."""
    key = t.key()
    return await t.first(key, request), await t.send(key, request)


async def not_replayed(t: Try, first: Reply, other: Reply, what: str) -> None:
    """An answer to another request must not be the first one's.

    Two equal bodies are one answer, unless the other request had its own effect: an API may say "OK" to all of them.
    """
    if await is_first_answer(t, first, other):
        raise Failed(f"{what} got {other.text()} with the first request's answer")
    if (other.status >= 500 and other.status != 501) or not other.status:  # 501: it has no such method
        raise Failed(f"{what} got {other.text()}")


def is_accepted(t: Try, reply: Reply) -> bool:
    """Whether a duplicate learns that the first request still runs, and where its status is, without an answer yet."""
    return reply.status == 202 and not is_marked(t, reply) and link_to_status(reply) is not None


def link_to_status(reply: Reply) -> str | None:
    """The target of the reply's Link with rel="status"."""
    return status_link(", ".join(value for name, value in reply.headers if name.lower() == "link"))


def count_answers(t: Try, replies: Sequence[Reply]) -> int:
    """How many different successful answers there are, or different operations that were accepted."""
    accepted = {link_to_status(reply) for reply in replies if is_accepted(t, reply)}
    return max(len({reply.body for reply in replies if reply.ok and not is_accepted(t, reply)}), len(accepted))


async def is_first_answer(t: Try, first: Reply, other: Reply) -> bool:
    """Whether another request got the first one's answer, and ran nothing."""
    if not other.ok or is_marked(t, other):
        return other.ok
    return bool(first.body) and other.body == first.body and await t.count_new_effects() < 2


async def crowd(t: Try, requests: Sequence[tuple[str, Request | None]]) -> list[Reply]:
    """Many requests at once."""
    return list(await asyncio.gather(*(t.send(key, request) for key, request in requests)))


def tally(replies: Sequence[Reply]) -> str:
    """Count equal answers."""
    texts = [reply.text() for reply in replies]
    return ", ".join(f"{texts.count(text)} × {text}" for text in sorted(set(texts)))


def problem(reply: Reply) -> dict[str, Any]:
    """The members of a problem document, or of any JSON object."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def has_link(reply: Reply) -> bool:
    """Whether an error leads to documentation: a Link header, or a URI in its body."""
    link = ", ".join(value for name, value in reply.headers if name.lower() == "link").lower()
    if "describedby" in link or 'rel="help"' in link or "rel=help" in link:
        return True
    return any(isinstance(value, str) and "://" in value for value in problem(reply).values())


def pad(request: Request, size: int) -> Request:
    """A JSON body with so much white space in front."""
    return request.with_body(b" " * size + request.body)


async def while_slow(t: Try, act: Callable[[str, Request], Awaitable[Reply]]) -> tuple[Reply, Reply, bool]:
    """Run ``act`` while a slow request is being processed: the slow answer, act's, and whether act ended first."""
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
    """The 409 of a duplicate in flight. Raises NotTried where the API lets it wait."""
    _, other, _ = await while_slow(t, lambda key, slow: t.send(key, with_headers(slow, t.case.no_wait_headers)))
    if other.status != 409:
        raise NotTried(f"the API answers a duplicate in flight with {other.text()}, not with 409")
    return other


# --- the key ---

# Each spells a fresh key as header lines that are no key: a 4xx, and no effect.
_MALFORMED: Final[Mapping[str, Callable[[Try, str], list[bytes]]]] = {
    "key-bad-escape": lambda t, key: [f'"{key}\\n"'.encode()],
    "key-unterminated": lambda t, key: [f'"{key}'.encode()],
    "key-trailing": lambda t, key: [f'"{key}" x'.encode()],
    "key-doubled": lambda t, key: [t.spell(key), t.spell(t.key())],
    "key-doubled-same": lambda t, key: [t.spell(key), t.spell(key)],
    "key-list": lambda t, key: [t.spell(key) + b", " + t.spell(t.key())],
    "key-empty": lambda t, key: [b""],
    "key-empty-string": lambda t, key: [b'""'],
    "key-too-long": lambda t, key: [t.spell(key.ljust(HUGE_KEY, "x"))],
    "key-non-ascii": lambda t, key: [t.spell(key).replace(b"conform", "clé".encode())],
    "key-control": lambda t, key: [t.spell(key).replace(b"conform", b"a\x01b")],
}
# Each spells a fresh key in two ways that are one key: one effect.
_ONE_KEY: Final[Mapping[str, Callable[[Try, str], tuple[bytes, bytes]]]] = {
    "key-quoted": lambda t, key: (f'"{key};a,b"'.encode(), f'"{key};a,b"'.encode()),
    "key-bare": lambda t, key: (key.encode(), key.encode()),
    "key-parameters": lambda t, key: (t.spell(key), t.spell(key) + b";v=1"),
    "key-escape": lambda t, key: (f'"{key}\\""'.encode(), f'"{key}\\""'.encode()),
    "key-255": lambda t, key: (t.spell(key.ljust(255, "x")), t.spell(key.ljust(255, "x"))),
    "key-whitespace": lambda t, key: (t.spell(key), b"  " + t.spell(key) + b" \t"),
}
# Each makes two different keys of a fresh one: two effects.
_TWO_KEYS: Final[Mapping[str, Callable[[Try, str], tuple[bytes, bytes]]]] = {
    "key-escape-unescaped": lambda t, key: (f'"{key}\\\\"'.encode(), f'"{key}\\""'.encode()),
    "key-not-truncated": lambda t, key: (
        t.spell(key.ljust(LONG_KEY, "x") + "a"),
        t.spell(key.ljust(LONG_KEY, "x") + "b"),
    ),
    "key-case": lambda t, key: (t.spell(key.lower()), t.spell(key.upper())),
    "key-pattern": lambda t, key: (t.spell(f"{key}x"), t.spell(f"{key}%")),
    "key-injection": lambda t, key: (t.spell(f"{key}'or'1'='1"), t.spell(f"{key}'or'1'='2")),
}
for _name, _lines in _MALFORMED.items():
    check(_name, WITHOUT_EFFECTS)(partial(expect_refusal, spell=_lines))
for _name, _spellings in _ONE_KEY.items():
    check(_name)(partial(same_key, spell=_spellings))
for _name, _spellings in _TWO_KEYS.items():
    check(_name)(partial(two_keys, spell=_spellings))


@check("key-header-name")
async def _(t: Try) -> None:
    await same_key(t, lambda t, key: (t.spell(key), t.spell(key)), key_name=t.case.key_header.swapcase())


@check("key-quoted-is-bare")
async def _(t: Try) -> None:
    key = t.key().encode()
    await t.first(None, lines=[b'"' + key + b'"'])
    again = await t.send(None, lines=[key])
    if again.status == 400:
        raise NotTried("the API takes no bare keys")
    await t.expect_effects(1, f"the bare spelling got {again.text()}")


@check("key-fresh")
async def _(t: Try) -> None:
    key = t.key()
    replies = [await t.send(f"{key}-{number}") for number in (1, 2)]
    await t.expect_effects(2, tally(replies))


@check("key-missing", WITHOUT_EFFECTS)
async def _(t: Try) -> None:
    reply = await t.send(None)
    if reply.status >= 500 or not reply.status:
        raise Failed(reply.text())
    await t.expect_effects(0, reply.text())


@check("key-missing-status", BESIDE_OTHERS)
async def _(t: Try) -> None:
    reply = await t.send(None)
    if reply.status != 400 and not reply.ok:
        raise Failed(f"{reply.text()}, not 400")


@check("key-optional")
async def _(t: Try) -> None:
    replies = [await t.first(None) for _ in range(2)]
    await t.expect_effects(2, tally(replies))


# --- a retry ---


@check("replay-once")
async def _(t: Try) -> None:
    _, again = await twice(t)
    await t.expect_effects(1, f"the retry got {again.text()}")


@check("replay-again")
async def _(t: Try) -> None:
    key = t.key()
    replies = [await t.first(key)] + [await t.send(key) for _ in range(4)]
    await t.expect_effects(1, tally(replies))


@check("replay-status", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, again = await twice(t)
    if again.status != first.status:
        raise Failed(f"first {first.text()}, then {again.text()}")


@check("replay-body", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, again = await twice(t)
    if again.ok and again.body != first.body:
        raise Failed(f"the retry's body differs: {len(first.body)} bytes first, then {len(again.body)}")


async def _same_header(t: Try, name: str, *, must_be_there: bool) -> None:
    first, again = await twice(t)
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
    first, again = await twice(t)
    cookie = first.header("set-cookie")
    if cookie is not None and again.header("set-cookie") == cookie:
        raise Failed("the retry got the first answer's Set-Cookie")


@check("replay-marked", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, again = await twice(t)
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
    first, again = await twice(t, t.needs(request))
    if again.ok and again.body != first.body:
        raise Failed(f"{len(first.body)} bytes first, then {len(again.body)} other bytes as {again.text()}")
    await t.expect_effects(1, f"the retry got {again.text()}")


check("replay-large-answer")(partial(_same_bytes, request="large_answer"))
check("replay-binary")(partial(_same_bytes, request="binary_answer"))
check("replay-stream")(partial(_same_bytes, request="stream_answer"))


@check("replay-huge-answer")
async def _(t: Try) -> None:
    first, again = await twice(t, t.needs("huge_answer"))
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


# --- another request under the same key ---


async def _mismatch(t: Try) -> tuple[Reply, Reply, str]:
    key = t.key()
    first = await t.first(key)
    return first, await t.send(key, t.needs("other")), key


@check("other-body")
async def _(t: Try) -> None:
    first, other, _ = await _mismatch(t)
    if other.ok and (is_marked(t, other) or other.body == first.body):
        raise Failed(f"another payload got the first answer ({other.text()})")
    await t.expect_effects(1, f"another payload got {other.text()}")


@check("other-body-status", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, other, _ = await _mismatch(t)
    wanted = (400, 409, 422) if t.profile == "stripe" else (422,)
    if not other.ok and other.status not in wanted:
        raise Failed(f"{other.text()}, not {' or '.join(map(str, wanted))}")


@check("other-body-keeps-first", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, _, key = await _mismatch(t)
    again = await t.send(key)
    if not again.ok or again.body != first.body:
        raise Failed(f"after another payload was tried, the first request's retry got {again.text()}")


@check("other-large-body")
async def _(t: Try) -> None:
    key = t.key()
    first = await t.send(key, pad(t.case.request, PADDING))
    if not first.ok:
        raise NotTried(f"the API takes no body of {PADDING} bytes ({first.text()})")
    other = await t.send(key, pad(t.needs("other"), PADDING))
    if other.ok and (is_marked(t, other) or other.body == first.body):
        raise Failed(f"a body that differs after {PADDING} bytes got the first answer ({other.text()})")
    await t.expect_effects(1, f"a body that differs after {PADDING} bytes got {other.text()}")


def _with_another_query(t: Try) -> Request:
    path = t.case.request.path
    return replace(t.case.request, path=f"{path}{'&' if '?' in path else '?'}conform=1")


# Another request under the key of the first one, and what to call it.
_OTHERS: Final[Mapping[str, tuple[Callable[[Try], Request], str]]] = {
    "other-query": (_with_another_query, "the same body with another query"),
    "other-media-type": (
        lambda t: t.case.request.with_body(t.case.request.body, "text/plain"),
        "the same bytes as text/plain",
    ),
    "other-operation": (lambda t: t.needs("second"), "another operation with the same key"),
    "other-path": (lambda t: t.needs("other_path"), "another parameter in the path"),
}


async def _expect_no_replay(t: Try, make: Callable[[Try], Request], what: str, first: Request | None = None) -> None:
    key = t.key()
    answer = await t.first(key, first)
    await not_replayed(t, answer, await t.send(key, make(t)), what)


for _name, (_make, _what) in _OTHERS.items():
    check(_name, BESIDE_OTHERS)(partial(_expect_no_replay, make=_make, what=_what))


@check("other-number", BESIDE_OTHERS)
async def _(t: Try) -> None:
    what = "a number that differs beyond a double's precision"
    await _expect_no_replay(t, lambda t: t.needs("number_b"), what, t.needs("number_a"))


@check("other-method", BESIDE_OTHERS)
async def _(t: Try) -> None:
    method = "PATCH" if t.case.request.method != "PATCH" else "POST"
    await _expect_no_replay(t, lambda t: replace(t.case.request, method=method), f"{method} with the same key")


@check("other-get")
async def _(t: Try) -> None:
    key, request = t.key(), t.case.request
    get = Request("GET", request.path, b"", "", request.headers)
    first, plain = await t.first(key), await t.send(None, get)
    other = await t.send(key, get)
    same = other.body == first.body and first.body and plain.body != other.body
    if other.ok and (is_marked(t, other) or same):
        raise Failed(f"GET with the same key got {other.text()} with the first request's answer")
    await t.expect_effects(1, f"GET got {other.text()}")


@check("other-head")
async def _(t: Try) -> None:
    key, request = t.key(), t.case.request
    first = await t.first(key)
    other = await t.send(key, Request("HEAD", request.path, b"", "", request.headers))
    place = first.header("location")
    if other.ok and (is_marked(t, other) or (place is not None and other.header("location") == place)):
        raise Failed(f"HEAD with the same key got {other.text()} with the first request's headers")
    await t.expect_effects(1, f"HEAD got {other.text()}")


@check("other-duplicate-names", BESIDE_OTHERS)
async def _(t: Try) -> None:
    members, other = t.case.request.members, t.needs("other").members
    name = next((name for name in members or {} if other and other.get(name) != (members or {})[name]), None)
    if members is None or other is None or name is None:
        raise NotTried("no member of the request's JSON object has another value in [other]")
    usual = t.case.request.body.strip()
    body = b"{" + json.dumps(name).encode() + b": " + json.dumps(other.get(name)).encode() + b", " + usual[1:]
    key = t.key()
    first = await t.send(key, t.case.request.with_body(body))
    if not first.ok:
        return
    again = await t.send(key)
    if again.ok and (is_marked(t, again) or again.body == first.body):
        raise Failed(f"a body with {name!r} twice and one with it once are taken for the same ({again.text()})")


# --- the same JSON, written otherwise ---


async def _rewritten(t: Try, body: bytes, what: str) -> None:
    key = t.key()
    await t.first(key)
    again = await t.send(key, t.case.request.with_body(body))
    if not again.ok:
        raise Failed(f"{what} got {again.text()}")
    await t.expect_effects(1, f"{what} got {again.text()}")


@check("json-order")
async def _(t: Try) -> None:
    members = t.case.request.members or {}
    if len(members) < 2:
        raise NotTried("the request's JSON object has one member only")
    await _rewritten(t, json.dumps(dict(reversed(members.items()))).encode(), "the members in another order")


@check("json-space")
async def _(t: Try) -> None:
    await _rewritten(t, json.dumps(t.case.request.members, indent=3).encode() + b"\n", "more white space")


@check("json-escapes")
async def _(t: Try) -> None:
    text = t.case.request.body.decode()
    name = next(iter(t.case.request.members or {}))
    first = json.dumps(name)
    if not name[:1].isalpha() or not name.isascii() or first not in text:
        raise NotTried("the first member's name has no letter to escape")
    escaped = f'"\\u{ord(name[0]):04x}{name[1:]}"'
    await _rewritten(t, text.replace(first, escaped, 1).encode(), "a letter as \\u escape")


@check("json-invalid", WITHOUT_EFFECTS)
async def _(t: Try) -> None:
    reply = await t.send(t.key(), t.case.request.with_body(t.case.request.body.rstrip()[:-1]))
    if not 400 <= reply.status < 500:
        raise Failed(f"a truncated JSON document got {reply.text()}, not a 4xx")
    await t.expect_effects(0, reply.text())


@check("json-surrogate")
async def _(t: Try) -> None:
    body = b'{"\\ud800": "\\udfff", ' + t.case.request.body.strip()[1:]
    reply = await t.send(t.key(), t.case.request.with_body(body))
    if reply.status >= 500 or not reply.status:
        raise Failed(f"a lone surrogate got {reply.text()}")


@check("json-nested")
async def _(t: Try) -> None:
    reply = await t.send(t.key(), t.case.request.with_body(b"[" * 50_000 + b"]" * 50_000))
    if reply.status >= 500 or not reply.status:
        raise Failed(f"50,000 nested arrays got {reply.text()}")


def _form(t: Try, boundary: str, values: Mapping[str, str]) -> Request:
    parts = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in values.items()
    )
    return t.case.request.with_body(f"{parts}--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}")


@check("multipart-other", BESIDE_OTHERS)
async def _(t: Try) -> None:
    key, values = t.key(), t.case.multipart
    first = await t.first(key, _form(t, "conform-one", values))
    name = next(iter(values))
    other = await t.send(key, _form(t, "conform-one", {**values, name: f"{values[name]}1"}))
    await not_replayed(t, first, other, f"a form with another {name!r}")


@check("multipart-boundary")
async def _(t: Try) -> None:
    key = t.key()
    await t.first(key, _form(t, "conform-one", t.case.multipart))
    again = await t.send(key, _form(t, "conform-two", t.case.multipart))
    if not again.ok:
        raise Failed(f"the same parts with another boundary got {again.text()}")
    await t.expect_effects(1, again.text())


# --- errors ---


async def _missing_answer(t: Try) -> Reply:
    reply = await t.send(None)
    if not 400 <= reply.status < 500:
        raise NotTried(f"a request without a key is not refused ({reply.text()})")
    return reply


async def _mismatch_answer(t: Try) -> Reply:
    _, other, _ = await _mismatch(t)
    if not 400 <= other.status < 500:
        raise NotTried(f"another payload under the same key is not refused ({other.text()})")
    return other


def _check_problem(reply: Reply) -> None:
    if reply.media_type != "application/problem+json":
        raise Failed(f"{reply.text()} has the Content-Type {reply.header('content-type') or '(none)'}")


def _check_members(reply: Reply) -> None:
    document = problem(reply)
    if reply.media_type != "application/problem+json":
        return
    if document.get("status", reply.status) != reply.status:
        raise Failed(f"{reply.text()} has a problem with status {document.get('status')!r}")
    if not isinstance(document.get("title"), str) or not isinstance(document.get("type", ""), str):
        raise Failed(f"{reply.text()} has a problem without a title, or with a type that is not a text")


def _check_link(reply: Reply) -> None:
    if not has_link(reply):
        raise Failed(f"{reply.text()} without a link to documentation, in its body or as a Link header")


async def _expect_error(t: Try, ask: Callable[[Try], Awaitable[Reply]], look: Callable[[Reply], None]) -> None:
    look(await ask(t))


for _name, _ask, _look in (
    ("problem-missing", _missing_answer, _check_problem),
    ("problem-mismatch", _mismatch_answer, _check_problem),
    ("problem-members", _missing_answer, _check_members),
    ("problem-members-mismatch", _mismatch_answer, _check_members),
    ("problem-link-missing", _missing_answer, _check_link),
    ("problem-link-mismatch", _mismatch_answer, _check_link),
):
    check(_name, BESIDE_OTHERS)(partial(_expect_error, ask=_ask, look=_look))


@check("problem-no-secrets", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, other, key = await _mismatch(t)
    if other.ok:
        raise NotTried(f"another payload under the same key is not refused ({other.text()})")
    if key.encode() in other.body:
        raise Failed("the error repeats the key")


@check("refused-again", WITHOUT_EFFECTS)
async def _(t: Try) -> None:
    key, request = t.key(), t.needs("refused")
    first, again = await t.send(key, request), await t.send(key, request)
    if not 400 <= first.status < 500:
        raise NotTried(f"[refused] got {first.text()}, not a 4xx")
    if again.status != first.status:
        raise Failed(f"first {first.text()}, then {again.text()}")
    await t.expect_effects(0, again.text())


@check("broken-again")
async def _(t: Try) -> None:
    key, request = t.key(), t.needs("broken")
    first = await t.send(key, request)
    if first.status and first.status < 500:
        raise NotTried(f"[broken] got {first.text()}, not a 5xx")
    again = await t.send(key, request)
    found = await t.count_new_effects()
    if found > 1:
        raise Failed(f"first {first.text()}, then {again.text()}; {found} effects happened, at most 1 expected")


@check("broken-honest")
async def _(t: Try) -> None:
    key, request = t.key(), t.needs("broken")
    first, again = await t.send(key, request), await t.send(key, request)
    if first.status >= 500 and again.ok and await t.count_new_effects() == 0:
        raise Failed(f"first {first.text()}, then {again.text()}, and nothing has happened")


# --- the status of an operation, and how long a key lives ---


async def _status(t: Try) -> tuple[str, str, Reply, Request]:
    """A key, the link to its operation's status, and the link's target."""
    key = t.key()
    first = await t.first(key)
    link = link_to_status(first)
    base = t.target.base
    if link is None or not link.startswith(f"{base}/"):
        raise NotTried('no Link with rel="status" to a path below the URL is in the answer')
    request = Request("GET", link.removeprefix(base), b"", "")
    found = await t.send(None, request)
    if found.status in (401, 403) and not t.case.caller:
        raise NotTried("the case has no [callers.first], whose credentials a status is read with")
    return key, link, found, request


@check("status-link", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, link, found, _ = await _status(t)
    if found.status != 200 or not problem(found):
        raise Failed(f"the status link {link[:80]} leads to {found.text()}, not to 200 with a JSON object")


@check("status-other", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, _, _, request = await _status(t)
    other = await t.send(None, request, caller=t.case.other_caller)
    if other.ok:
        raise Failed(f"another caller's question about this operation got {other.text()}")


@check("status-no-secrets", BESIDE_OTHERS)
async def _(t: Try) -> None:
    key, _, found, _ = await _status(t)
    if key.encode() in found.body:
        raise Failed("the status of the operation shows the key")


@check("lifetime", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, again = await twice(t)
    values = [reply.header("idempotency-key-lifetime") for reply in (first, again)]
    if None in values or values[0] != values[1]:
        raise Failed(f"Idempotency-Key-Lifetime is {values[0] or 'missing'} first, then {values[1] or 'missing'}")


# --- callers ---


@check("caller-other")
async def _(t: Try) -> None:
    key = t.key()
    first = await t.first(key)
    other = await t.send(key, caller=t.case.other_caller)
    await not_replayed(t, first, other, "another caller with the same key")
    if other.ok:
        await t.expect_effects(2, f"another caller with the same key got {other.text()}")


@check("caller-other-payload", BESIDE_OTHERS)
async def _(t: Try) -> None:
    fresh = await t.send(t.key(), t.needs("other"), caller=t.case.other_caller)
    key = t.key()
    await t.first(key)
    other = await t.send(key, t.needs("other"), caller=t.case.other_caller)
    if other.status != fresh.status:
        raise Failed(f"with a fresh key another caller gets {fresh.text()}, with this caller's key {other.text()}")


@check("caller-nobody", BESIDE_OTHERS)
async def _(t: Try) -> None:
    key = t.key()
    first = await t.first(key)
    other = await t.send(key, caller={})
    if await is_first_answer(t, first, other):
        raise Failed(f"a request without credentials got {other.text()} with the first caller's answer")


# --- at the same time ---


async def _race(t: Try) -> list[list[Reply]]:
    """The answers of each round."""
    limits = t.case.limits
    t.races[:] = [await crowd(t, [(t.key(), None)] * limits.parallel) for _ in range(limits.rounds)]
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
    replies = await crowd(t, [(t.key(), None)] * t.case.limits.crowd)
    await t.expect_effects(1, tally(replies))


@check("race-payloads")
async def _(t: Try) -> None:
    other, effects = t.needs("other"), 0
    for _ in range(max(t.case.limits.rounds // 4, 1)):
        key = t.key()
        replies = await crowd(t, [(key, None), (key, other)] * (t.case.limits.parallel // 2))
        found = await t.count_new_effects() - effects
        if count_answers(t, replies) > 1 or found > 1:
            raise Failed(f"both payloads were accepted under one key: {tally(replies)}; {found} effect(s) happened")
        effects += found


@check("race-keys")
async def _(t: Try) -> None:
    count = t.case.limits.parallel
    replies = await crowd(t, [(t.key(), None) for _ in range(count)])
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
    _check_problem(await conflict(t))


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


# --- lost, late and broken ---


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


# --- documentation ---


async def _document(t: Try) -> dict[str, Any]:
    request = Request("GET", t.case.openapi, b"", "")
    reply = await exchange(t.target, t.encode(None, request), "GET", t.case.limits.timeout_seconds)
    document = problem(reply)
    if reply.ok and not document:
        raise NotTried(f"{t.case.openapi} is not a JSON object; give the path of the document as JSON")
    item = _path_item(document, t.case.request.path.partition("?")[0])
    operation = item.get(t.case.request.method.lower())
    if not isinstance(operation, dict):
        raise Failed(f"{t.case.openapi} ({reply.text()}) has no {t.case.request.method} {t.case.request.path}")
    given = [*_list_of(operation.get("parameters")), *_list_of(item.get("parameters"))]
    responses = operation.get("responses")
    return {
        "parameters": [_resolve(document, each) for each in given],
        "responses": responses if isinstance(responses, dict) else {},
    }


def _list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _path_item(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The document's item for a path: as it is written, or by a template such as /orders/{id}."""
    paths = document.get("paths")
    if not isinstance(paths, dict):
        return {}
    found = paths.get(path)
    for template, item in paths.items():
        parts = [re.escape(part) for part in re.split(r"\{[^{}/]*\}", template)]
        if found is None and re.fullmatch("[^/]+".join(parts), path):
            found = item
    item = _resolve(document, found)
    return item if isinstance(item, dict) else {}


def _resolve(document: Mapping[str, Any], value: Any) -> Any:
    """What a reference within the document leads to; anything else as it is."""
    for _ in range(_REFERENCES_MAX):
        reference = value.get("$ref") if isinstance(value, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        value = document
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            value = value.get(name) if isinstance(value, dict) else None
    return value


@check("openapi-header", BESIDE_OTHERS)
async def _(t: Try) -> None:
    found = (await _document(t)).get("parameters", [])
    names = [str(each.get("name", "")).lower() for each in found if isinstance(each, dict)]
    if t.case.key_header.lower() not in names:
        raise Failed(f"the operation documents no header {t.case.key_header}")


@check("openapi-errors", BESIDE_OTHERS)
async def _(t: Try) -> None:
    found = set((await _document(t)).get("responses", {}))
    lacks = [status for status in ("400", "409", "422") if status not in found]
    if lacks:
        raise Failed(f"the operation does not document {', '.join(lacks)}")


@check("openapi-required", BESIDE_OTHERS)
async def _(t: Try) -> None:
    for each in (await _document(t)).get("parameters", []):
        if isinstance(each, dict) and str(each.get("name", "")).lower() == t.case.key_header.lower():
            if each.get("required", False) is not t.case.key_required:
                raise Failed(f"{t.case.key_header} is documented with required: {each.get('required', False)}")
            return
    raise NotTried(f"the operation documents no header {t.case.key_header}")


@check("openapi-statuses", BESIDE_OTHERS)
async def _(t: Try) -> None:
    documented = {str(status) for status in (await _document(t)).get("responses", {})}
    status = (await t.first(t.key())).status
    if not {str(status), f"{status // 100}XX", "default"} & documented:
        raise Failed(f"the operation answers {status} and documents {', '.join(sorted(documented)) or 'nothing'}")


# --- crashes, outages, time: with hooks ---


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
