"""What a handler keeps of its unit is of no use after the end: the session serves another command by then."""

from __future__ import annotations

import os
from typing import Any

import asyncmy.errors
import pymysql
import pytest

from semel import Answer, Permit
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, INSERT, WHAT, Fellow, Outside, Writes
from tests.servers.mariadb import MARK

pytestmark = MARK
REFUSED = Answer(409, (), b"out of stock")
OVER = (pymysql.err.InterfaceError, asyncmy.errors.InterfaceError)


async def _execute(cursor: Any, text: str) -> None:
    done = cursor.execute(text)
    if not isinstance(cursor, pymysql.cursors.Cursor):
        await done


def _exit_of(child: int) -> int:
    return os.waitpid(child, 0)[1]


class Failed(Exception):
    """The handler gives up."""


@pytest.mark.parametrize("ends", ["made", "fails", "refuses"])
def test_a_write_after_the_end_fails_loudly(fellow: Fellow, outside: Outside, ends: str) -> None:
    """Also while the session serves another command, whose transaction it would otherwise land in."""
    kept: list[Writes] = []
    cursors: list[Any] = []
    permits: list[Permit] = []
    sessions: list[Any] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        kept.append(db)
        cursors.append(db.connection.cursor())
        permits.append(permit)
        await db.insert(len(kept))
        sessions.extend(await db.execute("SELECT CONNECTION_ID()"))
        if ends == "fails":
            raise Failed
        return MADE if ends == "made" else REFUSED

    async def other(permit: Permit, db: Writes) -> Answer:
        with pytest.raises(OVER):
            await kept[0].insert(9)
        with pytest.raises(OVER):
            await _execute(cursors[0], INSERT.format(9))
        with pytest.raises(OVER):
            _ = permits[0].connection
        await db.insert(2)
        sessions.extend(await db.execute("SELECT CONNECTION_ID()"))
        return MADE

    if ends == "fails":
        with pytest.raises(Failed):
            fellow.run(WHAT, handler)
    else:
        fellow.run(WHAT, handler)
    fellow.run(command("other", policy=ATOMIC), other)
    assert outside.rows() == ([1, 2] if ends == "made" else [2])
    assert sessions[0] == sessions[1]  # no connection was lost over it


def test_a_handler_that_forks_keeps_its_transaction(fellow: Fellow, outside: Outside) -> None:
    """A child that leaves the handler says nothing on its parent's connection."""
    parent = os.getpid()

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        child = os.fork()
        if child == 0:
            try:
                permit.unit.rollback() if fellow.runner is None else await permit.unit.rollback_async()
            finally:
                os._exit(0)
        assert _exit_of(child) == 0
        assert os.getpid() == parent
        await db.insert(2)
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert outside.rows() == [1, 2]
