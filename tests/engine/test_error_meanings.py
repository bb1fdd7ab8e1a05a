"""What a server's error means: nothing was done, or it is unknown. Confusing the two would run a command twice."""

from __future__ import annotations

import asyncpg
import psycopg
import pymysql
import pytest
import redis

from semel.errors import (
    HandlerRefused,
    SchemaError,
    SemelError,
    StatementRefused,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)
from semel.stores.mariadb import errors as mariadb_errors
from semel.stores.postgres import errors as postgres_errors
from semel.stores.postgres.asyncpg import driver as asyncpg_driver
from semel.stores.postgres.psycopg import driver as psycopg_driver
from semel.stores.postgres.psycopg import timeout as psycopg_patience
from semel.stores.redis import errors as redis_errors
from semel.stores.redis.routes import Node, NodeExchange, RedisRefused

UNDECIDED = StoreTimeout


@pytest.mark.parametrize(
    ("sqlstate", "meant"),
    [
        (None, UNDECIDED),  # no word from the server
        *((code, UNDECIDED) for code in ("08000", "08003", "08006", "08007", "08P01")),  # the connection
        *((code, UNDECIDED) for code in ("57P01", "57P02", "57P05", "40003")),  # ended under the statement
        ("57014", UNDECIDED),  # cancelled: also while it waited for a standby
        *((code, StatementRefused) for code in ("40001", "40P01", "55P03", "53100", "53200", "57P03")),
        ("25006", StoreReadOnly),
        *((code, HandlerRefused) for code in ("23505", "23514", "44000", "P0001", "25P02")),
        *((code, StatementRefused) for code in ("22012", "42501", "XX000")),
        *((code, SchemaError) for code in ("42P01", "3F000", "42703")),
    ],
)
def test_postgresql_errors_are_mapped(sqlstate: str | None, meant: type[SemelError]) -> None:
    assert type(postgres_errors.store_error(sqlstate, "ERROR: no")) is meant


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        (1053, UNDECIDED),  # shutdown
        (1079, UNDECIDED),
        (1152, UNDECIDED),  # aborted connection
        *((code, UNDECIDED) for code in (1158, 1159, 1160, 1161)),  # packets
        (1180, UNDECIDED),  # an error during COMMIT
        (1184, UNDECIDED),
        *((code, UNDECIDED) for code in (1317, 1927, 1969)),  # interrupted, killed, max_statement_time
        *((code, StatementRefused) for code in (1205, 1213, 1020, 1062, 1021, 1047, 1644, 1153)),
        *((code, StoreReadOnly) for code in (1290, 1792, 1836)),
        *((code, SchemaError) for code in (1146, 1054)),
    ],
)
def test_mariadb_errors_are_mapped(code: int, meant: type[SemelError]) -> None:
    refusal = mariadb_errors.parse_refusal(pymysql.OperationalError(code, "no"))
    assert refusal is not None
    assert type(mariadb_errors.store_error(refusal)) is meant
    assert mariadb_errors.ends_connection(refusal) or meant is not UNDECIDED


@pytest.mark.parametrize(
    "error", [(2006, "gone away"), (2013, "lost"), (2014, "out of sync"), (0, ""), ("closed",), ()]
)
def test_errors_of_mariadbs_libraries_are_not_server_errors(error: tuple[object, ...]) -> None:
    assert mariadb_errors.parse_refusal(pymysql.OperationalError(*error)) is None


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("server closed the connection"), psycopg.InterfaceError("closed")]
)
def test_psycopgs_own_errors_are_mapped(error: psycopg.Error) -> None:
    assert type(psycopg_driver.to_error(error)) is UNDECIDED
    assert psycopg_driver.is_stale(error)
    assert not psycopg_driver.is_stale(psycopg_patience.Overdue("no answer"))  # a server that hangs: no second one


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (TimeoutError(), UNDECIDED),
        (ConnectionResetError(), UNDECIDED),
        (asyncpg.ConnectionDoesNotExistError("closed in the middle"), UNDECIDED),
        (asyncpg.InterfaceError("closed"), UNDECIDED),
        (asyncpg.AdminShutdownError("terminating"), UNDECIDED),
        (asyncpg.QueryCanceledError("cancelled"), UNDECIDED),
        (asyncpg.SerializationError("could not serialize"), StatementRefused),
        (asyncpg.DataError("no integer"), StatementRefused),
    ],
)
def test_asyncpgs_errors_are_mapped(error: BaseException, meant: type[SemelError]) -> None:
    assert type(asyncpg_driver.to_error(error)) is meant


@pytest.mark.parametrize(
    "error", [redis.ConnectionError("reset"), redis.TimeoutError("no answer"), ConnectionResetError(), TimeoutError()]
)
def test_redis_errors_are_mapped(error: redis.RedisError | OSError) -> None:
    node = Node("127.0.0.1", 1)
    wanted, alone = NodeExchange(node, ((b"EVALSHA",), (b"GET",))), NodeExchange(node, ((b"EVALSHA",),))
    assert type(redis_errors.judge_lost(wanted, [], error)) is UNDECIDED
    assert type(redis_errors.judge_lost(wanted, [1], redis.BusyLoadingError("loading"))) is UNDECIDED  # a part has run
    assert type(redis_errors.judge_lost(wanted, [], redis.BusyLoadingError("loading"))) is UNDECIDED  # as above
    assert redis_errors.judge_lost(alone, [], redis.BusyLoadingError("loading")) == [RedisRefused("LOADING", "loading")]
    assert type(redis_errors.cannot_connect(wanted.node, error)) is StoreUnavailable
