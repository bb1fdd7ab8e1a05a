"""What is particular to units on SQLite; what all databases have in common is in ``semel.testing.units``."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, NothingHappened, Permit, Policy
from semel.core.model import State
from semel.errors import EarlyCommit, OutcomeUnknownError, PolicyError, StoreUnavailable
from semel.testing.clock import SettableClock
from tests.atomic.conftest import Outside
from tests.engine.shells import MADE, Shell, command

ATOMIC = Policy(effects="atomic")
WHAT = command(policy=ATOMIC)
REFUSED = Answer(409, (), b"out of stock")


class Failed(Exception):
    """The handler gives up."""


class Gone(BaseException):
    """Not even an Exception."""


def never(permit: Permit) -> Answer:
    raise AssertionError("this must not run")


def insert(permit: Permit, n: int = 1) -> None:
    permit.connection.execute("INSERT INTO effect VALUES (?)", (n,))


def make(permit: Permit) -> Answer:
    insert(permit)
    return MADE


# --- how a unit ends ---


def test_writes_record_and_answer_are_one_commit_and_a_replay_commits_nothing(shell: Shell, outside: Outside) -> None:
    driver = shell.engine.backend.driver
    before = driver.commits

    def handler(permit: Permit) -> Answer:
        insert(permit)
        insert(permit, 2)
        assert (outside.rows(), outside.states) == ([], [])  # nothing is visible before the commit
        return MADE

    assert shell.run(WHAT, handler).answer == MADE
    assert driver.commits == before + 1
    assert (outside.rows(), outside.states) == ([1, 2], [State.SUCCEEDED])
    assert shell.run(WHAT, never).replayed
    assert driver.commits == before + 1


def test_a_definite_refusal_is_rolled_back_and_stored_in_a_separate_commit(shell: Shell, outside: Outside) -> None:
    driver = shell.engine.backend.driver
    before = driver.commits

    def refuses(permit: Permit) -> Answer:
        insert(permit)
        return REFUSED

    assert shell.run(WHAT, refuses).answer == REFUSED
    assert (outside.rows(), outside.states, driver.commits) == ([], [State.FAILED_REPLAYABLE], before + 1)
    assert shell.run(WHAT, never).answer == REFUSED


# --- what a handler may do by habit ---


def _commits(connection: Any) -> None:
    connection.execute("INSERT INTO effect VALUES (1)")
    connection.commit()


def _commits_twice(connection: Any) -> None:
    _commits(connection)
    connection.commit()


def _rolls_back(connection: Any) -> None:
    connection.execute("INSERT INTO effect VALUES (7)")
    connection.rollback()
    connection.rollback()
    connection.execute("INSERT INTO effect VALUES (1)")


def _commits_and_rolls_back(connection: Any) -> None:
    _commits(connection)
    connection.execute("INSERT INTO effect VALUES (7)")
    connection.rollback()


def _with(connection: Any) -> None:
    with connection:
        connection.execute("INSERT INTO effect VALUES (1)")


def _with_failing(connection: Any) -> None:
    try:
        with connection:
            connection.execute("INSERT INTO effect VALUES (7)")
            raise Failed
    except Failed:
        connection.execute("INSERT INTO effect VALUES (1)")


def _own_savepoint(connection: Any) -> None:
    connection.execute("SAVEPOINT mine")
    connection.execute("INSERT INTO effect VALUES (7)")
    connection.execute("ROLLBACK TO mine")
    connection.execute("RELEASE mine")
    connection.execute("INSERT INTO effect VALUES (1)")


def _open_savepoint(connection: Any) -> None:
    connection.execute("SAVEPOINT mine")
    connection.execute("INSERT INTO effect VALUES (1)")


def _cursor(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO effect VALUES (?)", [(1,)])
    assert connection.execute("SELECT n FROM effect").fetchall() == [(1,)]
    cursor.close()


def _ddl(connection: Any) -> None:
    connection.execute("CREATE TABLE more (n INTEGER)")
    connection.execute("ALTER TABLE more ADD COLUMN text TEXT")
    connection.execute("CREATE INDEX more_n ON more (n)")
    connection.execute("INSERT INTO effect VALUES (1)")


def _integrity_error(connection: Any) -> None:
    connection.execute("INSERT INTO effect VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO effect VALUES (1)")


def _half_read(connection: Any) -> None:
    connection.execute("INSERT INTO effect VALUES (1)")
    rows = connection.execute("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c")
    assert next(rows) == (1,)


def _row_factory(connection: Any) -> None:
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    connection.execute("INSERT INTO effect VALUES (1)")


HABITS = [
    *(_commits, _commits_twice, _rolls_back, _commits_and_rolls_back, _with, _with_failing, _own_savepoint),
    *(_open_savepoint, _cursor, _ddl, _integrity_error, _half_read, _row_factory),
]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("ends", ["made", "fails", "refuses"])
def test_a_handlers_commit_or_rollback_does_not_end_the_unit(
    shell: Shell, outside: Outside, habit: Callable[[Any], None], ends: str, file: Path
) -> None:
    def handler(permit: Permit) -> Answer:
        habit(permit.connection)
        assert (outside.rows(), outside.states) == ([], [])
        if ends == "fails":
            raise Failed
        return MADE if ends == "made" else REFUSED

    if ends == "fails":
        with pytest.raises(Failed):
            shell.run(WHAT, handler)
    else:
        shell.run(WHAT, handler)
    assert outside.rows() == ([1] if ends == "made" else [])
    assert outside.states == {"made": [3], "fails": [], "refuses": [4]}[ends]
    outside.writes()


REFUSED_STATEMENTS = [
    *("COMMIT", "END TRANSACTION", "commit;", "/* mine */ COMMIT", "ROLLBACK", "BEGIN", "BEGIN IMMEDIATE"),
    *("BEGIN EXCLUSIVE", "VACUUM", "PRAGMA journal_mode=DELETE", "ATTACH ':memory:' AS other", "DETACH main"),
]


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("statement", REFUSED_STATEMENTS)
def test_a_statement_that_would_end_the_transaction_does_not(
    shell: Shell, outside: Outside, statement: str, caught: bool
) -> None:
    def handler(permit: Permit) -> Answer:
        insert(permit)
        try:
            permit.connection.execute(statement).fetchall()
        except sqlite3.Error:
            if not caught:
                raise Failed from None
        assert (outside.rows(), permit.connection.in_transaction) == ([], True)
        if not caught:
            raise Failed
        return MADE

    if caught:
        assert shell.run(WHAT, handler).answer == MADE
    else:
        with pytest.raises(Failed):
            shell.run(WHAT, handler)
    assert outside.rows() == ([1] if caught else [])
    assert outside.states == ([State.SUCCEEDED] if caught else [])


def _script(connection: Any) -> None:
    connection.executescript("INSERT INTO effect VALUES (2);")


def _isolation_level(connection: Any) -> None:
    connection.isolation_level = None


def _begins_behind(connection: Any) -> None:
    connection.isolation_level = "DEFERRED"
    connection.execute("INSERT INTO effect VALUES (2)")


@pytest.mark.parametrize("act", [_script, _isolation_level, _begins_behind])
def test_a_statement_that_commits_implicitly_elsewhere_commits_nothing_here(
    shell: Shell, outside: Outside, act: Callable[[Any], None]
) -> None:
    """Python's executescript and isolation_level commit first: denied, or harmless."""

    def handler(permit: Permit) -> Answer:
        insert(permit)
        try:
            act(permit.connection)
        except sqlite3.Error:
            assert permit.connection.in_transaction
        assert (outside.rows(), outside.states) == ([], [])
        raise Failed

    with pytest.raises(Failed):
        shell.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([], [])


