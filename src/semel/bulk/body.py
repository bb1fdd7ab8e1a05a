"""A reader for the items of a request's body: a JSON array, or JSON lines, piece by piece, without IO.

Items stay bytes, so that numbers keep every digit; ``bulk/rules`` checks each item when it names it. Memory holds one
item and one piece.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Literal

from semel.errors import BulkRefused, RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json

Form = Literal["array", "lines"]
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT: Final = rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+'
# A whole string, object or array of plain values; a lone quote begins one that continues in the next piece.
_MARK: Final = re.compile(_STRING + rb"|\{" + _FLAT + rb"\}|\[" + _FLAT + rb'\]|[\[\]{},"]', re.DOTALL)
_IN_STRING: Final = re.compile(rb'["\\]')
_SPACE: Final = b" \t\r\n"
_OUTSIDE: Final = re.compile(rb'["\[\]{}:]')
_WHOLE_STRING: Final = re.compile(_STRING, re.DOTALL)
AROUND_BYTES_MAX: Final = 16 * 1024  # of an object without its items


class ItemReader:
    """Cuts a body into items.

    Parameters: ``form`` of the body; ``item_bytes_max`` of one item; ``items_at`` the path to the array in an object,
    if a body may be one. The rest of that object is its ``envelope``.

    >>> reader = ItemReader("array", 100)
    >>> [*reader.feed(b'[{"n": 1.0}, "a'), *reader.feed(b',]"]'), *reader.end()]
    [b'{"n": 1.0}', b'"a,]"']
    >>> reader = ItemReader("lines", 100)
    >>> [*reader.feed(b"1\\n\\n[2,\\n"), *reader.end()], reader.line_of(1)
    ([b'1', b'[2,'], 3)
    >>> reader = ItemReader("array", 100, ("items",))
    >>> [*reader.feed(b'{"dryRun": true, "items": [1, 2]}'), *reader.end()], reader.envelope
    ([b'1', b'2'], b'{"dryRun":true,"items":null}')
    """

    def __init__(self, form: Form, item_bytes_max: int, items_at: tuple[str, ...] = ()) -> None:
        self._form = form
        self._item_bytes_max = item_bytes_max
        self._around = _Around(items_at) if items_at and form == "array" else None
        self.envelope = b""  # canonical, the array as null; empty for none, and for an object of the array alone
        self._rest = b""
        self._count = 0
        # lines: how many blank lines precede an item, noted where that changes
        self._line = 0
        self._gap_places: list[int] = []
        self._gaps: list[int] = []
        # an array
        self._begun = self._ended = self._in_string = self._escaped = False
        self._depth = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Return the items that end in a piece of the body. Raises BulkRefused, with the place."""
        if self._around is not None and not self._begun:
            inside = self._around.find(piece)
            if inside is None:
                return
            self._begun, piece = True, inside
        yield from self._lines(piece) if self._form == "lines" else self._array(piece)
        if len(self._rest) > self._item_bytes_max:
            raise self._wrong(f"it has more than {self._item_bytes_max} bytes", "ITEM_TOO_LARGE")

    def end(self) -> Iterator[bytes]:
        """Return the last item, if only the end of the body ends it. Raises BulkRefused if the body ends too early."""
        if self._form == "lines":
            yield from self._lines(b"\n")
        elif not self._ended:
            if self._around is not None and not self._begun:
                raise self._around.missing()
            raise self._wrong("the array in the body does not end" if self._begun else "it is not a JSON array")
        elif self._around is not None:
            self.envelope = self._around.canonical()

    def line_of(self, place: int) -> int | None:
        """Return the line of an item, from 1; None in an array."""
        if self._form == "array":
            return None
        at = bisect_right(self._gap_places, place)
        return place + 1 + (self._gaps[at - 1] if at else 0)

    def _wrong(self, message: str, code: str = "ITEM_MALFORMED") -> BulkRefused:
        return BulkRefused(self._count, None, message, code)

    def _item(self, raw: bytes) -> bytes:
        self._count += 1
        return raw

    def _lines(self, piece: bytes) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for raw in whole:
            self._line += 1
            if not raw.strip(_SPACE):
                continue
            gap = self._line - self._count - 1
            if gap and (not self._gaps or self._gaps[-1] != gap):
                self._gap_places.append(self._count)
                self._gaps.append(gap)
            yield self._item(raw.strip(_SPACE))

    def _array(self, piece: bytes) -> Iterator[bytes]:
        at = 0
        if not self._begun:
            piece = piece.lstrip(_SPACE)
            if not piece:
                return
            if not piece.startswith(b"["):
                raise BulkRefused(None, None, "the body is not a JSON array; send JSON lines as application/jsonl")
            self._begun, at = True, 1
        start = at
        while not self._ended:
            found = self._next_mark(piece, at)
            if found is None:
                self._rest = (self._rest + piece[start:]).lstrip(_SPACE)
                return
            mark, at = piece[found.start() : found.end()], found.end()
            if mark in (b"[", b"{"):
                self._depth += 1
            elif self._depth and mark in (b"]", b"}"):
                self._depth -= 1
            elif not self._depth and mark != b'"' and len(mark) == 1:
                raw = (self._rest + piece[start : found.start()]).strip(_SPACE)
                self._rest, start = b"", at
                if mark == b"}" or (not raw and (mark == b"," or self._count)):
                    raise self._wrong("it is not one JSON value" if raw else "it is missing: there is an extra comma")
                self._ended = mark == b"]"
                if raw:
                    yield self._item(raw)
        if self._around is not None and self._ended:
            self._around.behind(piece[at:])
        elif piece[at:].strip(_SPACE):
            raise self._wrong("the body continues after the end of the array")

    def _next_mark(self, piece: bytes, at: int) -> re.Match[bytes] | None:
        """Find the next bracket or comma outside of strings, or a whole string; None: the piece is over."""
        while True:
            if self._escaped and at < len(piece):
                self._escaped, at = False, at + 1
            if not self._in_string:
                found = _MARK.search(piece, at)
                if found is None or found[0] != b'"':
                    return found
                self._in_string, at = True, found.end()
            found = _IN_STRING.search(piece, at)
            if found is None:
                return None
            at = found.end()
            if found[0] == b"\\":
                self._escaped = True
                if at == len(piece):
                    return None
            else:
                self._in_string = False


