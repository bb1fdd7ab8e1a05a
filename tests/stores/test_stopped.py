"""Errors of a database that has stopped a handler's statement: by each library, and behind a wrapper of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import asyncmy.errors
import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from semel import Engine
from semel.stores.backend import Backend
from semel.stores.mariadb.transaction import is_stopped as stopped_by_mariadb
from semel.stores.postgres.errors import is_stopped as stopped_by_postgres
from semel.stores.sqlite.connection import is_stopped as stopped_by_sqlite

IsStopped = Callable[[BaseException], bool]


def _sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    return error


STOPPED: list[tuple[IsStopped, BaseException]] = [
    (stopped_by_postgres, psycopg.errors.QueryCanceled()),
    (stopped_by_postgres, psycopg.errors.LockNotAvailable()),
    (stopped_by_postgres, psycopg.errors.IdleInTransactionSessionTimeout()),
    (stopped_by_postgres, psycopg.OperationalError("the connection is lost")),
    (stopped_by_postgres, asyncpg.QueryCanceledError()),
    (stopped_by_postgres, asyncpg.LockNotAvailableError()),
    (stopped_by_mariadb, pymysql.err.OperationalError(1969, "max_statement_time exceeded")),
    (stopped_by_mariadb, pymysql.err.OperationalError(2013, "Lost connection")),
    (stopped_by_mariadb, asyncmy.errors.OperationalError(1205, "Lock wait timeout exceeded")),
    (stopped_by_sqlite, _sqlite(sqlite3.SQLITE_INTERRUPT)),
]
NOT_STOPPED: list[tuple[IsStopped, BaseException]] = [
    (stopped_by_postgres, psycopg.errors.UniqueViolation()),
    (stopped_by_postgres, psycopg.OperationalError("sending query failed: another command is already in progress")),
    (stopped_by_mariadb, pymysql.err.IntegrityError(1062, "Duplicate entry")),
    (stopped_by_mariadb, pymysql.err.OperationalError(2003, "Can't connect to MySQL server")),
    (stopped_by_mariadb, ValueError(1969)),
    (stopped_by_sqlite, _sqlite(sqlite3.SQLITE_BUSY)),
    (stopped_by_sqlite, ValueError()),
]


def _chain(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(("is_stopped", "error"), STOPPED)
def test_a_stopped_statement_is_recognised_inside_a_wrapping_error(is_stopped: IsStopped, error: BaseException) -> None:
    assert is_stopped(error)
    assert is_stopped(DBAPIError("SELECT", {}, error))
    assert is_stopped(_chain(RuntimeError("as Django does"), error))
    assert is_stopped(_chain(error, error))  # raised from itself


@pytest.mark.parametrize(("is_stopped", "error"), NOT_STOPPED)
def test_an_unrelated_error_is_not_temporary(is_stopped: IsStopped, error: BaseException) -> None:
    assert not is_stopped(error)
    assert not is_stopped(_chain(error, error))


def test_a_timeout_is_a_temporary_error_on_every_store() -> None:
    with Engine.connect("memory://?persistence=none") as engine:
        backend: Backend = engine.backend
        assert backend.is_for_now(TimeoutError())
        assert not backend.is_for_now(ValueError())
