"""Joins the user's own transaction on PostgreSQL: the record commits with their writes, when they commit.

The transaction may have begun already, and have read and written: a claim never waits for a lock, and sees its own
statement's snapshot. Only the user ends the transaction; where the join began it, and it met a
verdict, Semel ends the empty transaction again. Each client library is reached through a *line*.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from semel.core.contract import Identity, Store
from semel.core.flow import Ask, MakeFlow
from semel.errors import HandlerRefused, JoinRefused, SchemaError, SemelError
from semel.stores.failures import SAVEPOINT_OPEN
from semel.stores.postgres.psycopg.driver import PostgresServer
from semel.stores.shield import run_shielded
from semel.stores.sql.statements import Query

T = TypeVar("T")

AUTOCOMMIT: Final = (
    "this connection is in autocommit mode with no transaction open, so nothing would be committed together; join "
    "inside {block}"
)
SAVEPOINT: Final = (
    "this is a savepoint inside a transaction: rolling back to it would take the record along and leave what was "
    "written before it; join in the outermost transaction"
)
FAILED: Final = "this transaction has failed and can only be rolled back: roll it back, then join a new one"
CLOSED: Final = "this connection is closed; open a new one"
ELSEWHERE: Final = (
    "this connection's transaction is in another database than the store (or the store's schema is not on its "
    "search_path), so nothing would be committed together; connect both to the same database"
)
_GONE: Final = "the transaction failed before its settlement: roll it back, do not commit; nothing of it remains"
_DIVISION: Final = "22012"  # how the store's statements refuse a transaction that is not the claim's own
_IN_FAILED: Final = "25P02"


class LineFailed(Exception):
    """A statement failed on the user's connection. Raise ``error`` instead; its cause is the library's."""

    def __init__(self, sqlstate: str | None, error: SemelError) -> None:
        super().__init__(str(error))
        self.sqlstate = sqlstate
        self.error = error


class Line(Protocol):
    """The user's transaction, as a client library reaches it."""

    target: Any  # the object that the user passed
    session: Any  # the library's connection, by which a database that was checked before is recognised

    def execute(self, text: str, values: list[Any]) -> Any:
        """Return rows as tuples; awaited on a loop. Raises LineFailed."""

    def is_open(self) -> bool:
        """Whether a transaction is open, and still the one that was joined as far as the client knows."""

    def is_nested(self) -> bool:
        """Whether a savepoint is open, where the server says that one exists: libraries leave those that they have
        rolled back to.
        """

    def end(self) -> Any:
        """Roll back a transaction that the join itself began, and no other; awaited on a loop."""

    def fail(self) -> None:
        """Mark the transaction for rollback, where the library can: the settlement was refused."""


class PostgresHome:
    """The store that transactions are joined to: its server, and how to recognise a connection to it."""

    def __init__(self, store: Store, driver: Any, server: PostgresServer) -> None:
        self.server = server
        self.store = store
        self.driver = driver
        self._store_id: str | None = None
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def knows(self, session: Any) -> bool:
        """Whether this connection was found to be to this store's database."""
        return session in self._known

    @property
    def unmet(self) -> bool:
        """Whether the store's own identity has yet to be read."""
        return self._store_id is None

    def meet(self, mine: Identity | None) -> None:
        """Note the store's own identity. Raises SchemaError where it was never migrated."""
        if mine is None:
            raise SchemaError("the store has no Semel tables; run: semel migrate")
        self._store_id = mine.store_id

    def admit(self, session: Any, theirs: Identity | None) -> None:
        """Compare the identity that a connection reads with the store's own. Raises JoinRefused."""
        if theirs is None or theirs.store_id != self._store_id:
            raise JoinRefused(ELSEWHERE)
        self._known.add(session)


