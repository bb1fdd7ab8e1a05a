"""The line of an asyncpg connection, its own or its pool's: Semel's statements on the user's transaction.

Codecs that the user has set on the connection for ``bytea``, ``text`` or the integers reach Semel's statements too:
asyncpg knows no others beside them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from semel.errors import JoinRefused, SemelError
from semel.stores.postgres.asyncpg.driver import BROKEN, to_error
from semel.stores.postgres.join import AUTOCOMMIT, CLOSED, LineFailed

CONNECTIONS: Final = (asyncpg.Connection, PoolConnectionProxy)
_BLOCK: Final = "async with connection.transaction(): …"
_ERRORS: Final = (asyncpg.PostgresError, *BROKEN, asyncpg.DataError, OSError, TimeoutError)


_NAME: Final = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_SAVEPOINTS: Final = re.compile(
    rf"(?:^|;)\s*(?:(?P<opens>SAVEPOINT)|(?P<ends>RELEASE)(?:\s+SAVEPOINT)?|"
    rf"(?P<undoes>ROLLBACK)(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(?P<name>{_NAME})",
    re.IGNORECASE,
)
_OWN: Final = "__asyncpg_savepoint_"  # of a ``transaction()`` block, which is over once it has rolled back to its own


class Savepoints:
    """The savepoints that statements have opened and not ended, the outermost first.

    >>> seen = Savepoints(None)
    >>> for text in ("SAVEPOINT a", "SAVEPOINT b; INSERT INTO t VALUES (1)", "RELEASE SAVEPOINT b", "ROLLBACK TO a"):
    ...     seen.note(text)
    >>> seen.open
    ['a']
    """

    def __init__(self, session: Any) -> None:
        self.open: list[str] = []
        self._session = session

    def hear(self, record: Any) -> None:
        """Note a statement that asyncpg has logged, unless it failed; stop once the transaction is over."""
        if self._session.is_closed() or not self._session.is_in_transaction():
            self._session.remove_query_logger(self.hear)
        elif record.exception is None:
            self.note(record.query)

    def note(self, text: str) -> None:
        """Note a statement."""
        for found in _SAVEPOINTS.finditer(text):
            name = found["name"] if found["name"].startswith('"') else found["name"].lower()
            if found["opens"]:
                self.open.append(name)
            elif name in self.open:
                last = len(self.open) - 1 - self.open[::-1].index(name)
                over = found["ends"] or name.startswith(_OWN)
                del self.open[last if over else last + 1 :]


class AsyncpgLine:
    """The transaction of an asyncpg connection. Raises JoinRefused where none is open."""

    def __init__(self, connection: Any) -> None:
        self.target = connection
        self.session = connection._con if isinstance(connection, PoolConnectionProxy) else connection
        if self.session is None or self.session.is_closed():
            raise JoinRefused(CLOSED)
        if not self.session.is_in_transaction():
            raise JoinRefused(AUTOCOMMIT.format(block=_BLOCK))
        self._savepoints = Savepoints(self.session)
        self.session.add_query_logger(self._savepoints.hear)  # asyncpg calls it before the next statement is answered

    async def execute(self, text: str, values: list[Any]) -> list[Any]:
        """Return rows as tuples. Raises LineFailed."""
        try:
            return [tuple(row) for row in await self.target.fetch(text, *values)]
        except _ERRORS as error:
            said = to_error(error)
            assert isinstance(said, SemelError)
            raise LineFailed(getattr(error, "sqlstate", None), said) from error

    def is_open(self) -> bool:
        """Whether a transaction is open."""
        gone = isinstance(self.target, PoolConnectionProxy) and self.target._con is None
        return not gone and self.session.is_in_transaction()

    def is_nested(self) -> bool:
        """Whether a savepoint is open that a block, or a statement of the user's, may still roll back to.

        The server cannot tell: asyncpg leaves the savepoint of a block that it has rolled back.
        """
        return bool(self._savepoints.open)

    async def end(self) -> None:
        """Stop listening. The owner began the transaction, so only the owner ends it."""
        self.session.remove_query_logger(self._savepoints.hear)

    def fail(self) -> None:
        """Do nothing: a failed transaction can only be rolled back."""