# --- a transaction that ends in spite of it all ---


def commits_early(permit: Permit) -> None:
    """Insert, remove the guard and commit, as a handler could on purpose."""
    insert(permit)
    permit.connection.set_authorizer(None)
    permit.connection.execute("COMMIT")


@pytest.mark.parametrize(
    "end", [MADE, REFUSED, Answer(500, (), b""), Failed(), NothingHappened()], ids=lambda end: str(end)[:20]
)
def test_an_early_commit_is_unknown_however_the_handler_ends(
    shell: Shell, outside: Outside, clock: SettableClock, end: Answer | Exception
) -> None:
    """The record is visible without an answer: not a success, not a refusal, and never run again."""

    def handler(permit: Permit) -> Answer:
        commits_early(permit)
        if isinstance(end, Exception):
            raise end
        return end

    with pytest.raises(EarlyCommit):
        shell.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            shell.run(WHAT, never)
        clock.advance(seconds=400)
    outside.writes()


@pytest.mark.parametrize("again", [True, False])
def test_a_transaction_that_sqlite_rolled_back_leaves_nothing(shell: Shell, outside: Outside, again: bool) -> None:
    """ON CONFLICT ROLLBACK ends the whole transaction, the record with it: what follows must not be written alone."""

    def handler(permit: Permit) -> Answer:
        insert(permit)
        with pytest.raises(sqlite3.IntegrityError):
            permit.connection.execute("INSERT OR ROLLBACK INTO effect VALUES (1)")
        if again:
            with pytest.raises(sqlite3.Error):
                insert(permit, 2)
            with pytest.raises(sqlite3.Error):
                permit.connection.execute("WITH x(n) AS (SELECT 3) INSERT INTO effect SELECT n FROM x")
            with pytest.raises(sqlite3.Error):
                permit.connection.execute("CREATE TABLE more (n INTEGER)")
        return MADE

    with pytest.raises(StoreUnavailable, match="nothing of it remains"):
        shell.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([], [])
    outside.writes()
    assert shell.run(WHAT, make).answer == MADE
    assert outside.rows() == [1]


