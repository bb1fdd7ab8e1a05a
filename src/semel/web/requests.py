"""How the request of a resumable operation is kept: its head on one line, its body behind it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

HEADERS_KEPT: Final = frozenset(
    {b"content-type", b"content-encoding", b"content-language", b"accept", b"accept-language"}
)


def pack_head(method: str, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request's head as it is kept before its body."""
    kept = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers if name in HEADERS_KEPT]
    head = {"method": method, "path": path, "query": query.decode("latin-1"), "headers": kept}
    return json.dumps(head).encode() + b"\n"
