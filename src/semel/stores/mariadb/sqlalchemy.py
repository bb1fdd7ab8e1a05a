"""SQLAlchemy on a unit's connection: an UPDATE counts all rows that it found, changed or not.

SQLAlchemy opens its own connections with ``CLIENT.FOUND_ROWS``; its ORM assumes that a row missing from the count was
deleted by another process. A unit's connection counts changed rows, the default of its library, because a handler may
write on it without SQLAlchemy. The server sends both numbers, so SQLAlchemy's cursors read the count of found rows.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from sqlalchemy.engine import Dialect

_UPDATE: Final = re.compile(r"(?:\s|(?>/\*.*?\*/)|--\s[^\n]*\n|#[^\n]*\n)*+UPDATE\b", re.IGNORECASE | re.DOTALL)
_NUMBER: Final = re.compile(rb"\d+")


def count_found_rows(dialect: Dialect) -> None:
    """Have the cursors of a dialect for units count found rows. Parameters: ``dialect`` of PyMySQL or asyncmy."""
    kind = _FoundRowsAsync if dialect.is_async else _FoundRows
    known = dialect.execution_ctx_cls
    dialect.execution_ctx_cls = type(f"{known.__name__}OfUnit", (kind, known), {})


def found_rows(query: str, message: bytes | None, counted: int) -> int:
    """Read how many rows a statement found from its message, whose words are in the server's language.

    >>> found_rows("UPDATE cart SET n = 1", b"Rows matched: 3  Changed: 1  Warnings: 0", 1)
    3
    >>> found_rows("/* by */" * 40 + "INSERT IGNORE INTO cart VALUES (1), (2)", b"Records: 2  Duplicates: 1", 1)
    1
    """
    if not message or _UPDATE.match(query) is None:
        return counted
    found = _NUMBER.search(message)
    return counted if found is None else int(found[0])


class _FoundRows:
    """An execution context through PyMySQL."""

    dialect: Any
    root_connection: Any

    def create_default_cursor(self) -> Any:
        """Create a cursor that counts found rows."""
        return self.root_connection.connection.cursor(_counting(self.dialect.dbapi.cursors.Cursor))


class _FoundRowsAsync:
    """The same through asyncmy, whose cursors SQLAlchemy makes and adapts."""

    dialect: Any
    root_connection: Any

    def create_default_cursor(self) -> Any:
        """Create a cursor that counts found rows."""
        unit = self.root_connection.connection.driver_connection
        known = unit._cursor_cls
        unit._cursor_cls = _counting_async(self.dialect.dbapi.asyncmy.cursors.Cursor)
        try:
            return super().create_default_cursor()  # type: ignore[misc]
        finally:
            unit._cursor_cls = known


@lru_cache
def _counting(cursor: Any) -> Any:
    class CountingCursor(cursor):  # type: ignore[misc]
        rowcount: int

        def execute(self, query: str, args: Any = None) -> int:
            super().execute(query, args)
            self.rowcount = found_rows(query, self._result.message, self.rowcount)
            return self.rowcount

    return CountingCursor


@lru_cache
def _counting_async(cursor: Any) -> Any:
    class AsyncCountingCursor(cursor):  # type: ignore[misc]
        rowcount: int

        async def execute(self, query: str, args: Any = None) -> int:
            await super().execute(query, args)
            self.rowcount = found_rows(query, self._result.message, self.rowcount)
            return self.rowcount

    return AsyncCountingCursor
