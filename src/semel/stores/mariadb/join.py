"""Joins the user's own transaction on MariaDB: the record commits with their writes, when they commit.

The transaction may have begun already, and have read and written: a claim never waits for a lock. Only the user ends
the transaction. If the join began it and the claim is not granted, Semel ends the empty transaction again.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from semel.articles import name_type
from semel.core.contract import Identity, Store
from semel.core.flow import Ask, MakeFlow
from semel.errors import JoinRefused, SchemaError, SemelError
from semel.stores.failures import SAVEPOINT_OPEN
from semel.stores.mariadb import asyncmy_client as on_loops
from semel.stores.mariadb import pymysql_client as in_threads
from semel.stores.mariadb.errors import Lost, MariadbRefused, connection_lost, store_error
from semel.stores.mariadb.protocol import Conversation, Greeting, MariadbServer, converse, greet
from semel.stores.mariadb.transaction import Transaction
from semel.stores.shield import run_shielded

T = TypeVar("T")

AUTOCOMMIT: Final = (
    "this connection is in autocommit mode with no transaction open, so nothing would be committed together; open it "
    "with autocommit=False, or call begin() first"
)
SAVEPOINT: Final = "this is a savepoint inside a transaction; join in the outermost transaction"
CLOSED: Final = "this connection is closed; open a new one"
CHARSET: Final = "this connection speaks {charset}, which holds not every text; open it with charset='utf8mb4'"
ROLLS_BACK: Final = (
    "the server runs with innodb_rollback_on_timeout, so that a claim which meets a lock would undo your writes; "
    "switch it off to join transactions"
)
ELSEWHERE: Final = (
    "this connection's transaction is in another database than the store, so nothing would be committed together; "
    "connect both to the same database"
)
_IN_TRANSACTION: Final = 1  # of the server's status flags


class MariadbHome:
    """The store that transactions are joined to, and which connections were found to be to its database."""

    def __init__(self, store: Store, driver: Any, server: MariadbServer) -> None:
        self.store = store
        self.driver = driver
        self.server = server
        self._store_id: str | None = None
        self._known: weakref.WeakKeyDictionary[Any, Greeting] = weakref.WeakKeyDictionary()

    def greeting(self, raw: Any) -> Greeting | None:
        """Return the server info of a connection that was admitted before."""
        return self._known.get(raw)

    @property
    def unmet(self) -> bool:
        """Whether the store's own identity has yet to be read."""
        return self._store_id is None

    def meet(self, mine: Identity | None) -> None:
        """Note the store's own identity. Raises SchemaError where it was never migrated."""
        if mine is None:
            raise SchemaError("the store has no Semel tables; run: semel migrate")
        self._store_id = mine.store_id

    def admission(self) -> Conversation[Greeting]:
        """Ask a connection whether its transactions can hold the record. Raises JoinRefused."""
        greeting = yield from greet(None)
        if greeting.charset != "utf8mb4":
            raise JoinRefused(CHARSET.format(charset=greeting.charset))
        if greeting.rolls_back_on_timeout:
            raise JoinRefused(ROLLS_BACK)
        theirs = yield from converse(self.store.identity, None, greeting.packet_max, inside=True)
        if theirs is None or theirs.store_id != self._store_id:
            raise JoinRefused(ELSEWHERE)
        return greeting

    def admit(self, raw: Any, greeting: Greeting) -> None:
        """Remember a connection that was admitted."""
        self._known[raw] = greeting


class _Joined:
    """The user's transaction with the record in it. Its owner commits or rolls back, never Semel.

    The settlement releases the savepoint behind the claim, and with it every savepoint that was opened since:
    rolling back to one of those fails afterwards. A savepoint that the library knows to be open is refused.

    Parameters: ``is_nested`` whether the user's library knows of a savepoint that is open.
    """

    def __init__(
        self,
        target: Any,
        raw: Any,
        home: MariadbHome,
        greeting: Greeting,
        *,
        began: bool,
        is_nested: Callable[[], bool],
    ) -> None:
        self.connection = target
        self._is_nested = is_nested
        self._raw = raw
        self._began = began
        self._transaction = Transaction(home.server.clock, greeting, joined=True)

    def _check_outermost(self) -> None:
        if self._is_nested():
            raise JoinRefused(SAVEPOINT_OPEN)

    def hand_out(self) -> Any:
        """Do nothing: the user has the connection already."""
        return self.connection


