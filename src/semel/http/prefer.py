"""``Prefer: wait=N`` (RFC 7240): how long a client is willing to wait for a running duplicate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A preference whose name is a token, with an optional value (token or quoted string); parameters are skipped.
_PREFERENCE = re.compile(
    rb"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^",;\s]*+)))?+"""
    rb"""(?:"(?:[^"\\]|\\.)*+"|[^",])*+(?:,|$)"""
)
_LINE_BYTES_MAX = 1024
_DIGITS_MAX = 9


def prefers_async(lines: Iterable[bytes]) -> bool:
    """Whether there is a ``respond-async`` preference.

    >>> prefers_async([b"wait=10, respond-async"]), prefers_async([b"respond-async-not"]), prefers_async([])
    (True, False, False)
    """
    return any(found[1].lower() == b"respond-async" for found in _preferences(lines))


def parse_wait(lines: Iterable[bytes]) -> int | None:
    """The seconds of the first ``wait`` preference, or None. Malformed preferences are ignored, as the RFC requires.

    >>> parse_wait([b"respond-async, wait=10"]), parse_wait([b"wait=soon"]), parse_wait([])
    (10, None, None)
    """
    for found in _preferences(lines):
        if found[1].lower() == b"wait":
            value = found[2] if found[2] is not None else found[3]
            return int(value) if value and value.isdigit() and len(value) <= _DIGITS_MAX else None
    return None


def _preferences(lines: Iterable[bytes]) -> Iterator[re.Match[bytes]]:
    for line in lines:
        if len(line) > _LINE_BYTES_MAX:
            continue
        at = 0
        while at < len(line):
            found = _PREFERENCE.match(line, at)
            if found is None:
                break
            yield found
            at = found.end()
