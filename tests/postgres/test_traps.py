"""The traps that cost a prototype two thirds of its speed, or its correctness: each is met here, and stays avoided."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from semel import Engine
from semel.core.command_flow import make_settlement
from semel.core.decide import first_grant
from semel.core.flow import Flow, ask
from semel.core.model import Find, InProgress, Proceed, Replay
from semel.core.outcomes import Succeeded
from semel.stores.postgres import rows as postgres_rows
from semel.stores.postgres.psycopg.driver import PostgresServer
from semel.stores.postgres.store import SQL as UPKEEP
from semel.stores.postgres.store import PostgresStore
from semel.stores.postgres.url import postgres_backend
from semel.stores.sql.statements import Query, compose, statements
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Fellow, Outside
from tests.servers.postgres import schema

MakeFellow = Callable[..., Fellow]


def attempts(fellow: Fellow, keys: Sequence[str]) -> list[Any]:
    return [fellow.engine.core.attempt(command(key)) for key in keys]


def claim(fellow: Fellow, claims: list[Any]) -> list[Any]:
    verdicts: list[Any] = fellow.performs("claim", lambda: fellow.engine.store.claim(claims))
    return verdicts


def settle(fellow: Fellow, claims: list[Any], grants: list[Any]) -> None:
    pairs = zip(claims, grants, strict=True)
    settlements = [
        fellow.engine.core.make_settlement(fellow.engine.core.permit(command("x"), *pair), Succeeded(MADE))
        for pair in pairs
    ]
    fellow.performs("settle", lambda: fellow.engine.store.settle(settlements))


def test_a_table_that_was_empty_when_it_was_analyzed_is_not_scanned_for_ever(
    make_fellow: MakeFellow, conninfo: str, outside: Outside
) -> None:
    """An ordinary connection keeps the plan that it has made then, and walks the whole table for every batch."""
    outside.connection.execute("ALTER TABLE semel_record SET (autovacuum_enabled = off)")
    outside.connection.execute("ANALYZE semel_record")
    role = f"planner_{schema()}"
    outside.connection.execute(f"DROP ROLE IF EXISTS {role}")
    outside.connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    fellow, filler = (make_fellow(conninfo=conninfo.replace("postgres@", f"{role}@")) for _ in range(2))
    early = attempts(fellow, [f"early-{number}" for number in range(12)])
    outside.connection.execute("SELECT pg_stat_reset_single_table_counters('semel_record'::regclass)")
    for one in early:  # as often as a connection needs to settle on a plan
        grants = [verdict.grant for verdict in claim(fellow, [one])]
        settle(fellow, [one], grants)
        fellow.performs("read", lambda one=one: fellow.engine.store.read((one.id,)))
        outside.connection.execute("TRUNCATE semel_record")
    claims = attempts(filler, [f"k{number}" for number in range(2000)])
    grants = [verdict.grant for verdict in claim(filler, claims)]
    for number in range(0, 2000, 20):
        settle(fellow, claims[number : number + 20], grants[number : number + 20])
    for number in range(0, 2000, 200):
        replays = claim(fellow, attempts(fellow, [f"k{number}", f"k{number + 1}"]))
        assert [type(verdict) for verdict in replays] == [Replay] * 2
    fellow.performs("read", lambda: fellow.engine.store.read((claims[0].id,)))
    for each in (fellow, filler):
        each.tell(_end_connections(each))  # and so they report what they did
    ends = time.monotonic() + 20
    while outside.fetch(f"SELECT FROM pg_stat_activity WHERE usename = '{role}'"):
        assert time.monotonic() < ends
    [(walked,)] = outside.fetch("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'semel_record'::regclass")
    assert walked < 2000
    outside.connection.execute(f"DROP ROLE {role}")


async def _end_connections(fellow: Fellow) -> None:
    """End its connections, so that they report their statistics."""
    done = fellow.engine.close()
    if done is not None:
        await done


def test_a_cached_plan_made_on_an_empty_table_uses_the_primary_key(conninfo: str, outside: Outside) -> None:
    """Without values and without rows: what a connection that is used before there is anything plans for all time."""
    outside.connection.execute("ANALYZE semel_record")
    every = {**postgres_rows.SQL, **statements("semel.steps", "sql/postgres_steps.sql")}
    kept = [statement for statement in every.values() if statement.planned_once]
    kept += [postgres_rows.CLAIM_ALIKE, postgres_rows.CLAIM_IN_TERMS, postgres_rows.SETTLE_ALIKE]
    assert {statement.name for statement in kept} >= {"claim", "claim_alike", "settle", "look", "write_steps"}
    with psycopg.connect(conninfo, **PostgresServer(conninfo, schema=schema()).options()) as planner:
        for statement in kept:
            explained = planner.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN) {statement.numbered}".encode())
            assert explained.status == ExecStatus.TUPLES_OK, explained.error_message
            lines = [(explained.get_value(row, 0) or b"").decode() for row in range(explained.ntuples)]
            for line, beneath in zip(lines, [*lines[1:], ""], strict=True):
                assert "Seq Scan" not in line, statement.name
                assert "Cond:" in beneath or "Scan" not in line or "semel_" not in line, (statement.name, line)


def test_a_unit_is_planned_anew_until_no_plan_of_it_scans_the_table(conninfo: str, outside: Outside) -> None:
    """A user's connection may scan, keeps the plan that it made among a few records, and asks for it by its text."""
    store, texts = PostgresStore(), []
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
        claims = [engine.core.attempt(command(f"k{number}")) for number in range(1000)]
        for one in claims:
            asked = next(store.claim_in_unit(one))
            assert isinstance(asked, Query)
            texts.append(asked.statement.numbered)
        assert [texts.index(text) for text in dict.fromkeys(texts)] == [0, 9, 99, 999]
        last = store.settle_within(make_settlement(first_grant(claims[0], 1), Succeeded(MADE)))
        assert isinstance(last, Query)
        outside.connection.execute("ALTER TABLE semel_record SET (autovacuum_enabled = off)")
        outside.connection.execute("ANALYZE semel_record")
        engine.backend.driver.run(lambda: engine.store.claim(claims))
    for text in (texts[-1], last.statement.numbered):
        explained = outside.connection.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN) {text}".encode())
        lines = [(explained.get_value(row, 0) or b"").decode() for row in range(explained.ntuples)]
        assert any("Index Scan using semel_record_pkey" in line for line in lines)
        assert not any("Seq Scan" in line for line in lines)


