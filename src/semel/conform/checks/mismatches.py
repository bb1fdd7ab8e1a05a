"""Checks that another request or another caller with the same key never gets the first one's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from semel.conform.attempt import Failed, NotTried, Try
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.replies import is_first_answer, is_marked, not_replayed
from semel.conform.checks.sending import PADDING, pad, send_mismatch
from semel.conform.order import BESIDE_OTHERS


@check("other-body")
async def _(t: Try) -> None:
    first, other, _ = await send_mismatch(t)
    if other.ok and (is_marked(t, other) or other.body == first.body):
        raise Failed(f"another payload got the first answer ({other.text()})")
    await t.expect_effects(1, f"another payload got {other.text()}")


@check("other-body-status", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, other, _ = await send_mismatch(t)
    wanted = (400, 409, 422) if t.profile == "stripe" else (422,)
    if not other.ok and other.status not in wanted:
        raise Failed(f"{other.text()}, not {' or '.join(map(str, wanted))}")


@check("other-body-keeps-first", BESIDE_OTHERS)
async def _(t: Try) -> None:
    first, _, key = await send_mismatch(t)
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


# Another request under the first one's key, and its description.
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
