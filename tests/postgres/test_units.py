"""What is particular to units on PostgreSQL; what all databases have in common is in ``semel.testing.units``."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest

from semel import Answer, Engine, Permit
from semel.core.model import State
from semel.errors import (
    EarlyCommit,
    KeyReusedError,
    StatementRefused,
    StoreError,
    StoreUnavailable,
)
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, insert_and_answer, never
from tests.postgres.unit_stories import DATABASE_ERRORS, MakeFellow
from tests.servers.postgres import schema
from verification.subjects.postgres import empty_schema

# --- how a unit ends ---


def test_writes_record_and_answer_are_one_commit(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.insert(2)
        assert (outside.rows(), outside.states) == ([], [])  # nothing is visible before the commit
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.rows(), outside.states) == ([1, 2], [State.SUCCEEDED])
    [(transactions,)] = outside.fetch("SELECT count(DISTINCT xmin::text) FROM effect")
    assert transactions == 1
    again = fellow.run(WHAT, never)
    assert (again.replayed, again.answer) == (True, MADE)
    with pytest.raises(KeyReusedError):
        fellow.run(command(request=1, policy=ATOMIC), never)
    assert (fellow.units, outside.open_transactions) == ((1, 1), 0)


# --- a transaction that ends, or breaks, in spite of it all ---


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_nothing_is_written_outside_the_unit_once_it_was_ended_by_sql(
    fellow: Fellow, outside: Outside, word: str
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert(1)
        await db.execute(word)
        if fellow.kind == "asyncpg":
            with pytest.raises(asyncpg.InterfaceError, match="over"):
                await db.insert(2)
        else:
            await db.insert(2)  # psycopg has begun another transaction, which is never committed
        return MADE

    if word == "COMMIT":
        with pytest.raises(EarlyCommit):
            fellow.run(WHAT, handler)
    else:
        with pytest.raises(StoreUnavailable, match="nothing of it remains"):
            fellow.run(WHAT, handler)
    assert outside.rows() == ([1] if word == "COMMIT" else [])
    assert outside.states == ([State.UNKNOWN] if word == "COMMIT" else [])
    assert (fellow.units, outside.open_transactions) == ((1, 1), 0)


def test_a_statement_error_that_the_handler_swallows_commits_nothing(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        with pytest.raises((psycopg.errors.UniqueViolation, asyncpg.UniqueViolationError)):
            await db.insert()
        return MADE

    with pytest.raises(StoreUnavailable, match="nothing of it remains"):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states, fellow.units, outside.open_transactions) == ([], [], (1, 1), 0)
    assert fellow.run(WHAT, insert_and_answer).answer == MADE


def test_a_statement_error_is_the_handlers_own_failure(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.insert()
        return MADE

    with pytest.raises((psycopg.errors.UniqueViolation, asyncpg.UniqueViolationError)):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states, fellow.units) == ([], [], (1, 1))
    assert fellow.run(WHAT, insert_and_answer).answer == MADE


def test_a_constraint_that_fails_at_the_commit_is_named_and_nothing_remains(fellow: Fellow, outside: Outside) -> None:
    outside.connection.execute("CREATE TABLE child (n integer REFERENCES effect (n) DEFERRABLE INITIALLY DEFERRED)")

    async def orphan(permit: Permit, db: Writes) -> Answer:
        await db.execute("INSERT INTO child VALUES (99)")
        return MADE

    for _ in range(2):
        with pytest.raises(StatementRefused) as refused:
            fellow.run(WHAT, orphan)
        said = str(refused.value)
        assert "child_n_fkey" in said
        assert "correct the handler" in said
        assert "99" not in said  # no stored value
        assert isinstance(
            refused.value.__cause__, (psycopg.errors.ForeignKeyViolation, asyncpg.ForeignKeyViolationError)
        )
        assert (outside.rows("child"), outside.states, fellow.units, outside.open_transactions) == ([], [], (1, 1), 0)
    assert fellow.run(WHAT, insert_and_answer).answer == MADE


# --- the server's own troubles ---


async def _ends_itself(db: Writes, outside: Outside) -> None:
    [(pid,)] = await db.fetch("SELECT pg_backend_pid()")
    outside.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


@pytest.mark.parametrize("when", ["idle", "handler", "before the settle"])
def test_a_backend_that_is_killed_leaves_nothing(fellow: Fellow, outside: Outside, when: str) -> None:
    pids: list[int] = []

    async def warm(permit: Permit, db: Writes) -> Answer:
        [(pid,)] = await db.fetch("SELECT pg_backend_pid()")
        pids.append(pid)
        return MADE

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await _ends_itself(db, outside)
        if when == "handler":
            await db.insert(2)
        return MADE

    fellow.run(command("warm", policy=ATOMIC), warm)
    if when == "idle":  # it died while idle, and is replaced unnoticed
        outside.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pids[0],))
    else:
        with pytest.raises((*DATABASE_ERRORS, StoreError, ConnectionError)):
            fellow.run(WHAT, handler)
        assert (outside.rows(), outside.states) == ([], [State.SUCCEEDED])
    assert fellow.run(WHAT, insert_and_answer).answer == MADE
    assert (outside.rows(), outside.open_transactions) == ([1], 0)
    count, idle = fellow.units
    assert count == idle <= 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_stricter_isolation_changes_nothing(
    make_fellow: MakeFellow, conninfo: str, outside: Outside, isolation: str
) -> None:
    database = "semel_" + isolation.replace(" ", "_")
    with psycopg.connect(conninfo, autocommit=True) as admin:
        if not admin.execute("SELECT FROM pg_database WHERE datname = %s", (database,)).fetchall():
            admin.execute(f"CREATE DATABASE {database}")
            admin.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'")
    strict = f"{conninfo.removesuffix('postgres')}{database}"
    empty_schema(strict, schema())
    with closing(Engine(postgres_backend(strict, schema=schema()))) as engine:
        engine.migrate()
    view = Outside(strict)
    view.connection.execute("CREATE TABLE effect (n integer PRIMARY KEY)")
    fellows = [make_fellow(conninfo=strict) for _ in range(2)]
    seen: list[str] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        [(level,)] = await db.fetch("SHOW transaction_isolation")
        seen.append(level)
        await db.insert()
        return MADE

    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda fellow=fellow: results.append(fellow.run(WHAT, handler, wait_seconds=20)))
        for fellow in fellows
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.replayed for result in results) == [False, True]
    assert (view.rows(), view.states, set(seen)) == ([1], [State.SUCCEEDED], {isolation})
    view.connection.close()


def test_a_deadlock_is_run_again(make_fellow: MakeFellow, outside: Outside) -> None:
    """Two handlers lock two rows crosswise: the server ends one of them, and its whole unit runs again.

    That run may lock its first row before the other, which waits for it, is woken: then they are crosswise once more.
    """
    outside.connection.execute("INSERT INTO effect VALUES (101), (102)")
    fellows = [make_fellow(), make_fellow()]
    both = threading.Barrier(2)
    runs: list[int] = []
    results: list[Any] = []

    def run_one(me: int) -> None:
        first, second = (101, 102) if me == 1 else (102, 101)

        async def handler(permit: Permit, db: Writes) -> Answer:
            again = runs.count(me)
            runs.append(me)
            await db.execute("SET LOCAL deadlock_timeout = '20ms'")
            await db.execute(f"SELECT FROM effect WHERE n = {first} FOR UPDATE")
            if not again:
                both.wait(20)
            await db.execute(f"SELECT FROM effect WHERE n = {second} FOR UPDATE")
            await db.insert(me)
            return MADE

        results.append(fellows[me - 1].run(command(f"deadlock-{me}", policy=ATOMIC), handler))

    threads = [threading.Thread(target=run_one, args=(me,)) for me in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.replayed for result in results] == [False, False]
    assert outside.rows() == [1, 2, 101, 102]
    assert 3 <= len(runs) <= 8  # each at least once and at most four times


def test_a_conflict_that_comes_every_time_is_reported_after_four_runs(fellow: Fellow, outside: Outside) -> None:
    runs: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        runs.append(1)
        await db.insert()
        await db.execute("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$")
        return MADE

    with pytest.raises((psycopg.errors.SerializationFailure, asyncpg.SerializationError)):
        fellow.run(WHAT, handler)
    assert (len(runs), outside.rows(), outside.states, fellow.units) == (4, [], [], (1, 1))


# --- processes ---


def test_a_forked_child_uses_none_of_its_parents_connections(conninfo: str, outside: Outside) -> None:
    fellow = Fellow("psycopg", conninfo)
    fellow.run(WHAT, insert_and_answer)

    async def second(permit: Permit, db: Writes) -> Answer:
        await db.insert(2)
        child = os.fork()
        if child == 0:
            try:  # the parent's transaction is open: this must neither speak on it nor end it
                permit.unit.rollback()
                fellow.run(command("child", policy=ATOMIC), lambda permit, db: made_three(db))
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the parent must stand still
        assert os.waitstatus_to_exitcode(status) == 0
        return MADE

    assert fellow.run(command("parent", policy=ATOMIC), second).answer == MADE
    assert outside.rows() == [1, 2, 3]
    assert fellow.units == (1, 1)
    fellow.close()


async def made_three(db: Writes) -> Answer:
    await db.insert(3)
    return MADE
