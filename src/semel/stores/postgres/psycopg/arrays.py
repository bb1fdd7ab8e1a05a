"""The columns of a batch as PostgreSQL's binary arrays.

psycopg writes a list as text, item by item, with a pattern for what must be quoted. For a batch of claims that took
longer than all the rest. The statements name each array's type, so that nothing has to be guessed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import Any, Final

from semel.errors import StatementRefused
from semel.stores.sql.statements import Statement

_HEAD: Final = Struct("!iIIii")  # dimensions, whether there are NULLs, type of the items, how many, index of the first
_EMPTY: Final = Struct("!iII")
_LENGTH: Final = Struct("!i").pack
_NULL: Final = _LENGTH(-1)
_REPEATED_LETTERS_MAX: Final = 4096  # of a column that is kept
_PLAIN: Final = frozenset({int, type(None)})
Items = Sequence[Any]
_ARRAY: Final = re.compile(r"(?<!:):([a-z_]+)::([a-z]+)\[\]")


def with_arrays(statement: Statement, values: list[Any]) -> list[Any]:
    """Return the values of a statement's ``$1``, ``$2``…, with its arrays written as text.

    Raises StatementRefused: an item is not of its column's type, or too large for it. Nothing was sent.
    """
    try:
        for place, pack in _arrays(statement.text, statement.distinct):
            items = values[place]
            if type(items) is list:
                values[place] = pack(items)
    except (struct.error, TypeError, AttributeError, UnicodeError) as error:
        raise StatementRefused(f"PostgreSQL cannot take these values: {error}") from error
    return values


@cache
def _arrays(text: str, distinct: tuple[str, ...]) -> tuple[tuple[int, Callable[[Items], bytes]], ...]:
    """Return which of a statement's values are arrays, and the function that writes each."""
    return tuple((distinct.index(name), _PACK[kind]) for name, kind in dict(_ARRAY.findall(text)).items())


def pack(items: Items, kind: str) -> bytes:
    """Write one array.

    Raises struct.error, TypeError, AttributeError or UnicodeError: an item is not of this type.

    >>> pack([1, None], "smallint").hex(" ", -4)
    '00000001 00000001 00000015 00000002 00000001 00000002 0001ffff ffff'
    """
    return _PACK[kind](items)


# Whole columns, and without a step of Python for each item: there are twenty to a claim.


def _packs(
    oid: int, write: Callable[[Items], Iterable[bytes]], one: Callable[[Any], bytes]
) -> Callable[[Items], bytes]:
    """Make a writer of arrays of a type. Parameters: ``oid`` of an item; ``write`` items; ``one`` writes one."""
    single = _HEAD.pack(1, 0, oid, 1, 1)
    nothing = _HEAD.pack(1, 1, oid, 1, 1) + _NULL

    # A column of one value, as most are: commands of one operation have their terms, names and holder in common.
    @lru_cache(maxsize=256, typed=True)
    def repeat(item: Any, count: int) -> bytes:
        return whole([item] * count)

    def whole(items: Items) -> bytes:
        nulls, count = items.count(None), len(items)
        head = _HEAD.pack(1, nulls > 0, oid, count, 1)
        if not nulls:
            return head + b"".join(write(items))
        if nulls == count:
            return head + _NULL * nulls
        return head + b"".join([_NULL if item is None else one(item) for item in items])

    def pack(items: Items) -> bytes:
        if not items:
            return _EMPTY.pack(0, 0, oid)
        first, count = items[0], len(items)
        if count == 1:
            return nothing if first is None else single + one(first)
        if type(first) is bytes:  # an id, a digest, a body: another one in each row
            return whole(items)
        if items.count(first) == count:
            kind = type(first)
            if kind in _PLAIN or (kind is str and len(first) * count <= _REPEATED_LETTERS_MAX):
                return repeat(first, count)
        return whole(items)

    return pack


def _numbers(oid: int, form: str) -> Callable[[Items], bytes]:
    write, size = Struct(f"!i{form}").pack, Struct(f"!{form}").size
    return _packs(oid, lambda items: map(write, repeat(size), items), lambda item: write(size, item))


def _bytes(items: Sequence[bytes]) -> Iterable[bytes]:
    return chain.from_iterable(zip(map(_LENGTH, map(len, items)), items, strict=True))


def _one(item: bytes) -> bytes:
    return _LENGTH(len(item)) + item


_PACK: Final[Mapping[str, Callable[[Items], bytes]]] = {
    "smallint": _numbers(21, "h"),
    "integer": _numbers(23, "i"),
    "bigint": _numbers(20, "q"),
    "text": _packs(25, lambda items: _bytes(list(map(str.encode, items))), lambda item: _one(item.encode())),
    "bytea": _packs(17, _bytes, _one),
}
