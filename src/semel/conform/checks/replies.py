"""What a reply says: whether it is a replay, an acceptance or a problem, and what it should not have been."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from semel.client.answers import status_link
from semel.conform.attempt import Failed, Try
from semel.conform.wire import Reply


def is_marked(t: Try, reply: Reply) -> bool:
    """Whether an answer is marked as a replay."""
    return (reply.header(t.case.replayed_header) or "").strip().lower() in ("true", "?1", "1")


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


async def not_replayed(t: Try, first: Reply, other: Reply, what: str) -> None:
    """An answer to another request must not be the first one's.

    Two equal bodies are one answer, unless the other request had its own effect: an API may say "OK" to all of them.
    """
    if await is_first_answer(t, first, other):
        raise Failed(f"{what} got {other.text()} with the first request's answer")
    if (other.status >= 500 and other.status != 501) or not other.status:  # 501: it has no such method
        raise Failed(f"{what} got {other.text()}")


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


def expect_problem(reply: Reply) -> None:
    """A refusal must have the media type of a problem document."""
    if reply.media_type != "application/problem+json":
        raise Failed(f"{reply.text()} has the Content-Type {reply.header('content-type') or '(none)'}")
