"""Checks of equal bodies in two spellings, as JSON and as forms, and of invalid JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from semel.conform.attempt import Failed, NotTried, Try
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.replies import not_replayed
from semel.conform.order import BESIDE_OTHERS, WITHOUT_EFFECTS


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
