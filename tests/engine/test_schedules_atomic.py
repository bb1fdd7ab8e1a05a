"""The schedules of ATOMIC commands, by the numbers of the red team's list: early commits, refusals, one writer."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Engine, Permit
from semel.core.model import (
    Settled,
)
from semel.core.outcomes import Succeeded
from semel.errors import (
    EarlyCommit,
    InProgressError,
    JoinRefused,
    OutcomeUnknownError,
    StoreUnavailable,
)
from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite
from tests.engine.schedule_stories import ATOMIC, REFUSED, effects, migrate, never, writes_effect
from tests.engine.shells import MADE, Mode, Shell, command

# --- 1.3: the early commit ---


def test_1_3_a_handlers_commit_call_commits_nothing(shell: Shell, file: Path) -> None:
    """Where Semel opened the transaction, commit() keeps what was written inside it, and no more."""

    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        permit.connection.commit()
        assert effects(file) == 0
        raise ValueError("after the commit")

    with pytest.raises(ValueError, match="after the commit"):
        shell.run(command(policy=ATOMIC), handler)
    assert effects(file) == 0
    assert shell.row(command(policy=ATOMIC)) is None
    assert shell.run(command(policy=ATOMIC), writes_effect).answer == MADE
    assert effects(file) == 1


def test_1_3_a_commit_as_sql_is_refused(shell: Shell, file: Path) -> None:
    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        permit.connection.execute("COMMIT")
        return MADE

    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        shell.run(command(policy=ATOMIC), handler)
    assert effects(file) == 0


def test_1_3_a_visible_record_without_an_answer_proves_an_early_commit(file: Path, clock: SettableClock) -> None:
    """The user's own transaction, committed in the middle, then SIGKILL: UNKNOWN, never Proceed."""
    what = command(policy=ATOMIC)
    migrate(file, clock)
    with Engine(sqlite(file, clock)) as engine:
        with closing(sqlite3.connect(file)) as connection:
            block = engine.atomic(connection, what)
            block.__enter__()
            connection.execute("INSERT INTO effect VALUES (1)")
            connection.commit()  # by habit; and then the process is gone
        clock.advance(seconds=31)
        assert effects(file) == 1
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            engine.run(what, never)


def test_1_3_an_early_commit_is_seen_at_the_end_of_the_block(file: Path, clock: SettableClock) -> None:
    """The process lives: the settle looks from outside, refuses to pretend, and says UNKNOWN at once."""
    what = command(policy=ATOMIC)
    engine = Engine(sqlite(file, clock))
    engine.migrate()
    with engine, closing(sqlite3.connect(file)) as connection:

        def writes_and_commits() -> None:
            with engine.atomic(connection, what):
                connection.execute("INSERT INTO effect VALUES (1)")
                connection.commit()

        with pytest.raises(EarlyCommit):
            writes_and_commits()
        connection.rollback()
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            engine.run(what, never)


# --- 1.4, 1.6: what may follow a settle ---


def test_1_4_a_refused_settle_is_not_followed_by_a_commit(shell: Shell, file: Path) -> None:
    """The claim row is not this grant's any more: no row is settled, and nothing of the handler remains."""

    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        permit.connection.execute("UPDATE semel_record SET fence = fence + 1")
        return MADE

    with pytest.raises(InProgressError):  # keep the key and ask again: there is no answer, and nothing happened
        shell.run(command(policy=ATOMIC), handler)
    assert effects(file) == 0
    assert shell.row(command(policy=ATOMIC)) is None
    assert shell.run(command(policy=ATOMIC), writes_effect).answer == MADE


