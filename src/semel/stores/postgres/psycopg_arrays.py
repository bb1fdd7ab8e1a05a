"""The columns of a batch as PostgreSQL's binary arrays.

psycopg writes a list down as text, item by item and with a pattern for what must be quoted: of a batch of claims that
took longer than everything else together. The statements name each array's type, so that nothing has to be guessed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from struct import Struct
from typing import Any, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from semel.errors import StatementRefused
from semel.stores.sql.statements import Statement

_HEAD: Final = Struct("!iIIii")  # dimensions, whether there are NULLs, type of the items, how many, index of the first
_EMPTY: Final = Struct("!iII")
_LENGTH: Final = Struct("!i").pack
_NULL: Final = _LENGTH(-1)
Write = Callable[[Sequence[Any]], Iterable[bytes]]  # items as they follow each other in an array
_ARRAY: Final = re.compile(r"(?<!:):([a-z_]+)::([a-z]+)\[\]")


class Array(bytes):
    """An array as the server reads it. One subclass for each type, because that is how psycopg finds what to send."""

    __slots__ = ()


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


# Whole columns, and without a step of Python for each item: there are twenty to a claim.


def _numbers(form: str) -> Write:
    pack, size = Struct(f"!i{form}").pack, Struct(f"!{form}").size
    return lambda items: map(pack, repeat(size), items)


def _bytes(items: Sequence[bytes]) -> Iterable[bytes]:
    return chain.from_iterable(zip(map(_LENGTH, map(len, items)), items, strict=True))


def _texts(items: Sequence[str]) -> Iterable[bytes]:
    return _bytes(list(map(str.encode, items)))


def _array(name: str, oid: int) -> type[Array]:
    kind = type(name, (Array,), {"__slots__": ()})
    psycopg.adapters.register_dumper(kind, type(f"{name}Dumper", (_ArrayDumper,), {"oid": oid}))
    return kind


_KINDS: Final[Mapping[str, tuple[type[Array], int, Write]]] = {
    # by the name of an item's type: how the array is known to psycopg, the item's oid, and how items are written
    "smallint": (_array("SmallintArray", 1005), 21, _numbers("h")),
    "integer": (_array("IntegerArray", 1007), 23, _numbers("i")),
    "bigint": (_array("BigintArray", 1016), 20, _numbers("q")),
    "text": (_array("TextArray", 1009), 25, _texts),
    "bytea": (_array("ByteaArray", 1001), 17, _bytes),
}


def with_arrays(statement: Statement, values: list[Any]) -> list[Any]:
    """The values of a statement's ``$1``, ``$2``…, with its arrays written down.

    Raises StatementRefused: an item is not of its column's type, or too large for it. Nothing was sent.
    """
    for place, kind in _arrays(statement.text, statement.distinct):
        items = values[place]
        if type(items) is list:
            try:
                values[place] = pack(items, kind)
            except (struct.error, TypeError, AttributeError, UnicodeError) as error:
                raise StatementRefused(f"PostgreSQL cannot take these values: {error}") from error
    return values


@cache
def _arrays(text: str, distinct: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Which of a statement's values are arrays, and of what."""
    return tuple((distinct.index(name), kind) for name, kind in dict(_ARRAY.findall(text)).items())


def pack(items: Sequence[Any], kind: str) -> Array:
    """One array.

    Raises struct.error, TypeError, AttributeError or UnicodeError: an item is not of this type.

    >>> pack([1, None], "smallint").hex(" ", -4)
    '00000001 00000001 00000015 00000002 00000001 00000002 0001ffff ffff'
    """
    known, oid, write = _KINDS[kind]
    if not items:
        return known(_EMPTY.pack(0, 0, oid))
    nulls = items.count(None)
    head = _HEAD.pack(1, nulls > 0, oid, len(items), 1)
    if nulls == len(items):
        return known(head + _NULL * nulls)
    written = write(items) if not nulls else [_NULL if item is None else b"".join(write((item,))) for item in items]
    return known(head + b"".join(written))
