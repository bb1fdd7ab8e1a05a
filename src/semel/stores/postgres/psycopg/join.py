"""The lines of psycopg's ``Connection`` and ``AsyncConnection``: Semel's statements on the user's transaction.

The user's row factory, adapters and preparing are theirs: Semel's cursors carry their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from semel.errors import JoinRefused
from semel.stores.postgres.join import AUTOCOMMIT, CLOSED, FAILED, LineFailed
from semel.stores.postgres.psycopg.driver import to_error

_ADAPTERS: Final = AdaptersMap(psycopg.adapters)  # as they were before the application registered more
_BLOCK: Final = "with connection.transaction(): …, or open it without autocommit=True"
_BUSY: Final = "this connection is in the middle of a statement (COPY, or a pipeline of its own); end it first"


class PsycopgLine:
    """The transaction of a ``psycopg.Connection``.

    Parameters: ``connection``; ``target`` what the user gave, where that is a wrapper; ``is_current`` whether the
    wrapper still has this connection; ``is_nested`` whether the wrapper has a savepoint open; ``block`` how a
    transaction is begun there; ``fail`` tells the wrapper that the transaction must not commit; ``begun`` whether the
    wrapper has begun, also if the server has not been asked yet.

    Raises JoinRefused.
    """

    def __init__(
        self,
        connection: Connection[Any],
        *,
        target: Any = None,
        is_current: Callable[[], bool] = lambda: True,
        is_nested: Callable[[], bool] = lambda: True,
        block: str = _BLOCK,
        fail: Callable[[], None] = lambda: None,
        begun: bool = False,
    ) -> None:
        self.session = connection
        self.target = connection if target is None else target
        self._is_current = is_current
        self.is_nested = is_nested
        self._begun = is_begun(connection, block) or begun
        self.fail = fail

    def execute(self, text: str, values: list[Any]) -> list[Any]:
        """Return rows as tuples. Raises LineFailed."""
        cursor = RawCursor(self.session, row_factory=tuple_row)
        cursor._adapters = AdaptersMap(_ADAPTERS)
        try:
            cursor.execute(text.encode(), values, binary=True, prepare=False)
            return cursor.fetchall()
        except psycopg.Error as error:
            raise LineFailed(error.sqlstate, to_error(error)) from error
        finally:
            cursor.close()

    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._is_current() and self.session.info.transaction_status is not TransactionStatus.IDLE

    def end(self) -> None:
        """Roll back what the join began."""
        if not self._begun and not self.session.closed:
            self.session.rollback()


class AsyncPsycopgLine:
    """As :class:`PsycopgLine`, of a ``psycopg.AsyncConnection``."""

    def __init__(
        self,
        connection: AsyncConnection[Any],
        *,
        target: Any = None,
        is_current: Callable[[], bool] = lambda: True,
        is_nested: Callable[[], bool] = lambda: True,
        block: str = f"async {_BLOCK}",
    ) -> None:
        self.session = connection
        self.target = connection if target is None else target
        self._is_current = is_current
        self.is_nested = is_nested
        self._begun = is_begun(connection, block)

    async def execute(self, text: str, values: list[Any]) -> list[Any]:
        """Return rows as tuples. Raises LineFailed."""
        cursor = AsyncRawCursor(self.session, row_factory=tuple_row)
        cursor._adapters = AdaptersMap(_ADAPTERS)
        try:
            await cursor.execute(text.encode(), values, binary=True, prepare=False)
            return await cursor.fetchall()
        except psycopg.Error as error:
            raise LineFailed(error.sqlstate, to_error(error)) from error
        finally:
            await cursor.close()

    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._is_current() and self.session.info.transaction_status is not TransactionStatus.IDLE

    async def end(self) -> None:
        """Roll back what the join began."""
        if not self._begun and not self.session.closed:
            await self.session.rollback()

    def fail(self) -> None:
        """psycopg knows of the failure itself."""


def is_begun(connection: Connection[Any] | AsyncConnection[Any], block: str) -> bool:
    """Whether its owner has begun a transaction on it already. Raises JoinRefused where none can be joined."""
    if connection.closed:
        raise JoinRefused(CLOSED)
    match connection.info.transaction_status:
        case TransactionStatus.IDLE:
            if connection.autocommit:
                raise JoinRefused(AUTOCOMMIT.format(block=block))
            return False
        case TransactionStatus.INTRANS:
            return True
        case TransactionStatus.INERROR:
            raise JoinRefused(FAILED)
        case _:
            raise JoinRefused(_BUSY)
