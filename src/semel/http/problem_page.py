"""The page behind the links of problem documents: the meaning of each code, and the client's next action.

Served beside the status of operations, and published as docs/problems.md (``python docs/make_problems.py``).
"""

from __future__ import annotations

import functools
import html
from typing import Final, NamedTuple

from semel.core.model import Answer
from semel.http.problems import anchor_of


class ProblemEntry(NamedTuple):
    """One code: its status, its meaning, and what to do."""

    code: str
    status: int
    happened: str
    remedy: str


ENTRIES: Final = (
    ProblemEntry(
        "MISSING_IDEMPOTENCY_KEY",
        400,
        "The operation requires a key, and the request has none. Nothing was done.",
        "Make one key for this intent, such as a UUID, keep it with the intent, and send it with every attempt.",
    ),
    ProblemEntry(
        "INVALID_IDEMPOTENCY_KEY",
        400,
        "The key is malformed, or not of the format that the operation asks for. Nothing was done.",
        "Send one key of 1 to 255 visible ASCII characters. Where `keyAction` is `query` the key is too old: check "
        "by your business reference whether the command was done.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_REQUEST_INVALID",
        400,
        "The body does not match its length, its digest or its media type. Nothing was done, and the key is unused.",
        "Send the corrected request with the same key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_OPERATION_MISSPELLED",
        400,
        "The method or the path is not spelled as the operation declares it (`//pay`, `/pay/`, `post`).",
        "Use the spelling given in `detail`, with the same key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_OPERATION_NOT_DECLARED",
        400,
        (
            "No operation is declared for this method and path, and this server refuses requests that it does not "
            "protect."
        ),
        "Correct the method or the path.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_CALLER_UNKNOWN",
        401,
        "A key means something only for its caller, and the caller is not known. Nothing was done.",
        "Authenticate, and send the same request with the same key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_CALLER_NOT_ALLOWED",
        403,
        (
            "You are not, or are no longer, allowed to do this. Nothing was done, and nothing about earlier requests "
            "is shown."
        ),
        "Obtain the permission, and send the same request with the same key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_BODY_TOO_SLOW",
        408,
        "The body did not arrive in time. Nothing was done.",
        "Send the same request again with the same key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_REQUEST_IN_PROGRESS",
        409,
        "The first request with this key is still running, or another one with the same business reference is.",
        "Ask again with the same key after `Retry-After`, or ask for the status of the operation.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_OUTCOME_UNKNOWN",
        409,
        "The command ran, but its outcome cannot be proven: it may have taken effect.",
        "Keep the key, and ask for the status of the operation until it is settled. Never send it under a new key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_RECORD_EXPIRED",
        409,
        "The command was done. Its answer is no longer stored; only the fact is.",
        "Look for the result by your business reference. A new key would run the command again.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_REFERENCE_TAKEN",
        409,
        "Another caller's command has this business reference. Nothing was done for yours.",
        "Use your own reference.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE",
        409,
        "The command was done, and its answer was not kept: it was too long, or a stream.",
        "Read the `resource`, or ask for the status of the operation. Do not send it again.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_REQUEST_TOO_LARGE",
        413,
        "The body is larger, or nested deeper, than the server accepts. Nothing was done.",
        "Send less.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST",
        422,
        "Another request of yours has this key. `state` and `operation` give the outcome of that request. Nothing was "
        "done for this one.",
        "Where `keyAction` is `query`, look that request up first; once it has ended, use a new key if you want this "
        "request as well.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_TOO_EARLY",
        425,
        "Commands are not accepted as TLS early data, which an attacker can replay. Nothing was done.",
        "Send it again with the same key, after the handshake.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_KEY_QUOTA_EXCEEDED",
        429,
        "The key is new, and you have sent as many new keys as your quota allows, or too many of your commands are "
        "unfinished or have an unknown outcome. Nothing was done.",
        "Send the same request with the same key after `Retry-After`. Retries of keys that are on record are answered "
        "meanwhile.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_RECORD_UNREADABLE",
        500,
        "The stored record is corrupt, or was written by a version that this server does not understand.",
        "Keep the key and tell the operator. The command never runs again automatically.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_ANSWER_TOO_LARGE",
        500,
        "The answer was too large to be kept with the effect, so everything was rolled back: nothing happened.",
        "Tell the developers: the operation's `answer_bytes_max` is too small.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_NOT_PASSED_ON",
        501,
        "The reverse proxy does not forward WebSockets or tunnels. Nothing was done.",
        "Reach the service in another way.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_UPSTREAM_UNREACHABLE",
        502,
        "The service behind the reverse proxy cannot be reached. Nothing was done.",
        "Send the same request again with the same key after `Retry-After`.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_UPSTREAM_BROKE_OFF",
        502,
        "The service behind the reverse proxy got the request, and its answer was cut off: it may have been done.",
        "Where `retryable` is true, send it again with the same key. Otherwise ask for the status of the operation.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_STORE_UNAVAILABLE",
        503,
        "The command store did not answer, or an ATOMIC command did not end in time and was rolled back. Nothing was "
        "done, unless `detail` says that the commit was not confirmed, or that the command continues.",
        "Retry after `Retry-After`, with the same key.",
    ),
    ProblemEntry(
        "IDEMPOTENCY_UPSTREAM_TIMEOUT",
        504,
        "The service behind the reverse proxy did not answer in time: it may have been done, or be running still.",
        "Where `retryable` is true, send it again with the same key. Otherwise ask for the status of the operation.",
    ),
    ProblemEntry(
        "ITEM_MALFORMED",
        400,
        "An item of a list is not a JSON value, or its name is not valid.",
        "Correct it at `place`.",
    ),
    ProblemEntry("DUPLICATE_ITEM_ID", 400, "Two items of a list have the same name.", "Give each item a unique name."),
    ProblemEntry("NO_ITEMS", 400, "The list is empty.", "Send items."),
    ProblemEntry("ITEM_TOO_LARGE", 413, "One item of a list is too large.", "Send less in it."),
    ProblemEntry("TOO_MANY_ITEMS", 413, "The list has too many items.", "Send it in parts, each with its own key."),
    ProblemEntry(
        "LIST_MEDIA_TYPE",
        415,
        "The body is neither a JSON array nor JSON lines.",
        "Send `application/json` or `application/jsonl`, uncompressed.",
    ),
    ProblemEntry(
        "OPERATION_QUERY_INVALID",
        400,
        "The request names no operation, has a malformed key, or fits several operations.",
        "Ask by the operation's link, or by `?key=` and `&operation=`.",
    ),
    ProblemEntry(
        "OPERATION_NOT_FOUND",
        404,
        "You have no such operation: it never existed, it has expired, or it belongs to another caller.",
        "Look by your business reference before you send the command again.",
    ),
)

_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Problems of idempotent requests</title></head><body>
<h1>Problems of idempotent requests</h1>
<p>What each <code>code</code> of a problem document means, and what to do. <code>keep</code> the key unless
<code>keyAction</code> says otherwise; retry only where <code>retryable</code> is true.</p>
"""


@functools.cache
def problem_page() -> Answer:
    """The page as an answer, with an anchor for each code."""
    parts = [_HEAD]
    for entry in ENTRIES:
        parts.append(f'<h2 id="{anchor_of(entry.code)}">{entry.code} ({entry.status})</h2>\n')
        parts += [f"<p>{_mark_up(text)}</p>\n" for text in (entry.happened, entry.remedy)]
    body = "".join([*parts, "</body></html>\n"]).encode()
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"cache-control", b"public, max-age=3600"),
        (b"content-security-policy", b"default-src 'none'"),
        (b"content-length", b"%d" % len(body)),
    )
    return Answer(200, headers, body)


def _mark_up(text: str) -> str:
    """Backquotes as code."""
    pieces = html.escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
