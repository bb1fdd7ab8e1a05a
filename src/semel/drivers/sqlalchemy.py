"""SQLAlchemy over SQLite: sessions for ATOMIC handlers, and joining a user's Session or Connection.

SQLAlchemy was chosen because it is what most Python services already write with. This one synchronous
driver serves both worlds: ``sqlalchemy_async`` reaches it through ``run_sync``.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from semel.drivers.sqlite_join import BEGUN, Execute, JoinedUnit, StoreFile, begin_immediate, check_joinable
from semel.errors import JoinRefused, SupersededError

__all__ = ["Connection", "Session", "executing_on", "join_sqlalchemy", "session_on"]


def session_on(connection: sqlite3.Connection) -> Session:
    """A Session on an ATOMIC unit's connection. The handler's ``commit()`` ends a savepoint, never the unit.

    Parameters: ``connection`` is ``permit.connection``.
    """
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    return Session(bind=engine, join_transaction_mode="create_savepoint")


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
    return JoinedUnit(target, execute, file.clock)


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