def test_a_connection_keeps_only_the_plans_of_claims_and_settlements(make_fellow: MakeFellow) -> None:
    """Planning took half of a server's time for a command. The others are planned for their values, each time again."""
    fellow = make_fellow()
    for number in range(8):
        claims = attempts(fellow, [f"k{number}"])
        settle(fellow, claims, [verdict.grant for verdict in claim(fellow, claims)])
        fellow.performs("find", lambda: fellow.engine.store.find(Find()))
    text = "SELECT statement FROM pg_prepared_statements WHERE generic_plans > 0"
    rows = fellow.performs("seen", lambda: ask(Query(compose("seen", text), {})))
    kept = {row[0] for row in rows} - {text}  # without values there is nothing to plan anew for
    both = {postgres_rows.CLAIM_ALIKE.numbered, postgres_rows.SETTLE_ALIKE.numbered}
    assert kept & (both | {UPKEEP["find"].numbered}) == both


def test_every_batch_is_sent_in_the_order_of_its_ids(conninfo: str) -> None:
    """Unsorted, a fifth of the batches that cross one another died: they lock the same rows in opposite orders."""
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
        claims = [engine.core.attempt(command(f"k{number}")) for number in range(50)]
        flow: Flow[Any] = engine.store.claim(claims)
        asked = next(flow)
        assert isinstance(asked, Query)
        assert not isinstance(asked.params, tuple)
        ids: Any = asked.params["id"]
        assert ids == sorted(one.id for one in claims) != [one.id for one in claims]
        settlements = [make_settlement(first_grant(one, 1), Succeeded(MADE)) for one in claims]
        told = next(engine.store.settle(settlements))
        assert isinstance(told, Query)
        assert not isinstance(told.params, tuple)
        assert told.params["id"] == ids


def test_a_claim_that_sees_no_row_is_repeated(conninfo: str, outside: Outside) -> None:
    """Its snapshot is older than the winner's commit, and its insert met the winner's row: 41 % in a race."""
    fellows = [Fellow("psycopg", conninfo) for _ in range(4)]
    met: list[Any] = []
    for round_ in range(25):
        together = threading.Barrier(4)

        def one(fellow: Fellow, key: str, together: threading.Barrier) -> None:
            claims = attempts(fellow, [key])
            together.wait()
            met.extend(claim(fellow, claims))

        threads = [threading.Thread(target=one, args=(fellow, f"race-{round_}", together)) for fellow in fellows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for fellow in fellows:
        fellow.close()
    assert len(met) == 100
    assert sum(isinstance(verdict, Proceed) for verdict in met) == 25
    assert sum(isinstance(verdict, InProgress) for verdict in met) == 75


def test_a_claim_that_sees_no_row_three_times_is_in_progress(conninfo: str) -> None:
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
        one = engine.core.attempt(command("k"))
        flow: Flow[Any] = engine.store.claim([one])
        next(flow)
        for _ in range(2):  # neither of these may be the answer already
            flow.send([])
        with pytest.raises(StopIteration) as stop:
            flow.send([])
        assert [type(verdict) for verdict in stop.value.value] == [InProgress]


def test_a_purge_and_a_command_do_not_wait_for_one_another(
    make_fellow: MakeFellow, conninfo: str, outside: Outside
) -> None:
    """Another transaction locks rows that a purge reads: the purge skips them and does not wait."""
    fellow = make_fellow(patience_seconds=2.0)
    claim(fellow, attempts(fellow, [f"k{number}" for number in range(20)]))
    with psycopg.connect(conninfo, options=f"-c search_path={schema()}") as holder:
        holder.execute("UPDATE semel_record SET state = 3, settled_at = 0, answer_until = 0, forget_after = 0")
        fellow.performs("purge", lambda: fellow.engine.store.purge(None, 100))
        holder.commit()
    with psycopg.connect(conninfo, options=f"-c search_path={schema()}") as holder:  # of rows that are over by now
        holder.execute("SELECT FROM semel_record ORDER BY seq LIMIT 5 FOR UPDATE")
        purged = fellow.performs("purge", lambda: fellow.engine.store.purge(None, 100))
        assert purged.forgotten == 15
    purged = fellow.performs("purge", lambda: fellow.engine.store.purge(None, 100))
    assert purged.forgotten == 5
    assert outside.states == []
