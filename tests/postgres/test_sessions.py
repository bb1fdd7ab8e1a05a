"""What a handler does to the session that its connection is, and who meets it afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from semel import Answer, Permit, Policy
from semel.core.model import State
from semel.errors import SemelError, StoreUnavailable
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Kind, Outside, Writes, insert_and_answer
from tests.servers.postgres import schema

MakeFellow = Callable[..., Fellow]
PSYCOPGS = ("psycopg", "psycopg-async")
SLEEP = "SELECT pg_sleep(60)"


# --- commit() and rollback() of psycopg, which asyncpg has not ---


@pytest.mark.parametrize("kind", PSYCOPGS)
def test_a_handlers_commit_is_not_undone_by_its_later_rollback(fellow: Fellow, outside: Outside) -> None:
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
def test_psycopg_refuses_commit_and_rollback_inside_a_transaction_block(
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
def test_a_handlers_settings_do_not_reach_the_next_handler(fellow: Fellow, outside: Outside, early: bool) -> None:
    """Another tenant's rows, another user's rights, or nothing at all any more."""
    seen: list[tuple[Any, ...]] = []
    name = schema()
    outside.connection.execute(
        f"CREATE ROLE role_{name}; GRANT USAGE ON SCHEMA {name} TO role_{name};"
        f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {name} TO role_{name}"
    )
    try:

        async def sets(permit: Permit, db: Writes) -> Answer:
            seen.append(await _state(db))
            for setting in SETTINGS:
                await db.execute(setting.format(schema=name, role=f"role_{name}"))
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
        outside.connection.execute(f"DROP OWNED BY role_{name}; DROP ROLE role_{name}")


# --- what a session has prepared ---


def test_plans_with_changed_column_types_are_prepared_again(fellow: Fellow, outside: Outside) -> None:
    """As a migration may leave them behind under running processes: each command would be refused until a restart."""

    async def handler(permit: Permit, db: Writes) -> Answer:
        return MADE

    def runs(name: str) -> list[bool]:
        policies = (Policy(), ATOMIC)
        return [
            fellow.run(command(f"{name}-{n}", policy=policy), handler).replayed for n, policy in enumerate(policies)
        ]

    assert runs("before") == [False, False]
    assert runs("before") == [True, True]
    outside.connection.execute("ALTER TABLE semel_record ALTER COLUMN status TYPE bigint")
    assert runs("before") == [True, True]
    assert runs("after") == [False, False]
    assert runs("after") == [True, True]


def test_texts_are_decoded_under_any_encoding_of_the_role(kind: Kind, conninfo: str, outside: Outside) -> None:
    role = f"latin_{schema()}"
    outside.connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET client_encoding = latin1")
    fellow = Fellow(kind, conninfo.replace("postgres@", f"{role}@"))
    try:

        async def handler(permit: Permit, db: Writes) -> Answer:
            return MADE

        for policy in (Policy(), ATOMIC):
            named = command("named", policy=policy)
            fellow.run(replace(named, scope=named.scope._replace(tenant=f"Zoë €{policy.effects}")), handler)
        assert {tenant for (tenant,) in outside.fetch("SELECT tenant FROM semel_record")} == {
            f"Zoë €{policy.effects}" for policy in (Policy(), ATOMIC)
        }
    finally:
        fellow.close()
        outside.connection.execute(f"DROP ROLE {role}")


# --- what is under way when the handler ends ---


@pytest.mark.parametrize("kind", PSYCOPGS)
@pytest.mark.parametrize("ends", ["made", "fails"])
@pytest.mark.parametrize("left", ["rows half read", "a statement"])
def test_a_statement_left_running_ends_with_its_command(
    make_fellow: MakeFellow, outside: Outside, ends: str, left: str
) -> None:
    """psycopg's lock is held for as long: the command, its key and its connection would wait for it for ever."""
    fellow = make_fellow(patience_seconds=1.0)
    kept: list[Any] = []

    async def leaves(db: Writes) -> None:
        if left == "rows half read":
            rows: Any = db.connection.cursor().stream("SELECT generate_series(1, 100000)")
            kept.append(rows)
            if isinstance(db.connection, psycopg.Connection):
                next(rows)
            else:
                await anext(rows)
        elif isinstance(db.connection, psycopg.Connection):
            kept.append(threading.Thread(target=_sleeps, args=(db.connection,)))
            kept[0].start()
        else:
            kept.append(asyncio.create_task(db.execute(SLEEP)))
        while not db.connection.lock.locked():
            if fellow.runner is None:
                os.sched_yield()
            else:
                await asyncio.sleep(0)

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await leaves(db)
        if ends == "fails":
            raise Failed
        return MADE

    with pytest.raises(Failed if ends == "fails" else StoreUnavailable, match=None if ends == "fails" else "nothing"):
        fellow.run(WHAT, handler)
    until = time.monotonic() + 20
    while outside.open_transactions:  # a server takes its time to see that its client has hung up
        assert time.monotonic() < until
    assert (outside.rows(), outside.states) == ([], [])
    assert fellow.run(WHAT, insert_and_answer).answer == MADE
    for each in kept:
        if isinstance(each, threading.Thread):
            each.join()
    count, idle = fellow.units
    assert count == idle


def _sleeps(connection: psycopg.Connection[Any]) -> None:
    with suppress(psycopg.Error):
        connection.execute(SLEEP)


class Failed(Exception):
    """The handler's own."""
