"""How records lie in their table, and which clock they go by: what makes settlements cheap, and leases right."""

from __future__ import annotations

import re
from contextlib import closing

import psycopg
import pytest

from semel import Engine
from semel.core.flow import ask
from semel.stores.postgres import rows as postgres_rows
from semel.stores.postgres import store as postgres
from semel.stores.postgres.url import postgres_backend
from semel.stores.sql.statements import Query, compose
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, Outside
from tests.servers.postgres import schema

INDEXED = """
SELECT DISTINCT a.attname
FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = 'semel_record'::regclass
"""
REPORTS = compose("reports", "SELECT pg_stat_force_next_flush()::text")


@pytest.mark.parametrize("name", ["settle", "settle_in_unit"])
def test_no_index_has_a_column_that_a_settlement_changes(name: str, outside: Outside) -> None:
    """A settlement may then be a HOT update, where its page has room: that is what the fillfactor keeps."""
    _, _, changes = postgres_rows.SQL[name].text.partition("SET\n")
    changed = set(re.findall(r"^\s*(\w+) =", changes.partition("FROM clock")[0], re.MULTILINE))
    assert {"state", "settled_at", "answer_until", "body"} <= changed
    assert {column for (column,) in outside.fetch(INDEXED)} == {"id", "seq", "operation_id"}
    assert not {"id", "seq", "operation_id"} & changed
    assert outside.fetch("SELECT reloptions FROM pg_class WHERE oid = 'semel_record'::regclass") == [
        (["fillfactor=85"],)
    ]


def test_settlements_are_hot_updates(conninfo: str, outside: Outside) -> None:
    outside.connection.execute("ALTER TABLE semel_record SET (autovacuum_enabled = off)")
    outside.connection.execute("SELECT pg_stat_reset_single_table_counters('semel_record'::regclass)")
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
        for number in range(20):
            engine.run(command(f"k{number}"), lambda permit: MADE)
        engine.backend.driver.run(lambda: ask(Query(REPORTS, {})))  # on the same connection: the last one that was used
    [(updated, hot)] = outside.fetch(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'semel_record'::regclass"
    )
    assert (updated, hot) == (20, 20)


def test_a_claim_in_a_long_transaction_has_the_time_of_its_statement(conninfo: str, outside: Outside) -> None:
    """By the time at which the transaction began, which may be long ago, its lease would be shorter than it says."""
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine, psycopg.connect(conninfo) as mine:
        mine.execute(f"SET search_path = {schema()}, public")
        [(began,)] = mine.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchall()
        with engine.atomic(mine, command(policy=ATOMIC)) as once:
            once.answer = MADE
        mine.commit()
    [(created, settled)] = outside.fetch("SELECT created_at, settled_at FROM semel_record")
    assert began < created < settled
    texts = [statement.text for found in (postgres_rows.SQL, postgres.SQL) for statement in found.values()]
    assert not [text for text in texts if re.search(r"\bnow\(\)|transaction_timestamp|clock_timestamp", text)]