@pytest.mark.parametrize("ends", ["made", "fails", "refuses"])
def test_a_write_after_the_end_fails_loudly(shell: Shell, outside: Outside, ends: str) -> None:
    kept: list[Any] = []

    def handler(permit: Permit) -> Answer:
        kept.extend([permit.connection, permit.connection.cursor()])
        if ends == "fails":
            raise Failed
        return MADE if ends == "made" else REFUSED

    if ends == "fails":
        with pytest.raises(Failed):
            shell.run(WHAT, handler)
    else:
        shell.run(WHAT, handler)
    for late in kept:
        with pytest.raises(sqlite3.ProgrammingError):
            late.execute("INSERT INTO effect VALUES (9)")
    assert outside.rows() == []


def test_only_an_atomic_command_has_a_connection(shell: Shell) -> None:
    def handler(permit: Permit) -> Answer:
        with pytest.raises(PolicyError, match="effects='atomic'"):
            _ = permit.connection
        return MADE

    shell.run(command(), handler)


def test_no_other_file_can_be_attached(shell: Shell, outside: Outside, tmp_path: Path) -> None:
    other = tmp_path / "biz.db"

    def handler(permit: Permit) -> Answer:
        for named in (f"'{other}'", f"'file:{other}?mode=rwc'"):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                permit.connection.execute(f"ATTACH {named} AS biz")
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            permit.connection.execute("ATTACH ? AS biz", (str(other),))
        permit.connection.execute("ATTACH ':memory:' AS scratch")
        return MADE

    assert shell.run(WHAT, handler).answer == MADE
    assert not other.exists()


def test_a_command_inside_a_handler_gets_an_error_that_says_why(shell: Shell) -> None:
    """It waits for the transaction that its own caller holds open: a retry would wait again."""
    told: list[str] = []

    def handler(permit: Permit) -> Answer:
        within = Engine(shell.engine.backend)
        with pytest.raises(StoreUnavailable) as refused:
            within.run(command("inner"), never)
        told.append(str(refused.value))
        return MADE

    shell.run(WHAT, handler)
    assert "held the file's only write lock" in told[0]
    assert "call it before or after" in told[0]
    assert shell.run(command("inner"), lambda permit: MADE).answer == MADE
