"""Arrays as they are written for the wire: what the server reads is what was meant, and a wrong item sends nothing."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from semel.errors import StatementRefused
from semel.stores.postgres.psycopg.arrays import pack, with_arrays
from semel.stores.postgres.psycopg.pipeline import execute
from semel.stores.sql.statements import compose
from tests.servers import postgres

KINDS: dict[str, list[Any]] = {
    "smallint": [0, -1, 32767, -32768, None],
    "integer": [0, 2**31 - 1, -(2**31), None],
    "bigint": [0, 2**63 - 1, -(2**63), None],
    "text": ["", "a", 'it\'s "{quoted}", \\ and ,', "NULL", "ÄÖ €", None],
    "bytea": [b"", b"\x00\xff", b"\\x00", bytes(range(256)), None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_decodes_the_encoded_arrays(kind: str) -> None:
    items = KINDS[kind]
    statement = f"SELECT $1::{kind}[]".encode()
    with psycopg.connect(postgres.postgres(), autocommit=True) as connection:
        for some in ([], items[:1], items[:-1], items, [None], [None] * 3, items[:1] * 200, items[1:2] * 200):
            for _ in range(2):  # what is kept of a column, too
                assert execute(connection, (statement, (pack(some, kind),))) == [(some,)]


@pytest.mark.parametrize(
    ("kind", "item"),
    [("smallint", 32768), ("bigint", "1"), ("text", 1), ("text", "\ud800"), ("bytea", "text"), ("integer", b"1")],
)
def test_an_item_of_another_type_is_refused_and_nothing_is_sent(kind: str, item: Any) -> None:
    statement = compose("wrong", f"SELECT :items::{kind}[], :now::bigint")
    with pytest.raises(StatementRefused, match="PostgreSQL cannot take these values"):
        with_arrays(statement, [[item], 1])


def test_only_array_parameters_are_encoded_as_arrays() -> None:
    statement = compose("some", "SELECT :ids::bytea[], :limit::bigint, :ids::bytea[], :states::smallint[]")

    values = with_arrays(statement, [[b"1"], 5, None])

    assert values == [pack([b"1"], "bytea"), 5, None]
