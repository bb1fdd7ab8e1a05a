"""The response headers that are stored and replayed, and those that never are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from semel.policy import NEVER_REPLAYED

BODYLESS_STATUSES: Final = frozenset({204, 205, 304})
BLANKS: Final = b" \t"  # optional whitespace around a field's value, which is no part of it (RFC 9110, section 5.5)
find_control: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


def sendable(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers without blanks around their values, and without those that would break an answer in two.

    >>> sendable([(b"etag", b" x\\t"), (b"link", b"a\\r\\nb")])
    [(b'etag', b'x')]
    """
    return [(name, value.strip(BLANKS)) for name, value in headers if find_control(value) is None]


def replayable(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Headers as replays have them: with lower-case names, and without those that belong to one connection or caller.

    Raises TypeError where one is not made of bytes.

    >>> replayable([(b"ETag", b" x"), (b"Content-Length", b"9"), (b"Set-Cookie", b"a=b")])
    ((b'etag', b'x'),)
    """
    lines = [(bytes(memoryview(name)).lower(), bytes(memoryview(value))) for name, value in headers]
    return tuple(sendable(pair for pair in lines if pair[0] not in NEVER_REPLAYED))
