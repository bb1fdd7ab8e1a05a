"""Several statements in one round trip: the effect of a refusal, a lost name and another caller's pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from semel.stores.postgres.psycopg.pipeline import execute, names_of, trip
from semel.stores.postgres.psycopg.timeout import PatientConnection

ECHO = b"SELECT $1::integer, $2::text, $3::bytea, $4::smallint"
VALUES = (7, "sieben", b"\x00\xff", None)


@pytest.fixture
def connection(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(conninfo) as opened:
        yield opened


def status(connection: psycopg.Connection[Any]) -> str:
    """Whether a transaction is open, by libpq's name of it."""
    return TransactionStatus(connection.info.transaction_status).name


@pytest.mark.parametrize("prepared", [True, False])
def test_values_round_trip(connection: psycopg.Connection[Any], prepared: bool) -> None:
    for _ in range(2):
        rows = execute(connection, (b"BEGIN", None), (ECHO, VALUES), (b"SAVEPOINT here", None), prepared=prepared)
        assert rows == [VALUES]
        assert status(connection) == "INTRANS"
        assert execute(connection, (ECHO, (8, "ä", b"", 3)), (b"COMMIT", None), prepared=prepared) == [(8, "ä", b"", 3)]
        assert status(connection) == "IDLE"
    assert len(names_of(connection)) == (4 if prepared else 0)


def test_a_text_is_written_in_the_connections_encoding(conninfo: str) -> None:
    with psycopg.connect(conninfo, client_encoding="latin1") as connection:
        assert execute(connection, (b"SELECT $1::text, octet_length($1::text)", ("ä",))) == [("ä", 2)]


def test_the_first_refusal_is_raised_and_later_statements_do_not_run(connection: psycopg.Connection[Any]) -> None:
    execute(connection, (b"BEGIN", None), (ECHO, VALUES))
    with pytest.raises(psycopg.errors.DivisionByZero):
        execute(connection, (b"SELECT 1 / $1::integer", (0,)), (b"COMMIT", None))
    assert status(connection) == "INERROR"
    execute(connection, (b"ROLLBACK", None))
    assert execute(connection, (ECHO, VALUES)) == [VALUES]


def test_dropped_prepared_names_are_forgotten_and_never_reused(
    connection: psycopg.Connection[Any],
) -> None:
    execute(connection, (ECHO, VALUES))
    before = names_of(connection)[ECHO]
    connection.execute("DEALLOCATE ALL")
    connection.commit()
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        execute(connection, (ECHO, VALUES))
    assert execute(connection, (ECHO, VALUES)) == [VALUES]
    assert names_of(connection)[ECHO] != before


def test_statements_that_psycopg_drops_after_a_rollback_are_prepared_again(conninfo: str) -> None:
    with PatientConnection.connect(conninfo) as connection:
        execute(connection, (b"BEGIN", None), (ECHO, VALUES), (b"SAVEPOINT here", None))
        connection.execute("SELECT 1", prepare=True)
        connection.execute("ROLLBACK TO SAVEPOINT here")
        connection.execute("SELECT 1")  # and here it says DEALLOCATE ALL
        assert names_of(connection) == {}
        assert execute(connection, (ECHO, VALUES), (b"COMMIT", None)) == [VALUES]


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_a_value_that_cannot_be_encoded_is_refused_before_anything_is_sent(
    connection: psycopg.Connection[Any], text: str
) -> None:
    with pytest.raises((psycopg.DataError, UnicodeEncodeError)):
        execute(connection, (b"BEGIN", None), (ECHO, (7, text, b"", None)))
    assert status(connection) == "IDLE"
    assert execute(connection, (ECHO, VALUES)) == [VALUES]


def test_a_pipeline_that_is_open_is_not_mixed_with(connection: psycopg.Connection[Any]) -> None:
    with connection.pipeline(), pytest.raises(psycopg.InterfaceError, match="was not ended"):
        execute(connection, (ECHO, VALUES))
    assert execute(connection, (ECHO, VALUES)) == [VALUES]


def test_a_connection_whose_server_process_ended_on_the_way_is_lost(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.OperationalError) as lost:
        execute(connection, (b"SELECT pg_terminate_backend(pg_backend_pid(), $1::bigint)", (0,)), (b"COMMIT", None))
    assert lost.value.sqlstate is None
    assert connection.closed


def test_an_interrupted_round_trip_closes_the_connection(connection: psycopg.Connection[Any]) -> None:
    going = trip(connection, ((ECHO, VALUES),), prepared=True)
    next(going)
    going.close()
    assert connection.closed
