"""Which response headers are stored and replayed, and which never are."""

from __future__ import annotations

from typing import Final

# What is replayed beside status and body. Everything else stays with the first answer.
REPLAY_HEADERS: Final = frozenset(
    name.encode()
    for name in (
        "content-type",
        "content-encoding",  # the kept bytes mean nothing without it (decision 0005)
        "content-language",
        "content-disposition",
        "content-location",
        "location",
        "etag",
        "last-modified",
        "link",
        "retry-after",
        "vary",
    )
)
# Never stored, whatever a policy asks for: they belong to one connection, one session or one caller.
NEVER_REPLAYED: Final = frozenset(
    name.encode()
    for name in (
        "set-cookie",
        "set-cookie2",
        "authorization",
        "proxy-authorization",
        "authentication-info",
        "proxy-authentication-info",
        "www-authenticate",
        "proxy-authenticate",
        "x-csrf-token",
        "x-xsrf-token",
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "date",
        "server",
        "age",
    )
)
