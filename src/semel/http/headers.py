"""Headers: those that are stored and replayed, a client's preferences, and those of every answer after a claim.

The last are prepared once for each operation, without reading a store.
"""

from __future__ import annotations

import re
import zlib
from binascii import hexlify
from collections.abc import Iterable, Iterator
from struct import error as StructError
from typing import Final

from semel.core.identity import UUID_PARTS
from semel.policy import NEVER_REPLAYED

BODYLESS_STATUSES: Final = frozenset({204, 205, 304})
BLANKS: Final = b" \t"  # optional whitespace around a field's value, which is not part of it (RFC 9110, section 5.5)
find_control: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


def sendable(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers without blanks around their values, leaving out those that could split a response.

    >>> sendable([(b"etag", b" x\\t"), (b"link", b"a\\r\\nb")])
    [(b'etag', b'x')]
    """
    return [(name, value.strip(BLANKS)) for name, value in headers if find_control(value) is None]


def replayable(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Return headers for replays: with lower-case names, and without those that belong to one connection or caller.

    Raises TypeError if one is not made of bytes.

    >>> replayable([(b"ETag", b" x"), (b"Content-Length", b"9"), (b"Set-Cookie", b"a=b")])
    ((b'etag', b'x'),)
    """
    lines = [(bytes(memoryview(name)).lower(), bytes(memoryview(value))) for name, value in headers]
    return tuple(sendable(pair for pair in lines if pair[0] not in NEVER_REPLAYED))


_WINDOWS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_DECODED_BYTES_MAX: Final = 16 * 1024 * 1024  # the limit of a decoded answer
_OF_A_CODING: Final = frozenset({b"content-encoding", b"content-digest", b"repr-digest", b"digest", b"content-md5"})
_is_zero: Final = re.compile(rb"[ \t]*q[ \t]*=[ \t]*0(?:\.0*)?[ \t]*").fullmatch


def accepts_coding(line: bytes, coding: bytes) -> bool:
    """Return whether an ``Accept-Encoding`` allows a content coding, by name or by ``*``.

    False without the header: RFC 9110 (section 12.5.3) allows any coding then, but no framework compresses.

    >>> [accepts_coding(line, b"gzip") for line in (b"br, GZip", b"*", b"", b"gzip;q=0, *", b"*;q=0.0")]
    [True, True, False, False, False]
    """
    others = False
    for part in line.lower().split(b","):
        name, _, weight = part.partition(b";")
        name = name.strip(BLANKS)
        if name.removeprefix(b"x-") == coding.removeprefix(b"x-"):
            return _is_zero(weight) is None
        if name == b"*":
            others = _is_zero(weight) is None
    return others


def for_client(
    headers: tuple[tuple[bytes, bytes], ...], body: bytes, accepted: bytes
) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return a stored answer for a client with this ``Accept-Encoding``, decoded if it does not accept the coding.

    It is unchanged if it cannot be decoded: in a coding other than gzip or deflate, broken, or of more than 16 MiB.

    >>> import zlib
    >>> for_client(((b"content-encoding", b"deflate"), (b"etag", b'"1"')), zlib.compress(b"long"), b"identity")
    (((b'etag', b'W/"1"'),), b'long')
    """
    codings = [value.strip(BLANKS).lower() for name, value in headers if name == b"content-encoding"]
    window = _WINDOWS.get(codings[0]) if len(codings) == 1 else None
    if window is None or accepts_coding(accepted, codings[0]):
        return headers, body
    decoder = zlib.decompressobj(window)
    try:
        plain = decoder.decompress(body, _DECODED_BYTES_MAX)
    except zlib.error:
        return headers, body
    if not decoder.eof or decoder.unused_data:
        return headers, body
    left = [pair for pair in headers if pair[0] not in _OF_A_CODING]
    weak = [(name, b"W/" + value if name == b"etag" and value[:1] == b'"' else value) for name, value in left]
    return tuple(weak), plain


# A preference whose name is a token, with an optional value (token or quoted string); parameters are skipped.
_PREFERENCE = re.compile(
    rb"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^",;\s]*+)))?+"""
    rb"""(?:"(?:[^"\\]|\\.)*+"|[^",])*+(?:,|$)"""
)
_LINE_BYTES_MAX = 1024
_DIGITS_MAX = 9


def prefers_async(lines: Iterable[bytes]) -> bool:
    """Return whether there is a ``respond-async`` preference.

    >>> prefers_async([b"wait=10, respond-async"]), prefers_async([b"respond-async-not"]), prefers_async([])
    (True, False, False)
    """
    return any(found[1].lower() == b"respond-async" for found in _preferences(lines))


def parse_wait(lines: Iterable[bytes]) -> int | None:
    """Return the seconds of the first ``wait`` preference, or None. Ignores malformed preferences, as the RFC requires.

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


OPERATION_RELATION: Final = "status"  # RFC 8631: a resource with the context's status
Headers = tuple[tuple[bytes, bytes], ...]
_ID: Final = "{id}"
_join: Final = b"-".join


class Honoured:
    """The two headers of every answer of one operation: how long the key is honoured, and where the status is.

    Parameters: ``name`` of the header with the lifetime (None: not sent); ``lifetime_seconds`` during which a retry
    gets the first answer, at least, counted from the first request; ``operations_path`` of the operations' status,
    with ``{id}`` (None: not served).

    >>> Honoured("Idempotency-Key-Lifetime", 86_400, "/operations/{id}").headers(bytes(16))
    ... # doctest: +NORMALIZE_WHITESPACE
    ((b'idempotency-key-lifetime', b'86400'),
     (b'link', b'</operations/00000000-0000-0000-0000-000000000000>; rel="status"'))
    """

    __slots__ = ("_link", "lifetime")

    def __init__(
        self, name: str | None = None, lifetime_seconds: float = 0.0, operations_path: str | None = None
    ) -> None:
        self.lifetime: Headers = () if name is None else ((name.lower().encode(), b"%d" % int(lifetime_seconds)),)
        self._link = b""  # a format string for an operation's id
        if operations_path is not None:
            target = operations_path.replace("%", "%%").replace(_ID, "%b", 1)
            self._link = f'<{target}>; rel="{OPERATION_RELATION}"'.encode()

    def after(self, headers: Headers, operation_id: bytes) -> list[tuple[bytes, bytes]]:
        """Return these headers, followed by those of an answer about this operation."""
        if not self._link:
            return [*headers, *self.lifetime]
        try:
            return [*headers, *self.lifetime, (b"link", self._link % _join(UUID_PARTS(hexlify(operation_id))))]
        except StructError:  # a damaged record: no status can be found without a valid id
            return [*headers, *self.lifetime]

    def headers(self, operation_id: bytes) -> Headers:
        """Return the headers of an answer about this operation."""
        return tuple(self.after((), operation_id))
