"""The items of a request's body as they come in: a JSON array, or JSON lines, piece by piece, without IO.

Items leave as the bytes they are, so that numbers keep every digit; what each of them is, is checked where the list is
named (``rules/items``). Memory holds one item and one piece.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Literal

from semel.errors import BulkRefused

Form = Literal["array", "lines"]
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT: Final = rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+'
# A whole string, object or array of plain values; a quote by itself begins one that goes on in the next piece.
_MARK: Final = re.compile(_STRING + rb"|\{" + _FLAT + rb"\}|\[" + _FLAT + rb'\]|[\[\]{},"]', re.DOTALL)
_IN_STRING: Final = re.compile(rb'["\\]')
_SPACE: Final = b" \t\r\n"


class ItemReader:
    """Cuts a body into items.

    Parameters: ``form`` of the body; ``item_bytes_max`` of one item.

    >>> reader = ItemReader("array", 100)
    >>> [*reader.feed(b'[{"n": 1.0}, "a'), *reader.feed(b',]"]'), *reader.end()]
    [b'{"n": 1.0}', b'"a,]"']
    >>> reader = ItemReader("lines", 100)
    >>> [*reader.feed(b"1\\n\\n[2,\\n"), *reader.end()], reader.line_of(1)
    ([b'1', b'[2,'], 3)
    """

    def __init__(self, form: Form, item_bytes_max: int) -> None:
        self._form = form
        self._item_bytes_max = item_bytes_max
        self._rest = b""
        self._count = 0
        # lines: after how many blank lines an item stands, noted where that changes
        self._line = 0
        self._gap_places: list[int] = []
        self._gaps: list[int] = []
        # an array
        self._begun = self._ended = self._in_string = self._escaped = False
        self._depth = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The items that end in a piece of the body. Raises BulkRefused, with the place."""
        yield from self._lines(piece) if self._form == "lines" else self._array(piece)
        if len(self._rest) > self._item_bytes_max:
            raise self._wrong(f"it has more than {self._item_bytes_max} bytes", "ITEM_TOO_LARGE")

    def end(self) -> Iterator[bytes]:
        """The last item, where nothing else ends it. Raises BulkRefused where the body ends too early."""
        if self._form == "lines":
            yield from self._lines(b"\n")
        elif not self._ended:
            raise self._wrong("the array that the body begins does not end" if self._begun else "it is no JSON array")

    def line_of(self, place: int) -> int | None:
        """The line of an item, from 1; None in an array."""
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
                raise BulkRefused(None, None, "the body is no JSON array; JSON lines are sent as application/jsonl")
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
                    raise self._wrong("it is not one JSON value" if raw else "it is missing: a comma too many")
                self._ended = mark == b"]"
                if raw:
                    yield self._item(raw)
        if piece[at:].strip(_SPACE):
            raise self._wrong("something stands behind the end of the array")

    def _next_mark(self, piece: bytes, at: int) -> re.Match[bytes] | None:
        """The next bracket or comma outside of strings, or a whole string; None: the piece is over."""
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
