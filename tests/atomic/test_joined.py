"""Joining a user's sqlite3 transaction: what is refused, what the user owns, and what is left when it goes wrong."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, Command, Engine, Policy
from semel.core.model import InProgress, OutcomeUnknown, State, Verdict
from semel.errors import (
    ConfigurationError,
    EarlyCommit,
    InProgressError,
    JoinRefused,
    KeyReusedError,
    OutcomeUnknownError,
    SemelError,
    StoreUnavailable,
)
from semel.testing.clock import SettableClock
from tests.atomic.conftest import Outside
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import MADE, command

ATOMIC = Policy(effects="atomic")
WHAT = command(policy=ATOMIC)


class Failed(Exception):
    """The user's own."""


class Joiner:
    """Joins with either engine, from ordinary code."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.runner = asyncio.Runner() if isinstance(engine, AsyncEngine) else None

    def run(self, connection: Any, what: Command, block: Callable[[Any], None]) -> Any:
        """Enter, do, leave: the commit is the caller's."""
        if self.runner is not None:
            return self.runner.run(self._run(connection, what, block))
        with self.engine.atomic(connection, what) as once:
            block(once)
        return once

    async def _run(self, connection: Any, what: Command, block: Callable[[Any], None]) -> Any:
        async with self.engine.atomic(connection, what) as once:
            block(once)
        return once

    def close(self) -> None:
        if self.runner is not None:
            self.runner.run(self.engine.close())
            self.runner.close()
        else:
            self.engine.close()


@pytest.fixture(params=[Engine, AsyncEngine])
def joiner(request: pytest.FixtureRequest, file: Path, clock: SettableClock) -> Iterator[Joiner]:
    made = Joiner(request.param(sqlite(file, clock, busy_seconds=0.2)))
    yield made
    made.close()


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(file)
    yield made
    made.close()


def never(once: Any) -> None:
    raise AssertionError("this must not run")


def writes(connection: sqlite3.Connection, n: int = 1) -> Callable[[Any], None]:
    def block(once: Any) -> None:
        assert not once.replayed
        connection.execute("INSERT INTO effect VALUES (?)", (n,))
        once.answer = MADE

    return block


def replays(once: Any) -> None:
    assert (once.replayed, once.answer) == (True, MADE)


# --- how it should be ---


def test_a_commit_that_fails_leaves_nothing(joiner: Joiner, file: Path, outside: Outside) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE child (n INTEGER REFERENCES effect (n) DEFERRABLE INITIALLY DEFERRED)")
        connection.commit()
        connection.execute("PRAGMA foreign_keys=ON")

        def orphan(once: Any) -> None:
            connection.execute("INSERT INTO child VALUES (99)")
            once.answer = MADE

        joiner.run(connection, WHAT, orphan)
        with pytest.raises(sqlite3.IntegrityError):
            connection.commit()
        connection.rollback()
        assert (outside.rows("child"), outside.states) == ([], [])
        joiner.run(connection, WHAT, writes(connection))
        connection.commit()
    assert outside.rows() == [1]


def test_the_users_row_and_text_factories_stay(joiner: Joiner, connection: sqlite3.Connection) -> None:
    connection.row_factory = row = sqlite3.Row
    connection.text_factory = bytes
    for block in (writes(connection), replays):
        joiner.run(connection, WHAT, block)
        connection.commit()
        assert (connection.row_factory, connection.text_factory) == (row, bytes)
        assert connection.execute("SELECT 'text' AS a").fetchone()["a"] == b"text"


def test_the_users_busy_timeout_stays(joiner: Joiner, file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=1.25)) as connection:
        joiner.run(connection, WHAT, writes(connection))
        connection.commit()
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (1250,)


# --- what is refused ---


