"""SQLAlchemy: sessions on the connection of an ATOMIC unit, and joining a Session or Connection on SQLite.

A session is bound to an engine whose pool holds one connection, the unit's. A process asks SQLAlchemy's first questions
to a server only once: later units share the dialect and the compiled statements.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.engine.url import URL, make_url
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import LRUCache

from semel.articles import name_type
from semel.errors import ConfigurationError, JoinRefused, SupersededError
from semel.stores.mariadb.sqlalchemy import count_found_rows
from semel.stores.sqlite.join import BEGUN, Execute, JoinedUnit, StoreFile, begin_immediate, check_joinable

__all__ = ["Connection", "JoinedSession", "Session", "bound_engine", "executing_on", "join_sqlalchemy", "session_on"]

STATEMENTS_COMPILED: Final = 500  # SQLAlchemy's own default
_ASYNC: Final = (
    "{kind} belongs to an AsyncEngine's handler; open a session on it with async_session_on of "
    "semel.stores.sql.sqlalchemy_async"
)
_NO_CONNECTION: Final = (
    "{kind} is not a connection of an ATOMIC unit that SQLAlchemy has a dialect for; pass permit.connection"
)
_known: dict[tuple[Any, ...], tuple[Dialect, LRUCache[Any, Any]]] = {}


def session_on(connection: Any, **options: Any) -> Session:
    """Open a Session on an ATOMIC unit's connection: sqlite3's, psycopg's or PyMySQL's.

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
    return Session(_engine_on(connection), **options)


def mark_of(connection: Any) -> Callable[[], object] | None:
    """For an item of a bulk, return what a session calls to mark where its rollback ends; None elsewhere."""
    mark: Callable[[], object] | None = getattr(getattr(connection, "rollback", None), "mark", None)
    return mark


def _engine_on(connection: Any) -> Engine:
    """Make an engine whose only connection is an ATOMIC unit's. Raises ConfigurationError."""
    dialect, server = _dialect_of(connection)

    def borrow(_: Dialect) -> Any:
        mark = mark_of(connection)
        if mark is not None or (dialect, server) not in _known:
            connection.commit()  # SQLAlchemy rolls back its first questions to a new server
        if mark is not None:
            mark()
        return connection

    return bound_engine(dialect, server, borrow)


