"""The line of an asyncpg connection, its own or its pool's: Semel's statements on the user's transaction.

Codecs that the user has set on the connection for ``bytea``, ``text`` or the integers reach Semel's statements too:
asyncpg knows no others beside them.
"""

from __future__ import annotations

from typing import Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from semel.errors import JoinRefused, SemelError
from semel.stores.postgres.asyncpg_driver import BROKEN, told
from semel.stores.postgres.join import AUTOCOMMIT, CLOSED, LineFailed

CONNECTIONS: Final = (asyncpg.Connection, PoolConnectionProxy)
_BLOCK: Final = "async with connection.transaction(): …"
_ERRORS: Final = (asyncpg.PostgresError, *BROKEN, asyncpg.DataError, OSError, TimeoutError)


class AsyncpgLine:
    """The transaction of an asyncpg connection. Raises JoinRefused where none is open."""

    def __init__(self, connection: Any) -> None:
        self.target = connection
        self.session = connection._con if isinstance(connection, PoolConnectionProxy) else connection
        if self.session is None or self.session.is_closed():
            raise JoinRefused(CLOSED)
        if not self.session.is_in_transaction():
            raise JoinRefused(AUTOCOMMIT.format(block=_BLOCK))

    async def execute(self, text: str, values: list[Any]) -> list[Any]:
        """Rows as tuples. Raises LineFailed."""
        try:
            return [tuple(row) for row in await self.target.fetch(text, *values)]
        except _ERRORS as error:
            said = told(error)
            assert isinstance(said, SemelError)
            raise LineFailed(getattr(error, "sqlstate", None), said) from error

    def is_open(self) -> bool:
        """Whether a transaction is open."""
        gone = isinstance(self.target, PoolConnectionProxy) and self.target._con is None
        return not gone and self.session.is_in_transaction()

    def is_nested(self) -> bool:
        """Not known: asyncpg leaves a savepoint that it has rolled back to, and counts none."""
        return False

    async def end(self) -> None:
        """Nothing: asyncpg's transactions are begun by their owners."""

    def fail(self) -> None:
        """Nothing: a transaction that has failed can only be rolled back."""
