"""PyMySQL: performs the MariaDB store's conversations from threads.

Its connections are its own, in autocommit and READ COMMITTED, and count the rows they *found*: an UPDATE that leaves
its row unchanged has found it all the same, and must not look like a lost lease.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import pymysql
from pymysql.constants import CLIENT

from semel.core.flow import MakeFlow
from semel.errors import SemelError, StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.failures import or_still_unknown, still_unknown
from semel.stores.mariadb.errors import (
    Lost,
    MariadbRefused,
    cannot_connect,
    connection_lost,
    ends_connection,
    parse_refusal,
    store_error,
)
from semel.stores.mariadb.protocol import Conversation, Greeting, MariadbServer, Result, converse, greet
from semel.stores.pool import ConnectionPool

T = TypeVar("T")
CONNECTION: Final = pymysql.connections.Connection
OWN: Final = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
Taken = tuple[Any, Greeting]


class PymysqlThreads:
    """The connections of one process's threads."""

    def __init__(self, server: MariadbServer) -> None:
        self._server = server
        self._lifo: ConnectionPool[Taken] = ConnectionPool(self._open, server.connections_max)

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow.

        Raises:
            StoreUnavailable: the server cannot be reached or refuses; nothing was written by the last statement.
            StoreTimeout: the answer was lost; whether it took effect is not known yet.
        """
        said = False
        deadline = Deadline(self._server.patience_seconds)
        while True:
            try:
                taken, was_idle = self._lifo.take(deadline)
            except StoreUnavailable as error:
                if said:
                    raise still_unknown(error) from error
                raise
            connection, greeting = taken
            try:
                result = perform(connection, converse(make, self._server.clock, greeting.packet_max), deadline)
            except BaseException as error:
                if is_sound(error) and connection.open:
                    self._lifo.give(taken)
                else:
                    close(connection)
                    self._lifo.forget()
                    self.close()
                if isinstance(error, Lost):
                    if was_idle and not deadline.is_over:  # else the server hangs
                        said = True
                        continue  # it died while idle: every verb names its nonce and may be repeated
                    raise connection_lost(error) from error
                if isinstance(error, MariadbRefused):
                    raise or_still_unknown(store_error(error), said) from error
                raise
            self._lifo.give(taken)
            return result

    def _open(self, deadline: Deadline) -> Taken:
        return open_connection(pymysql.connect, self._server, deadline, client_flag=OWN)

    def close(self) -> None:
        """Close idle connections."""
        for connection, _ in self._lifo.forget_idle():
            close(connection)


def open_connection(
    connect: Any, server: MariadbServer, deadline: Deadline, *, own: bool = True, **options: Any
) -> Taken:
    """Open and greet a connection; ``own``: set it up as one of Semel's."""
    plain = server.tls is None  # else PyMySQL reads all of the system's certificates for each connection, and tries TLS
    left = deadline.before_sending()
    patience = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), left)
    try:
        connection = connect(**{**server.options(), **patience}, **options, ssl_disabled=plain)
    except pymysql.MySQLError as error:
        raise cannot_connect(error) from error
    try:
        return connection, perform(connection, greet(server if own else None))
    except BaseException as error:
        close(connection)
        if isinstance(error, MariadbRefused):
            raise cannot_connect(error) from error
        if isinstance(error, Lost):
            raise StoreUnavailable("MariaDB ended the connection while it was being opened") from error
        raise


def close(connection: Any) -> None:
    """Close a connection in any state."""
    if connection.open:
        connection.close()


def is_sound(error: BaseException) -> bool:
    """Whether the connection may be used again after this error."""
    return isinstance(error, SemelError) or (isinstance(error, MariadbRefused) and not ends_connection(error))


def wait_for(connection: Any, seconds: float | None) -> None:
    """Set the timeout of each answer from now on; None for no timeout."""
    connection._read_timeout = connection._write_timeout = seconds  # PyMySQL 1.1: read before each use of the socket


def perform(connection: Any, conversation: Conversation[T], deadline: Deadline | None = None) -> T:
    """Carry a conversation to its end, by the deadline if there is one.

    Raises Refused and Lost, and what the conversation raises.
    """
    try:
        text = next(conversation)
        while True:
            if deadline is not None:
                wait_for(connection, deadline.for_answer())
            try:
                results = say(connection, text)
            except pymysql.MySQLError as error:
                refusal = parse_refusal(error)
                if refusal is None:
                    raise Lost(*error.args) from error
                text = conversation.throw(refusal)
            else:
                if deadline is not None:
                    deadline.note_answer()
                text = conversation.send(results)
    except StopIteration as stop:
        result: T = stop.value
        return result


def say(connection: Any, text: str) -> list[Result]:
    """Send one text and read the result of each of its statements."""
    cursor = connection.cursor(pymysql.cursors.Cursor)  # plain rows, whatever cursor the user's connection has
    cursor.execute(text)
    results: list[Result] = []
    while True:
        results.append(cursor.rowcount if cursor.description is None else list(cursor.fetchall()))
        if not cursor.nextset():
            return results