def test_1_6_a_refusal_superseded_by_another_attempt_sends_its_answer(file: Path, clock: SettableClock) -> None:
    """A refuses and rolls back; before it stores its refusal, B (another process) commits 201. A sends B's 201."""
    what = command(policy=ATOMIC)
    begins = 0

    def interfering(name: str) -> None:
        nonlocal begins
        begins += name == "BEGIN"
        if name == "BEGIN" and begins == 2:  # A's second transaction: the one of its refusal
            other = Engine(sqlite(file, clock))
            with other:
                assert not other.run(what, writes_effect).replayed

    migrate(file, clock)
    with Engine(sqlite(file, clock, before=interfering)) as engine:

        def refuses(permit: Permit) -> Answer:
            permit.connection.execute("INSERT INTO effect VALUES (2)")
            return REFUSED

        result = engine.run(what, refuses)
        assert (result.answer, result.replayed) == (MADE, True)
        assert effects(file) == 1
        assert engine.run(what, never).answer == MADE


def test_1_6_a_refusal_alone_is_stored_without_its_writes(shell: Shell, file: Path) -> None:
    def refuses(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (2)")
        return REFUSED

    assert shell.run(command(policy=ATOMIC), refuses).answer == REFUSED
    assert effects(file) == 0
    assert shell.run(command(policy=ATOMIC), never).replayed


# --- 1.16: SQLite, ATOMIC beside everything else ---


def test_1_16_a_an_atomic_handler_that_awaits_blocks_no_loop(file: Path, clock: SettableClock) -> None:
    """While it holds the file: replays are served, claims queue without blocking, and all end well."""

    async def scenario() -> None:
        engine = AsyncEngine(sqlite(file, clock))
        await engine.migrate()
        async with engine:
            inside, leave = asyncio.Event(), asyncio.Event()

            async def make(permit: Permit) -> Answer:
                return MADE

            async def holds_the_file(permit: Permit) -> Answer:
                permit.connection.execute("INSERT INTO effect VALUES (1)")
                inside.set()
                await leave.wait()
                return MADE

            await engine.run(command("old"), make)
            holder = asyncio.ensure_future(engine.run(command("a", policy=ATOMIC), holds_the_file))
            await inside.wait()
            others = [asyncio.ensure_future(engine.run(command(str(n)), make)) for n in range(5)]
            others.append(asyncio.ensure_future(engine.run(command("b", policy=ATOMIC), make)))
            assert (await engine.run(command("old"), make)).replayed  # the file is held, and replays are served
            for _ in range(50):
                await asyncio.sleep(0)  # the loop turns
            assert not any(other.done() for other in others)
            leave.set()
            results = await asyncio.gather(holder, *others)
            assert all(result.answer == MADE for result in results)

    asyncio.run(scenario())


def test_1_16_b_a_transaction_that_has_begun_is_not_joined(file: Path, clock: SettableClock) -> None:
    """It may have read already: a deferred upgrade would fail with a snapshot that is too old."""
    engine = Engine(sqlite(file, clock))
    engine.migrate()
    with engine, closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM effect").fetchall()
        with pytest.raises(JoinRefused), engine.atomic(connection, command(policy=ATOMIC)):
            pytest.fail("joined")
        connection.rollback()
        assert engine.run(command(policy=ATOMIC), writes_effect).answer == MADE


def test_1_16_c_a_paused_atomic_holder_stops_the_file_and_loses_nothing(
    mode: Mode, file: Path, clock: SettableClock
) -> None:
    """Others get 503 and do not run; replays continue; when it ends, everything continues."""
    paused = Engine(sqlite(file, clock))
    paused.migrate()
    shell = Shell(mode, sqlite(file, clock, busy_seconds=0.02))
    shell.run(command("old"), lambda permit: MADE)
    with paused:
        permit = paused.claim(command("a", policy=ATOMIC))
        assert isinstance(permit, Permit)
        with pytest.raises(StoreUnavailable, match=r"locked|busy"):
            shell.run(command("new"), never)
        with pytest.raises(StoreUnavailable, match=r"locked|busy"):
            shell.run(command("b", policy=ATOMIC), never)
        assert shell.run(command("old"), never).replayed
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        assert paused.settle(permit, Succeeded(MADE)) == Settled()
    assert shell.run(command("new"), lambda permit: MADE).answer == MADE
    assert shell.run(command("b", policy=ATOMIC), writes_effect).answer == MADE
    assert effects(file) == 2
    shell.close()