class _Joined:
    """The shared part of both forms."""

    def __init__(self, line: Line, home: PostgresHome) -> None:
        self._line = line
        self._home = home
        self.connection = line.target

    def _values(self, needed: Ask[Any]) -> tuple[str, list[Any]]:
        assert isinstance(needed, Query)
        return needed.statement.numbered, self._home.server.values(needed.statement, needed.params)

    def _to_error(self, failed: LineFailed) -> SemelError:
        return JoinRefused(SAVEPOINT) if failed.sqlstate == _DIVISION else failed.error

    def _check_outermost(self, rows: list[Any]) -> None:
        if not rows[0][1] and self._line.is_nested():
            self._line.fail()
            raise JoinRefused(SAVEPOINT_OPEN)

    def _is_refused(self, failed: LineFailed) -> bool:
        """Judge a settlement that failed: False where the claim is not this transaction's own."""
        self._line.fail()
        if failed.sqlstate == _DIVISION:
            return False
        if failed.sqlstate == _IN_FAILED:
            raise HandlerRefused(_GONE) from failed.__cause__
        raise failed.error from failed.__cause__

    def hand_out(self) -> Any:
        """Do nothing: the user has the connection already."""
        return self.connection


class JoinedPostgres(_Joined):
    """The user's transaction with the record in it. Its owner commits or rolls back, never Semel."""

    def run(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction. Raises JoinRefused in a savepoint, and StoreError."""
        flow = make()
        try:
            needed = next(flow)
            while True:
                needed = flow.send(self._line.execute(*self._values(needed)))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except LineFailed as failed:
            raise self._to_error(failed) from failed.__cause__

    def settle(self, needed: Ask[Any]) -> bool:
        """Settle; False where the claim is not this transaction's own: then the server refuses to commit the rest."""
        if not self._line.is_open():
            return False
        try:
            rows = self._line.execute(*self._values(needed))
        except LineFailed as failed:
            return self._is_refused(failed)
        self._check_outermost(rows)
        return True

    def rollback(self) -> None:
        """End the empty transaction that the join itself began, because the claim met a verdict."""
        self._line.end()


class AsyncJoinedPostgres(_Joined):
    """As :class:`JoinedPostgres`, on an event loop."""

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction. Raises JoinRefused in a savepoint, and StoreError."""
        flow = make()
        try:
            needed = next(flow)
            while True:
                needed = flow.send(await self._line.execute(*self._values(needed)))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except LineFailed as failed:
            raise self._to_error(failed) from failed.__cause__

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """As :meth:`JoinedPostgres.settle`."""
        if not self._line.is_open():
            return False
        try:
            rows = await self._line.execute(*self._values(needed))
        except LineFailed as failed:
            return self._is_refused(failed)
        self._check_outermost(rows)
        return True

    async def rollback_async(self) -> None:
        """As :meth:`JoinedPostgres.rollback`."""
        await self._line.end()


def join_line(line: Line, home: PostgresHome, made: type[JoinedPostgres] = JoinedPostgres) -> JoinedPostgres:
    """Join a line's transaction, once it is known to be in the store's own database. Raises as its ``run``."""
    unit = made(line, home)
    try:
        if not home.knows(line.session):
            if home.unmet:
                home.meet(run_shielded(lambda: home.driver.run(home.store.identity)))
            home.admit(line.session, unit.run(home.store.identity))
    except BaseException:
        with suppress(Exception):  # its owner was interrupted in a statement: theirs to close
            unit.rollback()
        raise
    return unit


async def join_line_async(line: Line, home: PostgresHome) -> AsyncJoinedPostgres:
    """As :func:`join_line`, on an event loop."""
    unit = AsyncJoinedPostgres(line, home)
    try:
        if not home.knows(line.session):
            if home.unmet:
                home.meet(await home.driver.run_async(home.store.identity))
            home.admit(line.session, await unit.run_async(home.store.identity))
    except BaseException:
        with suppress(Exception):  # as in threads
            await unit.rollback_async()
        raise
    return unit
