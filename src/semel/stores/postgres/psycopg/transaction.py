"""An ATOMIC unit through psycopg: one transaction that holds the record and the handler's own writes.

BEGIN travels with the claim and COMMIT with the settle, so that a fresh command costs the handler's own
transaction no round trip of its own. The connection that is handed out ends no transaction: its
``commit()`` keeps the writes for Semel's COMMIT, its ``rollback()`` undoes the handler's writes alone. A COMMIT
written as SQL does end it; then the settle fails by itself, since the claim is not its transaction's own.

``postgres/transaction`` says what a unit does; threads make its calls here, event loops in ``transaction_async``.

Before its next command a session has its settings and its user reset: what a handler has set, and committed, was meant
for that handler's command.
"""

from __future__ import annotations

import os
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.pq import PGconn, TransactionStatus

from semel.core.flow import Ask, MakeFlow
from semel.errors import HandlerRefused
from semel.stores.deadline import Deadline
from semel.stores.pool import ConnectionPool
from semel.stores.postgres.errors import cannot_connect
from semel.stores.postgres.psycopg.arrays import with_arrays
from semel.stores.postgres.psycopg.driver import PostgresServer, is_lost, is_stale, to_error
from semel.stores.postgres.psycopg.pipeline import Said, execute, names_of
from semel.stores.postgres.psycopg.timeout import PatientAsyncConnection, PatientConnection, opening
from semel.stores.postgres.transaction import Library, Talk, UnitTalk, drive
from semel.stores.process import begin_in_children, part_in_children
from semel.stores.shield import later
from semel.stores.sql.statements import Query

if TYPE_CHECKING:
    from semel.stores.postgres.psycopg.transaction_async import AsyncPsycopgUnitConnection

T = TypeVar("T")
C = TypeVar("C", bound="PsycopgUnitConnection | AsyncPsycopgUnitConnection")

SAVEPOINT: Final = b"SAVEPOINT semel_unit"
RELEASE: Final = b"RELEASE SAVEPOINT semel_unit"
ROLLBACK_TO: Final = b"ROLLBACK TO SAVEPOINT semel_unit"
# In a transaction of its own, since whether the next one may write is settled when it begins; END, since COMMIT is what
# makes a command final.
RESET: Final[tuple[Said, ...]] = tuple((text, None) for text in (b"BEGIN", b"RESET ALL", b"RESET ROLE", b"END"))
NOTHING_TO_KEEP: Final = (TransactionStatus.IDLE, TransactionStatus.INERROR)
LEFT: Final = (
    "the handler left rows half read, or a COPY open, on its connection; it was closed, and nothing of it remains"
)
SOCKET: Final = attrgetter("socket")  # of a session, which its successors have, too
LATE: Final = "this command's transaction is over; nothing more can be written in it"


class PsycopgUnitConnection(PatientConnection):
    """A handler's connection. ``commit``, ``rollback`` and ``close`` stay inside the unit."""

    handed_out = False
    worn = False  # a handler has used the session since it was opened or reset

    # Both are refused inside a ``transaction()`` block, by psycopg.

    def commit(self) -> None:
        """Keep what was written so far for Semel's COMMIT, whatever is rolled back later."""
        if not self.handed_out or self._num_transactions:
            super().commit()
        elif self.info.transaction_status not in NOTHING_TO_KEEP:
            with self.pipeline():
                self.execute(RELEASE)
                self.execute(SAVEPOINT)

    def rollback(self) -> None:
        """Undo what the handler wrote since its last ``commit``; the record stays claimed."""
        if not self.handed_out or self._num_transactions:
            super().rollback()
        else:
            self.execute(ROLLBACK_TO)

    def close(self) -> None:
        """Do nothing while the command runs: the unit still needs the connection."""
        if not self.handed_out:
            super().close()


def successor(connection: C) -> C:
    """Move the session to another object; the one that a handler may have kept is closed for good.

    Adapters, factories and handlers that were set on the former stay with it. What the server has prepared is the
    session's, so the new one must know of it.
    """
    fresh = type(connection)(connection.pgconn)
    fresh._prepared = connection._prepared
    names_of(fresh).update(names_of(connection))
    fresh.worn = connection.worn
    if isinstance(fresh, PatientAsyncConnection) and isinstance(connection, PatientAsyncConnection):
        fresh.take_watch(connection)
    connection.pgconn = PGconn()
    return fresh


def before(connection: PsycopgUnitConnection | AsyncPsycopgUnitConnection, server: PostgresServer) -> tuple[Said, ...]:
    """Return the statements before BEGIN. Behind a pooler the session is shared, and not reset."""
    return RESET if connection.worn and server.prepared else ()


