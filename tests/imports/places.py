"""Imports on every database that has an async client: one suite."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from semel import AsyncEngine
from semel.errors import ItemFailed
from semel.imports import Imports, Row, RowInvalid
from tests.bulk.fellows import Home, breaks_the_commit, write

__all__ = ["KINDS", "Place", "breaks_the_commit", "csv_of"]

T = TypeVar("T")
KINDS: Final = ("sqlite-async", "psycopg-async", "asyncpg", "asyncmy")


def csv_of(*numbers: object, header: str = "n") -> bytes:
    """A file of one column."""
    return "\r\n".join([header, *map(str, numbers), ""]).encode()


class Place:
    """A database, an engine on it with its loop, and imports that write a row's number into ``effect``."""

    def __init__(self, kind: str, home: Home) -> None:
        self.kind = kind
        self.home = home
        self.runner = asyncio.Runner()
        self.engine = AsyncEngine(home.backend(kind))
        self.booked: list[int] = []

    def tell(self, story: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(story)

    def imports(self, **options: Any) -> Imports:
        made = Imports(self.engine, **{"operation": "stock.import", "lease_seconds": 1, **options})

        @made.row
        async def book(row: Row) -> str:
            try:
                number = int(row.value["n"])
            except ValueError:
                raise RowInvalid("n", "must be a number") from None
            if number < 0:
                raise ItemFailed("NEGATIVE", written=False)
            if row.connection is not None:
                await write(row, number)  # type: ignore[arg-type]
            if number % 1000 == 999:  # fails behind its write
                raise ItemFailed("NINES")
            if not row.preview:
                self.booked.append(number)
            return f"r-{number}"

        return made

    def close(self) -> None:
        with suppress(asyncio.CancelledError):
            self.tell(self.engine.close())
        self.runner.close()
