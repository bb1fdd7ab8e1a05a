"""Checks of an operation's status resource, and of the key's lifetime."""

from __future__ import annotations

from semel.conform.attempt import Failed, NotTried, Try
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.replies import link_to_status, problem
from semel.conform.checks.sending import send_twice
from semel.conform.order import BESIDE_OTHERS
from semel.conform.wire import Reply


async def _status(t: Try) -> tuple[str, str, Reply, Request]:
    """Send a request; return its key, the link to its status, the link's answer, and the request for it."""
    key = t.key()
    first = await t.first(key)
    link = link_to_status(first)
    base = t.target.base
    if link is None or not link.startswith(f"{base}/"):
        raise NotTried('no Link with rel="status" to a path below the URL is in the answer')
    request = Request("GET", link.removeprefix(base), b"", "")
    found = await t.send(None, request)
    if found.status in (401, 403) and not t.case.caller:
        raise NotTried("the case has no [callers.first], and reading a status needs its credentials")
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
    first, again = await send_twice(t)
    values = [reply.header("idempotency-key-lifetime") for reply in (first, again)]
    if None in values or values[0] != values[1]:
        raise Failed(f"Idempotency-Key-Lifetime is {values[0] or 'missing'} first, then {values[1] or 'missing'}")