class JoinedMariadb(_Joined):
    """A joined transaction on a PyMySQL connection."""

    def run(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction. Raises StoreError."""
        return _perform(self._raw, self._transaction.run(make))

    def settle(self, needed: Ask[Any]) -> bool:
        """Settle; False where the claim is not this transaction's own. Raises JoinRefused in a savepoint."""
        self._check_outermost()
        return bool(self._raw.open) and _perform(self._raw, self._transaction.settle(needed))

    def rollback(self) -> None:
        """End a transaction that the join began and wrote nothing in, because the claim was refused."""
        if self._began and self._raw.open:
            _perform(self._raw, _roll_back())

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As ``run``: AsyncEngine may be given a connection that blocks its loop, but seldom should."""
        return self.run(make)

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """As ``settle``."""
        return self.settle(needed)

    async def rollback_async(self) -> None:
        """As ``rollback``."""
        self.rollback()


class AsyncJoinedMariadb(_Joined):
    """A joined transaction on an asyncmy connection."""

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction. Raises StoreError."""
        return await _perform_async(self._raw, self._transaction.run(make))

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """As :meth:`JoinedMariadb.settle`."""
        self._check_outermost()
        return bool(self._raw.connected) and await _perform_async(self._raw, self._transaction.settle(needed))

    async def rollback_async(self) -> None:
        """As :meth:`JoinedMariadb.rollback`."""
        if self._began and self._raw.connected:
            await _perform_async(self._raw, _roll_back())


def join(target: Any, home: MariadbHome) -> JoinedMariadb:
    """Join the transaction of a PyMySQL connection, or of a SQLAlchemy Session or Connection on one.

    Raises JoinRefused and StoreError.
    """
    raw = target
    is_nested = _is_never_nested
    if _is_alchemy(target):
        _check_outermost(target.in_nested_transaction())
        connection = target.connection() if hasattr(target, "get_bind") else target
        raw = connection.connection.driver_connection
        is_nested = connection.in_nested_transaction
    if not isinstance(raw, in_threads.CONNECTION):
        raise JoinRefused(
            _unknown(target, "Engine: a PyMySQL connection, or a SQLAlchemy Session or Connection on one")
        )
    if not raw.open:
        raise JoinRefused(CLOSED)
    began = _begins(raw)
    greeting = home.greeting(raw)
    if greeting is None:
        if home.unmet:
            home.meet(run_shielded(lambda: home.driver.run(home.store.identity)))
        greeting = _perform(raw, home.admission())
        home.admit(raw, greeting)
    return JoinedMariadb(target, raw, home, greeting, began=began, is_nested=is_nested)


async def join_async(target: Any, home: MariadbHome) -> JoinedMariadb | AsyncJoinedMariadb:
    """Join the transaction of an asyncmy connection, or of an AsyncSession or AsyncConnection on one.

    Raises JoinRefused and StoreError.
    """
    raw = target
    is_nested = _is_never_nested
    if _is_async_alchemy(target):
        session = getattr(target, "sync_session", None)
        _check_outermost((session or target).in_nested_transaction())
        connection = await target.connection() if session is not None else target
        raw = (await connection.get_raw_connection()).driver_connection
        is_nested = connection.in_nested_transaction
    if not isinstance(raw, on_loops.CONNECTION):
        wanted = "AsyncEngine: an asyncmy connection, or an AsyncSession or AsyncConnection on one"
        raise JoinRefused(_unknown(target, wanted))
    if not raw.connected:
        raise JoinRefused(CLOSED)
    began = _begins(raw)
    greeting = home.greeting(raw)
    if greeting is None:
        if home.unmet:
            home.meet(await home.driver.run_async(home.store.identity))
        greeting = await _perform_async(raw, home.admission())
        home.admit(raw, greeting)
    return AsyncJoinedMariadb(target, raw, home, greeting, began=began, is_nested=is_nested)


def _begins(raw: Any) -> bool:
    """Whether the join's first statement will begin the transaction. Raises JoinRefused in autocommit mode."""
    if raw.server_status & _IN_TRANSACTION:
        return False
    if raw.get_autocommit():
        raise JoinRefused(AUTOCOMMIT)
    return True


def _check_outermost(nested: object) -> None:
    if nested:
        raise JoinRefused(SAVEPOINT)


def _is_never_nested() -> bool:
    return False  # a plain connection does not report its savepoints


def _is_alchemy(target: Any) -> bool:
    if "sqlalchemy" not in sys.modules:
        return False
    from semel.stores.sql import sqlalchemy as alchemy

    return isinstance(target, (alchemy.Session, alchemy.Connection))


def _is_async_alchemy(target: Any) -> bool:
    if "sqlalchemy.ext.asyncio" not in sys.modules:
        return False
    from semel.stores.sql import sqlalchemy_async as alchemy

    return isinstance(target, (alchemy.AsyncSession, alchemy.AsyncConnection))


def _unknown(target: Any, wanted: str) -> str:
    return f"{name_type(target, with_module=True)} cannot be joined here; pass to {wanted}"


def _roll_back() -> Conversation[None]:
    yield "ROLLBACK"


def _perform(raw: Any, conversation: Conversation[T]) -> T:
    try:
        return in_threads.perform(raw, conversation)
    except (Lost, MariadbRefused) as error:
        raise _to_error(error) from error


async def _perform_async(raw: Any, conversation: Conversation[T]) -> T:
    try:
        return await on_loops.perform(raw, conversation)
    except (Lost, MariadbRefused) as error:
        raise _to_error(error) from error


def _to_error(error: Lost | MariadbRefused) -> SemelError:
    return store_error(error) if isinstance(error, MariadbRefused) else connection_lost(error)
