"""What a handler does to the session that its connection is, and who meets it afterwards."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from semel import Answer, Permit
from semel.errors import SemelError
from semel.model import State
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes

PSYCOPGS = ("psycopg", "psycopg-async")


# --- commit() and rollback() of psycopg, which asyncpg has not ---


@pytest.mark.parametrize("kind", PSYCOPGS)
def test_what_a_handler_commits_is_not_undone_by_its_later_rollback(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert(7)
        await db.rollback()
        await db.insert(1)
        await db.commit()
        with pytest.raises(psycopg.errors.UniqueViolation):
            await db.insert(1)
        await db.commit()  # of a transaction that has failed: nothing, as ever
        await db.rollback()
        await db.insert(2)
        await db.rollback()
        assert outside.rows() == []
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


@pytest.mark.parametrize("kind", PSYCOPGS)
@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_inside_a_transaction_block_psycopg_refuses_both_as_it_always_does(
    fellow: Fellow, outside: Outside, word: str
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        async def within() -> None:
            await db.insert(1)
            with pytest.raises(psycopg.ProgrammingError, match="forbidden within a Transaction"):
                await getattr(db, word)()

        if isinstance(db.connection, psycopg.Connection):
            with db.connection.transaction():
                await within()
        else:
            async with db.connection.transaction():
                await within()
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


# --- settings of the session ---


async def _state(db: Writes) -> tuple[Any, ...]:
    [row] = await db.fetch(
        "SELECT current_user, coalesce(current_setting('app.tenant', true), ''), current_setting('search_path'), "
        "current_setting('transaction_read_only'), current_setting('statement_timeout')"
    )
    return row


SETTINGS = (
    "SET app.tenant = 'acme'",
    "SET default_transaction_read_only = on",
    "SET statement_timeout = '7s'",
    "SET search_path = {schema}, pg_catalog",
    "SET ROLE {role}",
)


@pytest.mark.parametrize("early", [False, True], ids=["settled", "committed early"])
def test_what_one_handler_sets_is_not_the_next_ones(fellow: Fellow, outside: Outside, early: bool) -> None:
    """Another tenant's rows, another user's rights, or nothing at all any more."""
    seen: list[tuple[Any, ...]] = []
    [(schema,)] = outside.fetch("SELECT current_schema()")
    outside.connection.execute(
        f"CREATE ROLE role_{schema}; GRANT USAGE ON SCHEMA {schema} TO role_{schema};"
        f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO role_{schema}"
    )
    try:

        async def sets(permit: Permit, db: Writes) -> Answer:
            seen.append(await _state(db))
            for setting in SETTINGS:
                await db.execute(setting.format(schema=schema, role=f"role_{schema}"))
            if early:
                await db.execute("COMMIT")
            return MADE

        async def looks(permit: Permit, db: Writes) -> Answer:
            seen.append(await _state(db))
            await db.insert()
            return MADE

        if early:
            with pytest.raises(SemelError):  # its settlement was not allowed to write, either
                fellow.run(command("sets", policy=ATOMIC), sets)
        else:
            fellow.run(command("sets", policy=ATOMIC), sets)
        assert fellow.run(WHAT, looks).answer == MADE
        assert seen[0] == seen[1]
        assert (outside.rows(), fellow.units) == ([1], (1, 1))
    finally:
        outside.connection.execute(f"DROP OWNED BY role_{schema}; DROP ROLE role_{schema}")