_WROTE: Final = "semel_wrote"  # in session.info
_READING: Final = frozenset({"SELECT", "SHOW", "EXPLAIN", "PRAGMA", "SET", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK"})
_PENDING: Final = (
    "{name}: the session has changes that were made before the command; commit them there (they are made for each "
    "attempt, replays too), or make them inside the view, where they are part of the command"
)
_OTHER: Final = (
    "{name}: effects='atomic' commits the record with the rows of {home}, and this session was asked for {other}; what "
    "is written there would not be part of the command. Use a session of its own for it"
)
_SECOND: Final = (
    "{name}: a second session of the application began inside the command (after session.remove(), or in another "
    "application context): what it commits would not be part of the command. Write with the session that the view was "
    "given; what shall outlive a rollback belongs into a Session(engine) of its own"
)


class JoinedSession:
    """The application's own session, whose work is part of one ATOMIC command from here to :meth:`leave`.

    Its objects stay with it, and are read again on the command's connection. ``commit()`` keeps what the session wrote
    for Semel's COMMIT, and never ends the unit; ``rollback()``, and a close without a commit, undo everything since the
    last commit.

    Parameters: ``session``; ``connection`` is ``permit.connection``; ``name`` of the operation, for errors.

    Raises ConfigurationError: the connection is none that SQLAlchemy has a dialect for.
    """

    def __init__(self, session: Session, connection: Any, name: str) -> None:
        self._session = session
        self._name = name
        unit, find, home = _engine_on(connection), session.get_bind, session.get_bind().engine

        def get_bind(*args: Any, **kwargs: Any) -> Engine:
            found = find(*args, **kwargs).engine
            if found is not home:
                raise ConfigurationError(_OTHER.format(name=name, home=engine_label(home), other=engine_label(found)))
            return unit

        session.rollback()  # the session has only read so far
        session.get_bind = get_bind  # type: ignore[method-assign]
        self._outer = _joined.get()
        _joined.set(self)

    def check(self, session: Session) -> None:
        """Refuse a second session of the application meanwhile. Raises ConfigurationError."""
        if session is not self._session:
            raise ConfigurationError(_SECOND.format(name=self._name))

    def leave(self) -> None:
        """Roll back uncommitted changes, and return the session to its own engine."""
        _joined.set(self._outer)
        try:
            if self._session.in_transaction():
                self._session.rollback()
        finally:
            vars(self._session).pop("get_bind", None)


_joined: Final[ContextVar[JoinedSession | None]] = ContextVar("semel_joined", default=None)
_owners: Final[weakref.WeakKeyDictionary[Connection, weakref.ref[Session]]] = weakref.WeakKeyDictionary()


def engine_label(engine: Engine) -> str:
    """Name a database for an error, without its password."""
    return engine.url.render_as_string(hide_password=True)


def check_unwritten(session: Session, name: str) -> None:
    """Refuse a session with changes that would be lost, or made twice. Raises ConfigurationError."""
    if session.new or session.dirty or session.deleted or session.info.get(_WROTE):
        raise ConfigurationError(_PENDING.format(name=name))


def watch_sessions(sessions: Any) -> None:
    """Note in each session of a ``scoped_session`` or ``sessionmaker`` whether its open transaction has written.

    While one of them is part of a command, no other session of the same thread may begin.
    """
    for event_name, listener in (("after_begin", _note_begin), ("after_transaction_end", _note_end)):
        if not event.contains(sessions, event_name, listener):
            event.listen(sessions, event_name, listener)


def _note_begin(session: Session, transaction: object, connection: Connection) -> None:
    joined = _joined.get()
    if joined is not None:
        joined.check(session)
        return
    _owners[connection] = weakref.ref(session)
    if not event.contains(connection.engine, "after_cursor_execute", _note_statement):
        event.listen(connection.engine, "after_cursor_execute", _note_statement)


def _note_end(session: Session, transaction: Any) -> None:
    if transaction.parent is None:
        session.info.pop(_WROTE, None)


def _note_statement(
    connection: Connection, cursor: object, statement: str, parameters: object, context: Any, executemany: bool
) -> None:
    owner = _owners.get(connection)
    session = None if owner is None else owner()
    if session is not None and not _only_reads(statement, context):
        session.info[_WROTE] = True


def _only_reads(statement: str, context: Any) -> bool:
    if context.isinsert or context.isupdate or context.isdelete:
        return False
    if context.compiled is not None and getattr(context.compiled.statement, "is_select", False):
        return True
    return statement.lstrip("( \t\r\n").partition(" ")[0].rstrip(";").upper() in _READING


def check_same_database(bind: Engine, store_url: str, path: str | None) -> None:
    """Refuse a session's database that is, by its URL, not the store's.

    Parameters: ``path`` of an SQLite store's file. Raises ConfigurationError.
    """
    store = make_url(store_url)
    kinds = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
    kind = kinds.get(bind.dialect.name, bind.dialect.name)
    same = kind == kinds.get(store.get_backend_name(), store.get_backend_name())
    if same and path is not None:
        same = bool(bind.url.database) and os.path.realpath(str(bind.url.database)) == os.path.realpath(path)
    elif same and bind.url.database and store.database:
        same = bind.url.database == store.database
    if not same:
        raise ConfigurationError(
            f"effects='atomic' commits the record with the session's rows, and the session's database "
            f"{engine_label(bind)} is not the store {store.render_as_string(hide_password=True)}: give both one "
            "database, declare effects='external', or pass session=None where views write on permit.connection alone"
        )


def check_joinable_bind(bind: Engine, join: Callable[[Any], Any]) -> None:
    """Ask the server whether a session's connections reach the store. Raises ConfigurationError."""
    try:
        with bind.connect() as connection:
            connection.begin()
            join(connection)
    except JoinRefused as error:
        raise ConfigurationError(f"effects='atomic' on the session's database {engine_label(bind)}: {error}") from error


def bound_engine(name: str, server: tuple[Any, ...], borrow: Callable[[Dialect], Any]) -> Engine:
    """Make an engine whose only connection is the one that ``borrow`` returns, in the dialect's form.

    Parameters: ``name`` of the dialect with its driver; ``server`` identifies the server.
    """
    known = _known.get((name, server))
    if known is None:
        url = URL.create(name)
        made: Engine = create_engine(
            url, creator=lambda: borrow(made.dialect), poolclass=StaticPool, pool_reset_on_return=None
        )
        compiled = LRUCache[Any, Any](STATEMENTS_COMPILED)
        if name.startswith("mariadb+"):
            count_found_rows(made.dialect)

        def remember(*_: object) -> None:
            _known[name, server] = made.dialect, compiled

        event.listen(made, "connect", remember)  # after SQLAlchemy's own listener, which queries the server
        return made
    dialect, compiled = known
    pool = StaticPool(lambda: borrow(dialect), dialect=dialect, reset_on_return=None)
    prepare = dialect.on_connect()
    if prepare is not None:
        event.listen(pool, "connect", lambda connection, _: prepare(connection))
    return Engine(pool, dialect, URL.create(name), execution_options={"compiled_cache": compiled})


def _dialect_of(connection: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the dialect for a unit's connection, and its server's identity. Raises ConfigurationError."""
    if isinstance(connection, sqlite3.Connection):
        return "sqlite", ()
    psycopg, pymysql = sys.modules.get("psycopg"), sys.modules.get("pymysql")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return "postgresql+psycopg", postgres_server(connection)
    if pymysql is not None and isinstance(connection, pymysql.connections.Connection):
        return "mariadb+pymysql", (connection.host, connection.port, connection.db, connection.get_server_info())
    is_async = any(hasattr(connection, name) for name in ("__aenter__", "ensure_closed", "fetchrow"))
    raise ConfigurationError(
        (_ASYNC if is_async else _NO_CONNECTION).format(kind=name_type(connection, with_module=True))
    )


def postgres_server(connection: Any) -> tuple[Any, ...]:
    """Return the identity of a psycopg connection's server and database."""
    info = connection.info
    return info.host, info.port, info.dbname, info.server_version


def join_sqlalchemy(target: Session | Connection, file: StoreFile) -> JoinedUnit:
    """Join the next transaction of a Session or Connection whose dialect is SQLite.

    Raises:
        JoinRefused: another database or file, autocommit, a savepoint, or statements already run.
        StoreUnavailable: the file's write lock was not free within its ``busy_seconds``.
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
    """Make the function that executes statements in a Session's or Connection's transaction. Raises JoinRefused."""
    connection = _connection_of(target)
    driver: Any = connection.connection.driver_connection

    def execute(text: str, params: Any) -> tuple[list[Any], int]:
        factory = driver.text_factory  # the user may have changed it; our texts are str
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
