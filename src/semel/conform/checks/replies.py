"""Judgements on a reply: whether it is a replay, an acceptance (202) or a problem document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from semel.client.answers import status_link
from semel.conform.attempt import Failed, Try
from semel.conform.wire import Reply


def is_marked(t: Try, reply: Reply) -> bool:
    """Return whether an answer is marked as a replay."""
    return (reply.header(t.case.replayed_header) or "").strip().lower() in ("true", "?1", "1")


def is_accepted(t: Try, reply: Reply) -> bool:
    """Return whether a reply says only that the first request is still running, with a link to its status."""
    return reply.status == 202 and not is_marked(t, reply) and link_to_status(reply) is not None


def link_to_status(reply: Reply) -> str | None:
    """Return the target of the reply's Link with rel="status"."""
    return status_link(", ".join(value for name, value in reply.headers if name.lower() == "link"))


def count_answers(t: Try, replies: Sequence[Reply]) -> int:
    """Count the distinct successful answers, or the distinct accepted operations if there are more."""
    accepted = {link_to_status(reply) for reply in replies if is_accepted(t, reply)}
    return max(len({reply.body for reply in replies if reply.ok and not is_accepted(t, reply)}), len(accepted))


async def is_first_answer(t: Try, first: Reply, other: Reply) -> bool:
    """Return whether another request got the first one's answer without an effect of its own."""
    if not other.ok or is_marked(t, other):
        return other.ok
    return bool(first.body) and other.body == first.body and await t.count_new_effects() < 2


async def not_replayed(t: Try, first: Reply, other: Reply, what: str) -> None:
    """Raise Failed if another request got the first one's answer, a 5xx (except 501) or no answer.

    Equal bodies count as one answer unless the other request had its own effect: an API may answer "OK" to everything.
    """
    if await is_first_answer(t, first, other):
        raise Failed(f"{what} got {other.text()} with the first request's answer")
    if (other.status >= 500 and other.status != 501) or not other.status:  # 501: the API lacks this method
        raise Failed(f"{what} got {other.text()}")


def tally(replies: Sequence[Reply]) -> str:
    """Count equal answers."""
    texts = [reply.text() for reply in replies]
    return ", ".join(f"{texts.count(text)} × {text}" for text in sorted(set(texts)))


def problem(reply: Reply) -> dict[str, Any]:
    """Return the members of a problem document, or of any JSON object."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def has_link(reply: Reply) -> bool:
    """Return whether an error links to documentation, by a Link header or a URI in its body."""
    link = ", ".join(value for name, value in reply.headers if name.lower() == "link").lower()
    if "describedby" in link or 'rel="help"' in link or "rel=help" in link:
        return True
    return any(isinstance(value, str) and "://" in value for value in problem(reply).values())


def expect_problem(reply: Reply) -> None:
    """Raise Failed if a refusal does not have the media type of a problem document."""
    if reply.media_type != "application/problem+json":
        raise Failed(f"{reply.text()} has the Content-Type {reply.header('content-type') or '(none)'}")
