"""SQLAlchemy: sessions on the connection of an ATOMIC unit, and joining a Session or Connection on SQLite.

A session is bound to an engine whose pool holds one connection, the unit's. What SQLAlchemy asks a server when it
first meets it is asked once in a process: later units share the dialect and the compiled statements.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import LRUCache

from semel.errors import ConfigurationError, JoinRefused, SupersededError
from semel.stores.sqlite.join import BEGUN, Execute, JoinedUnit, StoreFile, begin_immediate, check_joinable

__all__ = ["Connection", "Session", "bound_engine", "executing_on", "join_sqlalchemy", "session_on"]

STATEMENTS_COMPILED: Final = 500  # SQLAlchemy's own default
_ASYNC: Final = (
    "a {kind} belongs to an AsyncEngine's handler; open a session on it with async_session_on of "
    "semel.stores.sql.sqlalchemy_async"
)
_NO_CONNECTION: Final = (
    "a {kind} is no connection of an ATOMIC unit that SQLAlchemy has a dialect for; pass permit.connection"
)
_known: dict[tuple[Any, ...], tuple[Dialect, LRUCache[Any, Any]]] = {}


def session_on(connection: Any, **options: Any) -> Session:
    """A Session on an ATOMIC unit's connection: sqlite3's, psycopg's or PyMySQL's.

    ``commit()`` keeps what the session wrote for Semel's COMMIT, and never ends the unit. ``rollback()``, and a close
    without a commit, undo everything since the last commit, also what was written on ``permit.connection`` itself.

    Parameters: ``connection`` is ``permit.connection``; ``options`` are those of SQLAlchemy's ``Session``.

    Raises ConfigurationError for any other connection; the message names what to use.

    >>> import tempfile
    >>> from hashlib import sha256
    >>> from sqlalchemy import text
    >>> from semel import Answer, Command, Engine, Permit, Policy, Scope
    >>> def place(permit: Permit) -> Answer:
    ...     with session_on(permit.connection) as session:
    ...         session.execute(text("CREATE TABLE orders (sku TEXT)"))
    ...         session.execute(text("INSERT INTO orders VALUES ('book-1')"))
    ...         session.commit()
    ...     return Answer(201, (), b"ordered")
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = Engine.connect(f"sqlite:///{folder.name}/app.db")
    >>> _ = engine.migrate()
    >>> scope = Scope(tenant="acme", caller="alice", operation="order")
    >>> fingerprint = sha256(b"book-1").digest()
    >>> command = Command(
    ...     scope=scope, key="key-1", fingerprint=fingerprint, recipe="demo", policy=Policy(effects="atomic")
    ... )
    >>> engine.run(command, place).answer.body
    b'ordered'
    >>> engine.close()
    >>> folder.cleanup()
    """
    dialect, server = _dialect_of(connection)

    def borrow(_: Dialect) -> Any:
        if (dialect, server) not in _known:
            connection.commit()  # SQLAlchemy rolls back what it asked a server that it meets for the first time
        return connection

    return Session(bound_engine(dialect, server, borrow), **options)


def bound_engine(name: str, server: tuple[Any, ...], borrow: Callable[[Dialect], Any]) -> Engine:
    """An engine whose only connection is the one that ``borrow`` returns, as the dialect wants it.

    Parameters: ``name`` of the dialect with its driver; ``server`` tells the servers apart that it was met on.
    """
    known = _known.get((name, server))
    if known is None:
        url = URL.create(name)
        made: Engine = create_engine(
            url, creator=lambda: borrow(made.dialect), poolclass=StaticPool, pool_reset_on_return=None
        )
        compiled = LRUCache[Any, Any](STATEMENTS_COMPILED)

        def remember(*_: object) -> None:
            _known[name, server] = made.dialect, compiled

        event.listen(made, "connect", remember)  # after SQLAlchemy's own, by which it has met the server
        return made
    dialect, compiled = known
    pool = StaticPool(lambda: borrow(dialect), dialect=dialect, reset_on_return=None)
    prepare = dialect.on_connect()
    if prepare is not None:
        event.listen(pool, "connect", lambda connection, _: prepare(connection))
    return Engine(pool, dialect, URL.create(name), execution_options={"compiled_cache": compiled})


def _dialect_of(connection: Any) -> tuple[str, tuple[Any, ...]]:
    """The dialect for a unit's connection, and what tells its server from others. Raises ConfigurationError."""
    if isinstance(connection, sqlite3.Connection):
        return "sqlite", ()
    psycopg, pymysql = sys.modules.get("psycopg"), sys.modules.get("pymysql")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return "postgresql+psycopg", postgres_server(connection)
    if pymysql is not None and isinstance(connection, pymysql.connections.Connection):
        return "mariadb+pymysql", (connection.host, connection.port, connection.db, connection.get_server_info())
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    is_async = any(hasattr(connection, name) for name in ("__aenter__", "ensure_closed", "fetchrow"))
    raise ConfigurationError((_ASYNC if is_async else _NO_CONNECTION).format(kind=kind))


def postgres_server(connection: Any) -> tuple[Any, ...]:
    """What tells the server and database of a psycopg connection from others."""
    info = connection.info
    return info.host, info.port, info.dbname, info.server_version


def join_sqlalchemy(target: Session | Connection, file: StoreFile) -> JoinedUnit:
    """Join the next transaction of a Session or Connection whose dialect is SQLite.

    Raises:
        JoinRefused: another database or file, autocommit, a savepoint, or statements already run.
        StoreUnavailable: the file's write lock was not to be had within its ``busy_seconds``.
    """
    if target.in_nested_transaction():
        raise JoinRefused(BEGUN)
    connection = _connection_of(target)
    raw = connection.connection.dbapi_connection
    driver: Any = connection.connection.driver_connection
    check_joinable(driver if isinstance(driver, sqlite3.Connection) else _Joinable(raw, driver))
    execute = executing_on(target)
    begin_immediate(execute, file)
    return JoinedUnit(target, execute, file.clock, connection.in_nested_transaction)


def _connection_of(target: Session | Connection) -> Connection:
    connection = target.connection() if isinstance(target, Session) else target
    if connection.dialect.name != "sqlite":
        raise JoinRefused(f"this store is SQLite, the transaction is on {connection.dialect.name}: two databases")
    return connection


def executing_on(target: Session | Connection) -> Execute:
    """Statements in the transaction of a Session or Connection, with rows as they are. Raises JoinRefused."""
    connection = _connection_of(target)
    driver: Any = connection.connection.driver_connection

    def execute(text: str, params: Any) -> tuple[list[Any], int]:
        factory = driver.text_factory  # the user's own: our texts are texts
        driver.text_factory = str
        try:
            result = connection.exec_driver_sql(text, tuple(params))
            rows = [tuple(row) for row in result.fetchall()] if result.returns_rows else []
            return rows, result.rowcount
        except DBAPIError as error:
            if isinstance(error.orig, sqlite3.Error):
                raise error.orig from error
            raise
        except InvalidRequestError as error:
            raise SupersededError(
                "this transaction was ended before its settlement; roll back, do not commit"
            ) from error
        finally:
            driver.text_factory = factory

    return execute


class _Joinable:
    """The two facts about a wrapped connection that ``check_joinable`` asks for."""

    def __init__(self, raw: Any, driver: Any) -> None:
        self.isolation_level = getattr(raw, "isolation_level", getattr(driver, "isolation_level", ""))
        self.in_transaction = bool(getattr(driver, "in_transaction", False))
