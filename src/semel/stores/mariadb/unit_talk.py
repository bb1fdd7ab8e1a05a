"""ATOMIC units on MariaDB, for both libraries: run a flow, settle with COMMIT, roll back.

It is written once, as generators that yield each call that waits for the server (see :mod:`semel.stores.talk`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from semel.core.flow import Ask, MakeFlow
from semel.stores.deadline import Deadline
from semel.stores.mariadb.errors import Lost, MariadbRefused, connection_lost, is_sound, store_error
from semel.stores.mariadb.protocol import Conversation, Greeting
from semel.stores.mariadb.transaction import LATE, Transaction, undone
from semel.stores.talk import Talk

T = TypeVar("T")
Taken = tuple[Any, Greeting]


class Library(NamedTuple):
    """How a client library's connections are asked and closed, and which errors they raise."""

    errors: tuple[type[BaseException], ...]  # what a ROLLBACK raises that is refused, or not answered
    late: type[BaseException]  # for a connection that is closed
    is_open: Callable[[Any], bool]
    is_busy: Callable[[Any], bool]  # a handler ended before its own statement did
    successor: Callable[[Any], Any]
    close: Callable[[Any], Any]


class MariadbTalk:
    """One transaction. A library's class says how its calls are made; a shell makes them, or awaits them.

    Nothing is sent before the claim.
    """

    _library: ClassVar[Library]
    _perform: Callable[[Conversation[Any]], Any]  # by the call's deadline
    _undo: Callable[[], Any]  # ROLLBACK, and note whether some of the writes remain

    def __init__(self, pool: Any, taken: Taken, deadline: Deadline, *, was_idle: bool) -> None:
        self._pool = pool
        self._deadline: Deadline | None = deadline  # of the call that is under way; None while the handler runs
        self._taken = taken
        self._was_idle = was_idle
        self._pid = os.getpid()
        self._begun = False
        self._ended = False
        self.left_writes = False  # known once it is rolled back
        self._transaction = self._new_transaction()

    def _new_transaction(self) -> Transaction:
        return Transaction(self._pool.server.clock, self._taken[1])

    @property
    def connection(self) -> Any:
        """What the handler writes on.

        Raises the library's InterfaceError after the end: the session is another command's by then.
        """
        if self._ended:
            raise self._library.late(0, LATE)
        return self._taken[0]

    def hand_out(self) -> Any:
        """The connection: from here on only Semel ends the transaction, and the handler may take its time."""
        connection = self.connection
        connection.transaction = self._transaction
        self._deadline = None
        return connection

    def _call(self) -> Deadline:
        return self._deadline or Deadline(self._pool.server.patience_seconds)

    def _running(self, make: MakeFlow[T]) -> Talk[T]:
        """Run a flow inside the transaction, which the first statement begins."""
        first, self._begun = not self._begun, True
        result: T
        try:
            result = yield partial(self._perform, self._transaction.run(make))
            return result
        except Lost as error:
            deadline = self._deadline
            if not first or not self._was_idle or deadline is None or deadline.is_over:  # the server hangs
                raise connection_lost(error) from error
        except MariadbRefused as error:
            yield from self._refusing(error)
        # The connection died while it was idle. The claim names its nonce, so it may be repeated.
        self._taken = yield partial(self._pool.instead_of, self._taken, deadline)
        self._transaction = self._new_transaction()
        try:
            result = yield partial(self._perform, self._transaction.run(make))
        except Lost as error:
            raise connection_lost(error) from error
        except MariadbRefused as error:
            yield from self._refusing(error)
        return result

    def _refusing(self, error: MariadbRefused) -> Talk[NoReturn]:
        if not is_sound(error):
            yield partial(self._library.close, self.connection)
        raise store_error(error) from error

    def _settling(self, needed: Ask[Any]) -> Talk[bool]:
        """Settle and COMMIT in one round trip. False: the claim is not this transaction's own; rolled back."""
        if self._ended or self._pid != os.getpid():  # forked: as in ``_rolling_back``
            self._ended = True
            return False
        if self._library.is_busy(self._taken[0]):
            yield from self._ending(sound=False)
            raise undone()
        self._deadline = Deadline(self._pool.server.patience_seconds)
        try:
            stands: bool = yield partial(self._perform, self._transaction.settle(needed))
        except Lost as error:
            yield from self._ending(sound=False)
            raise connection_lost(error) from error
        except MariadbRefused as error:
            if is_sound(error):
                yield from self._rolling_back()
            else:
                yield from self._ending(sound=False)
            raise store_error(error) from error
        except BaseException:
            yield from self._ending(sound=False)
            raise
        if not stands:
            yield from self._rolling_back()
        elif not self._give_back():
            yield from self._ending(sound=False)
        return stands

    def _rolling_back(self) -> Talk[None]:
        if self._ended or self._pid != os.getpid():  # forked: the parent's connection is not ours to speak on
            self._ended = True
            return
        connection = self._taken[0]
        sound = not self._library.is_busy(connection)
        if sound and self._begun and self._library.is_open(connection):
            connection.transaction = None
            try:
                yield self._undo
            except self._library.errors:
                sound = False
        yield from self._ending(sound=sound)

    def _ending(self, *, sound: bool) -> Talk[None]:
        if not sound or not self._give_back():
            self._ended = True
            self._taken[0].transaction = None
            yield partial(self._pool.drop, self._taken[0])

    def _give_back(self) -> bool:
        """End the unit, and return its connection to the pool if that may be used again; whether it was."""
        connection, greeting = self._taken
        self._ended = True
        connection.transaction = None
        if not self._library.is_open(connection) or connection.get_autocommit():
            return False
        self._pool.lifo.give((self._library.successor(connection), greeting))
        return True
