"""A unit that Semel opened on PostgreSQL: whatever a handler does to it, it is one commit, or nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest

from semel import Answer, Engine, NothingHappened, Permit, Policy
from semel.engine.connect_postgres import postgres_backend
from semel.errors import (
    EarlyCommit,
    InProgressError,
    KeyReusedError,
    OutcomeUnknownError,
    StatementRefused,
    StoreError,
    StoreUnavailable,
)
from semel.model import State
from semel.testing.postgres import empty_schema
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, made, never
from tests.servers.postgres import schema

REFUSED = Answer(409, (), b"out of stock")
MakeFellow = Callable[..., Fellow]
DATABASE_ERRORS = (psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError)


class Failed(Exception):
    """The handler gives up."""


class Gone(BaseException):
    """Not even an Exception."""


# --- how a unit ends ---


def test_writes_record_and_answer_are_one_commit(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.insert(2)
        assert (outside.rows(), outside.states) == ([], [])  # nobody sees anything before the commit
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


ENDS: list[tuple[Answer | BaseException, Policy]] = [
    (Failed(), ATOMIC),
    (Gone(), ATOMIC),
    (NothingHappened(), ATOMIC),
    (psycopg.IntegrityError(), ATOMIC),
    (Answer(500, (), b""), ATOMIC),
    (Answer(429, (), b""), ATOMIC),
    (Answer(409, (), b""), Policy(effects="atomic", replay="2xx")),
]


@pytest.mark.parametrize(("end", "policy"), ENDS)
def test_what_proves_nothing_is_rolled_back_and_runs_again(
    fellow: Fellow, outside: Outside, end: Answer | BaseException, policy: Policy
) -> None:
    what = command(policy=policy)

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        if isinstance(end, BaseException):
            raise end
        return end

    if isinstance(end, BaseException):
        with pytest.raises(type(end)):
            fellow.run(what, handler)
    else:
        assert fellow.run(what, handler).answer == end
    assert (outside.rows(), outside.states, fellow.units, outside.open_transactions) == ([], [], (1, 1), 0)
    assert fellow.run(what, made).answer == MADE
    assert outside.rows() == [1]


def test_a_definite_refusal_is_rolled_back_and_stored_in_a_commit_of_its_own(fellow: Fellow, outside: Outside) -> None:
    async def refuses(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        return REFUSED

    assert fellow.run(WHAT, refuses).answer == REFUSED
    assert (outside.rows(), outside.states) == ([], [State.FAILED_REPLAYABLE])
    assert fellow.run(WHAT, never).answer == REFUSED
    assert (fellow.units, outside.open_transactions) == ((1, 1), 0)


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
def test_a_grant_that_replaces_an_old_record_stands_behind_no_savepoint(
    fellow: Fellow, outside: Outside, undoes: bool
) -> None:
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
def test_a_habit_changes_nothing(
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


def test_what_one_handler_sets_on_its_connection_is_not_the_next_ones(fellow: Fellow) -> None:
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


# --- a transaction that ends, or breaks, in spite of it all ---


@pytest.mark.parametrize(
    "end", [MADE, REFUSED, Answer(500, (), b""), Failed(), NothingHappened()], ids=lambda end: str(end)[:20]
)
def test_an_early_commit_is_unknown_however_the_handler_ends(
    fellow: Fellow, outside: Outside, end: Answer | Exception
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.execute("COMMIT")
        if isinstance(end, Exception):
            raise end
        return end

    with pytest.raises(EarlyCommit):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            fellow.run(WHAT, never)
    assert (fellow.units, outside.open_transactions) == ((1, 1), 0)


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
            await db.insert(2)  # psycopg has begun another transaction, which nobody commits
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
    assert fellow.run(WHAT, made).answer == MADE


def test_a_statement_error_is_the_handlers_own_failure(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.insert()
        return MADE

    with pytest.raises((psycopg.errors.UniqueViolation, asyncpg.UniqueViolationError)):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states, fellow.units) == ([], [], (1, 1))
    assert fellow.run(WHAT, made).answer == MADE


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
    assert fellow.run(WHAT, made).answer == MADE


# --- others who ask meanwhile ---


def test_another_process_that_asks_meanwhile_runs_nothing(make_fellow: MakeFellow, outside: Outside) -> None:
    first, second = make_fellow(), make_fellow()
    asked: list[BaseException] = []

    def asks() -> None:
        try:
            second.run(WHAT, never, wait_seconds=0.05)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            asked.append(error)

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        thread = threading.Thread(target=asks)
        thread.start()
        thread.join()
        return MADE

    assert first.run(WHAT, handler).answer == MADE
    assert [type(error) for error in asked] == [InProgressError]
    assert second.run(WHAT, never).replayed
    assert (outside.rows(), first.units, second.units, outside.open_transactions) == ([1], (1, 1), (1, 1), 0)


def test_who_waits_for_another_process_gets_its_answer_and_held_no_connection(
    make_fellow: MakeFellow, outside: Outside
) -> None:
    first, second = make_fellow(), make_fellow()
    results: list[Any] = []
    transactions: list[int] = []

    def asks() -> None:
        results.append(second.run(WHAT, never, wait_seconds=10))

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        thread.start()
        while second.engine.core.waiting == 0:
            threading.Event().wait(0.005)
        for _ in range(20):  # between its looks it is in no transaction
            transactions.append(outside.open_transactions)
            threading.Event().wait(0.005)
        return MADE

    thread = threading.Thread(target=asks)
    assert first.run(WHAT, handler).answer == MADE
    thread.join()
    assert [(result.replayed, result.answer) for result in results] == [(True, MADE)]
    assert min(transactions) == 1  # the handler's own
    assert outside.rows() == [1]


def test_duplicates_in_one_process_run_once(kind: str, make_fellow: MakeFellow, outside: Outside) -> None:
    fellow = make_fellow(connections_max=2)
    ran: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        ran.append(1)
        await db.insert()
        return MADE

    if fellow.runner is None:
        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda: results.append(fellow.run(WHAT, handler, wait_seconds=20)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(*[fellow.running(WHAT, handler, wait_seconds=20) for _ in range(8)])

        results = fellow.tell(all_at_once())
    assert sorted(result.replayed for result in results) == [False, *[True] * 7]
    assert (ran, outside.rows(), outside.open_transactions) == ([1], [1], 0)
    count, idle = fellow.units
    assert count == idle <= 2


def test_an_open_unit_delays_nobody_elses_claims(conninfo: str, outside: Outside) -> None:
    """Twenty claims of one batch, one of them of the key that the unit holds: it is tried, not waited for."""
    holder = Fellow("psycopg", conninfo)
    batcher = Fellow("psycopg-async", conninfo, patience_seconds=3.0)
    commands = [command(f"key-{number}", policy=ATOMIC) for number in range(20)]
    verdicts: list[str] = []

    def batch() -> None:
        claims = [batcher.engine.core.attempt(what) for what in commands]
        found = batcher.performs("claim", lambda: batcher.engine.store.claim(claims))
        verdicts.extend(type(verdict).__name__ for verdict in found)

    async def handler(permit: Permit, db: Writes) -> Answer:
        thread = threading.Thread(target=batch)
        thread.start()
        thread.join()
        return MADE

    holder.run(commands[7], handler)
    assert verdicts == ["Proceed"] * 7 + ["InProgress"] + ["Proceed"] * 12
    holder.close()
    batcher.close()


def test_no_free_connection_is_said_in_time(make_fellow: MakeFellow, outside: Outside) -> None:
    fellow = make_fellow(connections_max=1, patience_seconds=0.2)
    other = command("other", policy=ATOMIC)
    met: list[BaseException] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        try:
            await fellow.running(other, never)
        except StoreUnavailable as error:
            met.append(error)
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert [str(error) for error in met] == [str(error) for error in met if "connections_max" in str(error)] != []
    assert (outside.rows(), fellow.units) == ([1], (1, 1))
    assert fellow.run(other, lambda permit, db: made_two(db)).answer == MADE


async def made_two(db: Writes) -> Answer:
    await db.insert(2)
    return MADE


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
    if when == "idle":  # it had died while nobody looked: nobody notices
        outside.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pids[0],))
    else:
        with pytest.raises((*DATABASE_ERRORS, StoreError, ConnectionError)):
            fellow.run(WHAT, handler)
        assert (outside.rows(), outside.states) == ([], [State.SUCCEEDED])
    assert fellow.run(WHAT, made).answer == MADE
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
    """Two handlers lock two rows crosswise: the server ends one of them, and its whole unit runs once more."""
    outside.connection.execute("INSERT INTO effect VALUES (101), (102)")
    fellows = [make_fellow(), make_fellow()]
    both = threading.Barrier(2)
    runs: list[int] = []
    results: list[Any] = []

    def told(me: int) -> None:
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

    threads = [threading.Thread(target=told, args=(me,)) for me in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.replayed for result in results] == [False, False]
    assert (outside.rows(), len(runs)) == ([1, 2, 101, 102], 3)


def test_a_conflict_that_comes_every_time_is_told_after_four_runs(fellow: Fellow, outside: Outside) -> None:
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
    fellow.run(WHAT, made)

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
