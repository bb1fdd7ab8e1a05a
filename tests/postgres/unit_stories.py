"""What the tests of units on PostgreSQL have in common: how a handler fails, and what its drivers raise."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import psycopg

from semel import Answer
from tests.engine.shells import MADE
from tests.postgres.conftest import Fellow, Writes

REFUSED = Answer(409, (), b"out of stock")
MakeFellow = Callable[..., Fellow]
DATABASE_ERRORS = (psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError)


class Failed(Exception):
    """The handler gives up."""


class Gone(BaseException):
    """Not even an Exception."""


async def made_two(db: Writes) -> Answer:
    await db.insert(2)
    return MADE
