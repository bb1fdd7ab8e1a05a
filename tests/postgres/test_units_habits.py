"""What a handler may do to its connection by habit on PostgreSQL: commits, blocks, settings, writes after the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import psycopg
import pytest

from semel import Answer, Permit
from semel.core.model import State
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes
from tests.postgres.unit_stories import DATABASE_ERRORS, REFUSED, Failed

# --- what a handler may do by habit ---


async def _commits(db: Writes) -> None:
    await db.insert()
    await db.commit()
    await db.commit()


async def _rolls_back(db: Writes) -> None:
    await db.insert(7)
    await db.rollback()
    await db.rollback()
    await db.insert()


@pytest.mark.parametrize("undoes", [False, True])
def test_a_grant_that_replaces_an_old_record_makes_no_savepoint(fellow: Fellow, outside: Outside, undoes: bool) -> None:
    """What a handler rolls back are its own writes; the grant is the transaction's own, not a savepoint's."""
    store = fellow.backend.store
    given_up = fellow.engine.core.attempt(WHAT)
    fellow.performs("claim", lambda: store.claim([given_up]))
    assert fellow.performs("abandon", lambda: store.abandon([(given_up.id, given_up.nonce)])) == [True]
    assert outside.states == [State.FAILED_NOT_REPLAYABLE]

    async def handler(permit: Permit, db: Writes) -> Answer:
        if undoes and not isinstance(db.connection, asyncpg.Connection):
            await db.insert(7)
            await db.rollback()
        await db.insert()
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


async def _closes(db: Writes) -> None:
    await db.insert()
    await db.close()
    assert await db.fetch("SELECT n FROM effect") == [(1,)]


async def _with(db: Writes) -> None:
    if isinstance(db.connection, psycopg.Connection):
        with db.connection:
            await db.insert()
    else:
        async with db.connection:
            await db.insert()


async def _transaction(db: Writes) -> None:
    if isinstance(db.connection, psycopg.Connection):
        with db.connection.transaction():
            await db.insert()
    else:
        async with db.connection.transaction():
            await db.insert()


async def _transaction_undone(db: Writes) -> None:
    await db.insert()
    try:
        if isinstance(db.connection, psycopg.Connection):
            with db.connection.transaction():
                await db.insert()
        else:
            async with db.connection.transaction():
                await db.insert()
    except (psycopg.errors.UniqueViolation, asyncpg.UniqueViolationError):
        assert await db.fetch("SELECT n FROM effect") == [(1,)]


async def _own_savepoint(db: Writes) -> None:
    await db.execute("SAVEPOINT mine")
    await db.insert(7)
    await db.execute("ROLLBACK TO mine")
    await db.insert()


async def _ddl(db: Writes) -> None:
    await db.execute("CREATE TABLE more (n integer)")
    await db.insert()


HABITS: list[Callable[[Writes], Awaitable[None]]] = [_transaction, _transaction_undone, _own_savepoint, _ddl]
PSYCOPGS: list[Callable[[Writes], Awaitable[None]]] = [_commits, _rolls_back, _with]  # asyncpg has no such methods


@pytest.mark.parametrize("habit", [*HABITS, *PSYCOPGS, _closes])
@pytest.mark.parametrize("ends", ["made", "fails", "refuses"])
def test_a_handlers_commit_or_rollback_does_not_end_the_unit(
    fellow: Fellow, outside: Outside, habit: Callable[[Writes], Awaitable[None]], ends: str
) -> None:
    if habit in PSYCOPGS and fellow.kind == "asyncpg":
        habit = _transaction

    async def handler(permit: Permit, db: Writes) -> Answer:
        await habit(db)
        assert (outside.rows(), outside.states) == ([], [])
        if ends == "fails":
            raise Failed
        return MADE if ends == "made" else REFUSED

    if ends == "fails":
        with pytest.raises(Failed):
            fellow.run(WHAT, handler)
    else:
        fellow.run(WHAT, handler)
    assert outside.rows() == ([1] if ends == "made" else [])
    assert outside.states == {"made": [3], "fails": [], "refuses": [4]}[ends]
    assert (fellow.units, outside.open_transactions) == ((1, 1), 0)


def test_a_handlers_connection_settings_do_not_reach_the_next_handler(fellow: Fellow) -> None:
    async def sets(permit: Permit, db: Writes) -> Answer:
        if isinstance(db.connection, (psycopg.Connection, psycopg.AsyncConnection)):
            db.connection.row_factory = psycopg.rows.dict_row
            db.connection.prepare_threshold = 0
        for _ in range(10):
            await db.fetch("SELECT n FROM effect WHERE n = 1")
        return MADE

    async def reads(permit: Permit, db: Writes) -> Answer:
        for _ in range(10):  # what the session has prepared already is known to be
            assert await db.fetch("SELECT 1 AS a") == [(1,)]
            await db.fetch("SELECT n FROM effect WHERE n = 1")
        return MADE

    for number in range(2):
        fellow.run(command(f"sets-{number}", policy=ATOMIC), sets)
        fellow.run(command(f"reads-{number}", policy=ATOMIC), reads)
    assert fellow.units == (1, 1)


@pytest.mark.parametrize("ends", ["made", "fails", "refuses"])
def test_a_write_after_the_end_fails_loudly(fellow: Fellow, outside: Outside, ends: str) -> None:
    """Also while the session serves another command, whose transaction it would otherwise land in."""
    kept: list[Writes] = []
    permits: list[Permit] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        kept.append(db)
        permits.append(permit)
        if ends == "fails":
            raise Failed
        return MADE if ends == "made" else REFUSED

    async def other(permit: Permit, db: Writes) -> Answer:
        for late in kept:
            with pytest.raises(DATABASE_ERRORS):
                await late.insert(9)
        with pytest.raises(DATABASE_ERRORS):
            _ = permits[0].connection
        await db.insert()
        return MADE

    if ends == "fails":
        with pytest.raises(Failed):
            fellow.run(WHAT, handler)
    else:
        fellow.run(WHAT, handler)
    fellow.run(command("other", policy=ATOMIC), other)
    assert (outside.rows(), fellow.units) == ([1], (1, 1))