class _Around:
    """The object around an array of items: finds the array as the body comes in, and keeps the rest of it."""

    def __init__(self, items_at: tuple[str, ...]) -> None:
        self._items_at = list(items_at)
        self._before = bytearray()
        self._behind = bytearray()
        self._at = 0
        self._text = b""  # the last string, which is a member's name where a colon follows
        self._path: list[str | None] = []  # the current member of each open object; None in an array

    def find(self, piece: bytes) -> bytes | None:
        """Return the part of the body after the array's opening bracket; None until it arrives."""
        self._before += piece
        start = len(self._before) - len(self._before.lstrip(_SPACE))
        if self._before[start : start + 1] == b"[":
            return self._cut(start)
        if start < len(self._before) and self._before[start : start + 1] != b"{":
            raise BulkRefused(None, None, f"the body is neither a JSON array nor an object with one at {self._pointer}")
        while (found := _OUTSIDE.search(self._before, self._at)) is not None:
            mark, self._at = found[0], found.end()
            if mark == b'"':
                whole = _WHOLE_STRING.match(self._before, found.start())
                if whole is None:  # it goes on in the next piece
                    self._at = found.start()
                    break
                self._text, self._at = whole[0], whole.end()
            elif mark == b"[" and self._path == self._items_at:
                return self._cut(found.start())
            else:
                self._step(mark)
        else:
            self._at = len(self._before)
        self._check_size()
        return None

    def _step(self, mark: bytes) -> None:
        if mark == b"{":
            self._path.append("")
        elif mark == b"[":
            self._path.append(None)
        elif mark == b":" and self._path and self._path[-1] is not None:
            try:
                self._path[-1] = str(json.loads(self._text))
            except ValueError:
                raise self._refuse_malformed() from None
        elif mark in (b"}", b"]"):
            if not self._path:
                raise self._refuse_malformed()
            self._path.pop()

    def _cut(self, bracket: int) -> bytes:
        rest = bytes(self._before[bracket + 1 :])
        del self._before[bracket:]
        self._check_size()
        return rest

    def behind(self, piece: bytes) -> None:
        """Consume the part after the array."""
        self._behind += piece
        self._check_size()

    def _check_size(self) -> None:
        if len(self._before) + len(self._behind) > AROUND_BYTES_MAX:
            message = f"the object around its items has more than {AROUND_BYTES_MAX} bytes"
            raise BulkRefused(None, None, message, "ITEM_TOO_LARGE")

    def canonical(self) -> bytes:
        """Return the object without its items, in canonical form; empty if it has nothing else."""
        if not self._before.strip(_SPACE) and not self._behind.strip(_SPACE):
            return b""
        try:
            canonical = canonical_json(bytes(self._before + b"null" + self._behind))
        except RequestTooLarge as error:
            raise BulkRefused(None, None, str(error), "ITEM_TOO_LARGE") from None
        if canonical is None:
            raise self._refuse_malformed()
        alone: object = None
        for name in reversed(self._items_at):
            alone = {name: alone}
        return b"" if json.loads(canonical) == alone else canonical

    def missing(self) -> BulkRefused:
        """Return the error for an object without the array."""
        return BulkRefused(None, None, f"the body is not a JSON array, and has none at {self._pointer}")

    def _refuse_malformed(self) -> BulkRefused:
        return BulkRefused(None, None, "the body is not a JSON object in UTF-8, or repeats a member")

    @property
    def _pointer(self) -> str:
        return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in self._items_at)
