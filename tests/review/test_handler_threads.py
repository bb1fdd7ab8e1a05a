"""A handler's own thread, still at work on an ATOMIC unit's connection while the unit ends."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.guard import SqliteUnitConnection
from semel.stores.sqlite.transaction import SqliteUnit, begin_unit
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, command


@contextmanager
def unit_on(path: Path) -> Iterator[SqliteUnit]:
    """A unit whose connection is handed out, on a file with an empty table of notes."""
    with_notes(path)
    driver = SqliteDriver(str(path), synchronous="OFF")
    unit = begin_unit(driver, 5)
    unit.hand_out()
    yield unit
    unit.rollback()
    driver.close()


def with_notes(path: Path) -> None:
    file = sqlite3.connect(path)
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("CREATE TABLE note (text TEXT UNIQUE)")
    file.commit()
    file.close()


def notes(path: Path) -> list[str]:
    file = sqlite3.connect(path)
    found = [text for (text,) in file.execute("SELECT text FROM note ORDER BY text")]
    file.close()
    return found


@pytest.mark.parametrize(("end", "kept"), [("rollback", []), ("commit", ["in time"])])
def test_a_write_between_the_end_and_the_close_is_refused(
    end: str, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no transaction any more: it would be committed at once, without a record."""
    path = tmp_path / "app.db"
    refused: list[str] = []

    def close_late(connection: SqliteUnitConnection) -> None:
        try:
            connection.execute("INSERT INTO note VALUES ('too late')")
        except sqlite3.Error as error:
            refused.append(str(error))
        sqlite3.Connection.close(connection)

    with unit_on(path) as unit:
        unit.connection.execute("INSERT INTO note VALUES ('in time')")
        monkeypatch.setattr(SqliteUnitConnection, "close", close_late)
        getattr(unit, end)()
    assert notes(path) == kept
    assert len(refused) == 1


def test_nothing_is_written_after_sqlite_itself_has_rolled_back(tmp_path: Path) -> None:
    """A trigger's ROLLBACK, a full disk: the handler that catches the error and goes on writes outside of anything."""
    path = tmp_path / "app.db"
    with unit_on(path) as unit:
        unit.connection.execute("INSERT INTO note VALUES ('one')")
        with pytest.raises(sqlite3.IntegrityError):
            unit.connection.execute("INSERT OR ROLLBACK INTO note VALUES ('one')")
        for write in ("INSERT INTO note VALUES ('two')", "DELETE FROM note"):
            with pytest.raises(sqlite3.OperationalError, match="rolled this ATOMIC command's transaction back"):
                unit.connection.execute(write)
    assert notes(path) == []


def test_a_unit_that_ends_during_a_statement_interrupts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement is interrupted; its thread gets an error, and one for everything that it tries later."""
    path = tmp_path / "app.db"
    inside, interrupted = threading.Event(), threading.Event()
    errors: list[sqlite3.Error] = []

    def wait_inside() -> int:
        inside.set()
        assert interrupted.wait(10)
        return 1

    def interrupt(connection: SqliteUnitConnection) -> None:
        sqlite3.Connection.interrupt(connection)
        interrupted.set()

    monkeypatch.setattr(SqliteUnitConnection, "interrupt", interrupt)
    with unit_on(path) as unit:
        connection = unit.connection
        connection.create_function("wait_inside", 0, wait_inside)

        def work() -> None:
            for statement in ("INSERT INTO note SELECT wait_inside()", "INSERT INTO note VALUES ('too late')"):
                try:
                    connection.execute(statement)
                except sqlite3.Error as error:
                    errors.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        assert inside.wait(10)
        unit.rollback()
        worker.join()
    assert notes(path) == []
    assert len(errors) == 2


def test_units_that_end_while_their_thread_works_leave_no_trace(tmp_path: Path) -> None:
    """Wherever its thread is in SQLite at that moment: the process neither stops nor dies, and nothing is left."""
    path = tmp_path / "app.db"
    with_notes(path)
    driver = SqliteDriver(str(path), synchronous="OFF")
    for round_ in range(100):
        unit = begin_unit(driver, 5)
        connection = unit.hand_out()
        busy = threading.Event()

        def work(
            round_: int = round_, connection: SqliteUnitConnection = connection, busy: threading.Event = busy
        ) -> None:
            number = 0
            try:
                while True:
                    # A new text each time, so that it is prepared anew and the authorizer is asked.
                    connection.execute(f"INSERT INTO note VALUES ('{round_}-{number}')")
                    number += 1
                    if number == 5:
                        busy.set()
            except sqlite3.Error:
                busy.set()

        worker = threading.Thread(target=work)
        worker.start()
        busy.wait()
        unit.rollback()
        worker.join()
    driver.close()
    assert notes(path) == []


def test_rows_that_are_not_read_to_the_end_do_not_lock_the_file(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with unit_on(path) as unit:
        unit.connection.executemany("INSERT INTO note VALUES (?)", [("one",), ("two",)])
        rows = unit.connection.execute("INSERT INTO note VALUES ('three') RETURNING text")
        some = unit.connection.execute("SELECT text FROM note")
        assert some.fetchone() is not None
        unit.rollback()
        other = sqlite3.connect(path, timeout=0)
        other.execute("INSERT INTO note VALUES ('other')")
        other.commit()
        other.close()
        for cursor in (rows, some):
            with pytest.raises(sqlite3.ProgrammingError):
                next(cursor)
    assert notes(path) == ["other"]


def test_a_threads_write_past_the_deadline_is_no_part_of_anything(tmp_path: Path) -> None:
    """The deadline cancels the task, not the thread: what it still writes is refused, and the retry writes once."""
    path = tmp_path / "app.db"
    with_notes(path)

    async def scenario() -> None:
        engine = AsyncEngine(sqlite(path))
        await engine.migrate()
        policy = Policy.of(effects="atomic")
        wrote, over = threading.Event(), threading.Event()
        late: list[Any] = []

        def write(connection: Any) -> None:
            connection.execute("INSERT INTO note VALUES ('in time')")
            wrote.set()
            over.wait()
            try:
                connection.execute("INSERT INTO note VALUES ('too late')")
            except sqlite3.Error as error:
                late.append(error)

        async def in_a_thread(permit: Permit) -> Answer:
            writing = asyncio.ensure_future(asyncio.to_thread(write, permit.connection))
            threads.append(writing)
            await asyncio.to_thread(wrote.wait)
            raise TimeoutError  # as the deadline does

        threads: list[asyncio.Future[None]] = []
        with pytest.raises(TimeoutError):
            await engine.run(command(policy=policy), in_a_thread)
        over.set()
        await threads[0]
        assert len(late) == 1
        assert notes(path) == []

        async def at_once(permit: Permit) -> Answer:
            permit.connection.execute("INSERT INTO note VALUES ('once')")
            return MADE

        assert (await engine.run(command(policy=policy), at_once)).answer == MADE
        await engine.close()

    asyncio.run(scenario())
    assert notes(path) == ["once"]