def _autocommit(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None


def _write(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO effect VALUES (5)")


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")


def _savepoint(connection: sqlite3.Connection) -> None:
    connection.execute("SAVEPOINT mine")


def _new_autocommit(on: bool) -> Callable[[sqlite3.Connection], None]:
    def set_it(connection: sqlite3.Connection) -> None:
        connection.autocommit = on  # type: ignore[attr-defined,unused-ignore]

    return set_it


REFUSED: list[tuple[Callable[[sqlite3.Connection], None], str]] = [
    (_autocommit, "autocommit mode"),
    (_write, "already begun"),
    (_begin, "already begun"),
    (_savepoint, "already begun"),
    # Where Python has the attribute: True commits each statement, False has begun already.
    *(
        [(_new_autocommit(True), "autocommit"), (_new_autocommit(False), "begun")]
        if sys.version_info >= (3, 12)
        else []
    ),
]


@pytest.mark.parametrize(("prepare", "words"), REFUSED)
def test_a_transaction_that_cannot_hold_the_record_is_refused_untouched(
    joiner: Joiner,
    connection: sqlite3.Connection,
    outside: Outside,
    prepare: Callable[[sqlite3.Connection], None],
    words: str,
) -> None:
    prepare(connection)
    begun = connection.in_transaction
    with pytest.raises(JoinRefused, match=words):
        joiner.run(connection, WHAT, never)
    assert (connection.in_transaction, outside.states) == (begun, [])


def test_a_store_without_transactions_is_refused(connection: sqlite3.Connection) -> None:
    with (
        Engine(memory()) as engine,
        pytest.raises(ConfigurationError, match="needs a store in the same database"),
        engine.atomic(connection, WHAT),
    ):
        raise AssertionError


# --- verdicts that prevent the join ---


def test_a_busy_file_is_refused_in_time_and_leaves_no_lock(
    joiner: Joiner, connection: sqlite3.Connection, file: Path, outside: Outside
) -> None:
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            joiner.run(connection, WHAT, never)
        assert not connection.in_transaction
        other.rollback()
    joiner.run(connection, WHAT, writes(connection))
    connection.commit()
    assert outside.rows() == [1]


RACED: list[tuple[Verdict, type[SemelError]]] = [
    (InProgress(bytes(16), 1_000_000), InProgressError),
    (OutcomeUnknown(bytes(16), "lapsed"), OutcomeUnknownError),
]


@pytest.mark.parametrize(("verdict", "error"), RACED)
def test_a_verdict_that_arises_between_the_look_and_the_claim_leaves_no_lock(
    joiner: Joiner,
    connection: sqlite3.Connection,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
    verdict: Verdict,
    error: type[SemelError],
) -> None:
    def claim_in_unit(claim: Any) -> Any:
        yield from ()
        return verdict

    monkeypatch.setattr(joiner.engine.store, "claim_in_unit", claim_in_unit)
    with pytest.raises(error):
        joiner.run(connection, WHAT, never)
    assert not connection.in_transaction
    outside.writes()


def test_an_answer_that_arises_between_the_look_and_the_claim_is_replayed(
    joiner: Joiner, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, outside: Outside
) -> None:
    joiner.run(connection, WHAT, writes(connection))
    connection.commit()

    def look(claims: Any) -> Any:
        yield from ()
        return [None] * len(claims)

    monkeypatch.setattr(joiner.engine.store, "look", look)
    joiner.run(connection, WHAT, replays)
    assert not connection.in_transaction
    outside.writes()
    with pytest.raises(KeyReusedError):
        joiner.run(connection, command(request=1, policy=ATOMIC), never)
    assert not connection.in_transaction
    outside.writes()


def test_a_store_that_is_not_migrated_is_refused_and_leaves_no_lock(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "bare.db")) as connection,
        closing(Engine(sqlite(tmp_path / "bare.db"))) as engine,
    ):
        connection.execute("CREATE TABLE effect (n INTEGER)")
        with pytest.raises(ConfigurationError, match="migrate"), engine.atomic(connection, WHAT):
            raise AssertionError
        assert not connection.in_transaction


# --- a transaction that ends in the block ---


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_an_early_commit_is_unknown_and_never_run_again(
    joiner: Joiner, connection: sqlite3.Connection, outside: Outside, clock: SettableClock, again: bool, raises: bool
) -> None:
    """Also where the user has begun another transaction since, and so holds the lock that the note would need."""

    def commits(once: Any) -> None:
        writes(connection)(once)
        connection.commit()
        if again:
            connection.execute("INSERT INTO effect VALUES (2)")
        if raises:
            raise Failed

    with pytest.raises(Failed if raises else EarlyCommit):
        joiner.run(connection, WHAT, commits)
    connection.rollback()
    assert outside.rows() == [1]
    clock.advance(seconds=31)
    with pytest.raises(OutcomeUnknownError, match="committed-early"):
        joiner.run(connection, WHAT, never)


# --- the loop ---


def test_a_join_that_waits_for_the_file_blocks_no_loop(file: Path, clock: SettableClock, outside: Outside) -> None:
    """The lock's holder is a task of the same loop: blocking the loop would be a deadlock."""

    async def main() -> None:
        engine = AsyncEngine(sqlite(file, clock))
        with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(file)) as holder:
            holder.execute("BEGIN IMMEDIATE")

            async def join() -> None:
                async with engine.atomic(connection, WHAT) as once:
                    writes(connection)(once)
                connection.commit()

            joining = asyncio.create_task(join())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not joining.done()
            holder.rollback()
            async with asyncio.timeout(4):
                await joining
        await engine.close()

    asyncio.run(main())
    assert outside.rows() == [1]


def test_two_joins_of_one_command_on_one_loop_are_one_command(
    file: Path, clock: SettableClock, outside: Outside
) -> None:
    async def main() -> list[bool]:
        engine = AsyncEngine(sqlite(file, clock))

        async def join(n: int) -> bool:
            with closing(sqlite3.connect(file)) as connection:
                async with engine.atomic(connection, WHAT) as once:
                    if not once.replayed:
                        await asyncio.sleep(0)
                        writes(connection, n)(once)
                connection.commit()
                return once.replayed

        async with asyncio.timeout(15):
            replayed = await asyncio.gather(*(join(n) for n in range(5)))
        await engine.close()
        return replayed

    replayed = asyncio.run(main())
    assert sorted(replayed) == [False, True, True, True, True]
    assert len(outside.rows()) == 1


# --- other files, and savepoints that are left open ---


@pytest.mark.parametrize("attached", ["before", "inside"])
def test_a_connection_with_another_file_attached_is_refused(
    joiner: Joiner, connection: sqlite3.Connection, outside: Outside, tmp_path: Path, attached: str
) -> None:
    def attach() -> None:
        connection.execute("ATTACH ? AS biz", (str(tmp_path / "biz.db"),))

    def block(once: Any) -> None:
        attach()
        once.answer = MADE

    if attached == "before":
        attach()
    with pytest.raises(JoinRefused, match=r"another database file is attached to this connection \(biz\)"):
        joiner.run(connection, WHAT, never if attached == "before" else block)
    connection.rollback()
    assert (outside.states, connection.in_transaction) == ([], False)
    connection.execute("DETACH biz")
    connection.commit()
    connection.execute("ATTACH ':memory:' AS scratch")
    connection.execute("CREATE TEMP TABLE t (n)")
    connection.commit()
    joiner.run(connection, WHAT, writes(connection))
    connection.commit()
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])