class PsycopgTalk(UnitTalk[C]):
    """One transaction through psycopg, in either colour. Nothing is sent before the claim."""

    _library = Library((psycopg.Error,), psycopg.errors.DivisionByZero, to_error, is_lost)

    def __init__(self, pool: Any, connection: C, *, was_idle: bool) -> None:
        super().__init__(pool, connection)
        self._was_idle = was_idle
        self._begun = False

    @property
    def connection(self) -> C:
        """Return the handler's connection.

        Raises psycopg.ProgrammingError after the end: the connection is another command's by then.
        """
        if self._ended:
            raise psycopg.ProgrammingError(LATE)
        connection: C = self._connection
        return connection

    def hand_out(self) -> C:
        """Give the handler the connection: from here on only Semel ends the transaction, and it may take its time."""
        self._connection.handed_out = self._connection.worn = True
        self._connection.deadline = None
        connection: C = self._connection
        return connection

    def _execute(self, *statements: Said) -> Any:
        """Execute all of them in one round trip. Return the rows of the one that has values."""
        raise NotImplementedError

    def _running(self, make: MakeFlow[T]) -> Talk[T]:
        # The call that begins the unit has its deadline already.
        return self._running_inside(make) if self._connection.handed_out else self._performing(make)

    def _running_inside(self, make: MakeFlow[T]) -> Talk[T]:
        connection = self._connection
        connection.deadline = Deadline(self._pool.server.patience_seconds)
        try:
            return (yield from self._performing(make))
        finally:
            connection.deadline = None  # the handler may take its time

    def _begin_again(self) -> Any:
        self._begun = False
        return self._connection.execute(b"ROLLBACK")

    def _asking(self, needed: Query) -> Talk[list[Any]]:
        values = with_arrays(needed.statement, self._pool.server.values(needed.statement, needed.params))
        text = needed.statement.numbered.encode()
        rows: list[Any]
        if self._begun:
            rows = yield partial(self._execute, (RELEASE, None), (text, values), (SAVEPOINT, None))
            return rows
        self._begun = True
        begin: tuple[Said, ...] = ((b"BEGIN", None), (text, values), (SAVEPOINT, None))
        try:
            rows = yield partial(self._execute, *before(self._connection, self._pool.server), *begin)
        except psycopg.Error as error:
            if not self._was_idle or not is_stale(error):
                raise
        else:
            self._connection.worn = False
            return rows
        # The connection died while it was idle.
        self._connection = yield partial(self._pool.instead_of, self._connection)
        rows = yield partial(self._execute, *begin)
        return rows

    def _taking_back(self) -> Talk[None]:
        if not (yield partial(self._connection.is_left_alone, self._pool.server.patience_seconds)):
            yield from self._ending(sound=False)
            raise HandlerRefused(LEFT)
        self._connection.deadline = Deadline(self._pool.server.patience_seconds)

    def _settle_and_commit(self, needed: Query) -> Any:
        self._notices = self._connection.notices
        values = with_arrays(needed.statement, self._pool.server.values(needed.statement, needed.params))
        return self._execute((needed.statement.numbered.encode(), values), (b"COMMIT", None))

    def _undoing(self) -> Talk[bool]:
        patience = self._pool.server.patience_seconds
        sound: bool = yield partial(self._connection.is_left_alone, patience)
        if sound and self._connection.info.transaction_status is not TransactionStatus.IDLE:
            if self._connection.deadline is None:  # else it is the end of a call that has failed
                self._connection.deadline = Deadline(patience)
            try:
                if self._connection.handed_out:
                    yield partial(self._connection.execute, b"ROLLBACK")
                else:  # past psycopg, which would drop what it has prepared: no table can have gone
                    yield partial(self._execute, (b"ROLLBACK", None))
            except psycopg.Error:
                sound = False
        return sound

    def _give_back(self, sound: bool) -> Any:
        idle = sound and self._connection.info.transaction_status is TransactionStatus.IDLE
        self._connection.handed_out = False
        return self._pool.give(self._connection, sound=idle)


class PsycopgUnit(PsycopgTalk[PsycopgUnitConnection]):
    """One transaction of a thread's. Made by :class:`PsycopgUnitPool`."""

    def _execute(self, *statements: Said) -> list[Any]:
        return execute(self._connection, *statements, prepared=self._pool.server.prepared)

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction, which the first statement begins.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost, or has not answered in time.
        """
        return drive(self._running(make))

    def settle(self, needed: Ask[Any]) -> bool:
        """Settle, and COMMIT in the same round trip. False: the claim is not this transaction's own; rolled back.

        Raises:
            HandlerRefused: the server refused the commit (a deferred constraint): rolled back.
            StoreTimeout: not answered: not known yet. NotReplicated: its wait for the standby was cut short.
        """
        return drive(self._settling(needed))

    def rollback(self) -> None:
        """Roll the transaction back. Safe to call at any time, also twice."""
        drive(self._rolling_back())

    def __del__(self) -> None:
        # An abandoned unit (Ctrl-C in its claim) would keep its connection and its lock for ever.
        if not self._ended and self._pid == os.getpid():
            later(self.rollback)


class PsycopgUnitPool:
    """The connections of a process's units, with the user's own settings and none of Semel's."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._inherited: list[object] = []  # a parent's connections: never used here, never closed
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self.lifo: ConnectionPool[PsycopgUnitConnection] = ConnectionPool(self._open, self.server.connections_max)

    def begin_process(self) -> None:
        """Start without connections in a forked child."""
        self._inherited.append(self.lifo)
        self._begin()

    def begin(self) -> PsycopgUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        deadline = Deadline(self.server.patience_seconds)
        while True:
            connection, was_idle = self.lifo.take(deadline)
            if not connection.closed:
                connection.deadline = deadline
                return PsycopgUnit(self, connection, was_idle=was_idle)
            self.lifo.forget()

    def instead_of(self, connection: PsycopgUnitConnection) -> PsycopgUnitConnection:
        """Open a connection in place of one that was lost, and probably all idle ones with it."""
        connection.close()
        self.close()
        assert connection.deadline is not None
        fresh = self._open(connection.deadline)
        fresh.deadline = connection.deadline
        return fresh

    def give(self, connection: PsycopgUnitConnection, *, sound: bool) -> None:
        """Return a sound connection to the pool, and close any other."""
        if sound:
            self.lifo.give(successor(connection))
        else:
            connection.close()
            self.lifo.forget()

    def _open(self, deadline: Deadline) -> PsycopgUnitConnection:
        try:
            with opening(self.server.conninfo, deadline):
                opened = PsycopgUnitConnection.connect(self.server.conninfo, **self.server.plain_options())
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error
        part_in_children(opened.pgconn, SOCKET)
        return opened

    def close(self) -> None:
        """Close idle connections."""
        for connection in self.lifo.forget_idle():
            connection.close()
