"""Checks of errors: how the API describes a refusal, and how it answers the retry of a failed request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from semel.conform.attempt import Failed, NotTried, Try
from semel.conform.checks.registry import check
from semel.conform.checks.replies import expect_problem, has_link, problem
from semel.conform.checks.sending import send_mismatch
from semel.conform.order import BESIDE_OTHERS, WITHOUT_EFFECTS
from semel.conform.wire import Reply


async def _missing_answer(t: Try) -> Reply:
    reply = await t.send(None)
    if not 400 <= reply.status < 500:
        raise NotTried(f"a request without a key is not refused ({reply.text()})")
    return reply


async def _mismatch_answer(t: Try) -> Reply:
    _, other, _ = await send_mismatch(t)
    if not 400 <= other.status < 500:
        raise NotTried(f"another payload under the same key is not refused ({other.text()})")
    return other


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
    ("problem-missing", _missing_answer, expect_problem),
    ("problem-mismatch", _mismatch_answer, expect_problem),
    ("problem-members", _missing_answer, _check_members),
    ("problem-members-mismatch", _mismatch_answer, _check_members),
    ("problem-link-missing", _missing_answer, _check_link),
    ("problem-link-mismatch", _mismatch_answer, _check_link),
):
    check(_name, BESIDE_OTHERS)(partial(_expect_error, ask=_ask, look=_look))


@check("problem-no-secrets", BESIDE_OTHERS)
async def _(t: Try) -> None:
    _, other, key = await send_mismatch(t)
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
