"""Sends statements in the round trip of one of asyncpg's own, in front of it: asyncpg cannot do so by itself.

asyncpg ends each statement with a Sync, which the server answers. What is written just before it without one travels in
the same trip, and the server skips all that follows the first refusal. asyncpg reads past the answers of such
statements as long as they return no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct, pack
from typing import Any, Final

import asyncpg

from semel.stores.postgres.psycopg.pipeline import to_libpq

IS_KNOWN: Final = asyncpg.__version__.startswith("0.32.")
"""Whether the parts of asyncpg that this rests on were read in this version. In any other, each statement has its own
round trip."""
_HEAD: Final = Struct("!ci").pack  # a message's type and its length, which counts itself
_LENGTH: Final = Struct("!i").pack
_SHORT: Final = Struct("!h").pack
_NULL: Final = _LENGTH(-1)
_NO_COLUMNS: Final = _SHORT(0)  # whose form is chosen
_EXECUTE: Final = _HEAD(b"E", 9) + b"\0" + _LENGTH(0)  # the unnamed portal, to its last row
_BIND_NAMELESS: Final = _HEAD(b"B", 12) + b"\0\0" + _SHORT(0) * 3


@cache
def plain(*texts: str) -> bytes:
    """Write the messages of statements that take no values and return no rows, such as BEGIN.

    >>> plain("BEGIN").hex(" ", -4)
    '50000000 0d004245 47494e00 00004200 00000c00 00000000 00000045 00000009 00000000 00'
    """
    said = b""
    for text in texts:
        parse = b"\0%b\0%b" % (text.encode(), _SHORT(0))
        said += _HEAD(b"P", len(parse) + 4) + parse + _BIND_NAMELESS + _EXECUTE
    return said


def execute_prepared(name: str, values: Sequence[Any]) -> bytes:
    """Write the messages of a prepared statement that returns no rows.

    Raises psycopg.DataError or UnicodeEncodeError: a text cannot be written down.
    """
    items, forms = to_libpq(values, None)
    framed = [_NULL if item is None else _LENGTH(len(item)) + item for item in items]
    bind = b"".join([b"\0", name.encode(), b"\0", _forms(tuple(forms)), *framed, _NO_COLUMNS])
    return _HEAD(b"B", len(bind) + 4) + bind + _EXECUTE


@cache  # statements have few patterns of types
def _forms(forms: tuple[int, ...]) -> bytes:
    """Return the form in which each value is sent, and the number of values."""
    return pack(f"!{len(forms) + 2}h", len(forms), *forms, len(forms))


class PipedValues(list[Any]):
    """The values of asyncpg's own statement, which writes the other messages just before it.

    asyncpg asks for their number when it has made sure that nothing else is under way on the connection.
    """

    __slots__ = ("_messages", "_transport")

    def __init__(self, values: Sequence[Any], transport: Any, messages: bytes) -> None:
        super().__init__(values)
        self._transport = transport
        self._messages = messages

    def __len__(self) -> int:
        messages, self._messages = self._messages, b""
        if messages:
            self._transport.write(messages)
        return super().__len__()

    @property
    def is_written(self) -> bool:
        """Whether asyncpg has asked, so that the messages have left."""
        return not self._messages


__all__ = ["IS_KNOWN", "PipedValues", "execute_prepared", "plain"]
