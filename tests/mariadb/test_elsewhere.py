"""A handler that leaves its connection in another database: nothing is settled or granted there.

Its connection went to the next commands, whose records were looked for in that database: where it has Semel's tables
too, what was done already was done once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncmy.errors
import pymysql
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import NothingHappened, StatementRefused
from semel.stores.mariadb.transaction import is_conflict
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, insert_and_answer, never
from tests.servers.mariadb import MARK

pytestmark = MARK


@pytest.mark.parametrize("ends", ["answer", "error"])
def test_the_next_commands_use_the_right_database(fellow: Fellow, outside: Outside, other: str, ends: str) -> None:
    done = command("done", policy=ATOMIC)
    fellow.run(done, insert_and_answer)

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert(2)
        await db.execute(f"USE `{other}`")
        if ends == "error":
            raise NothingHappened("on second thought")
        return MADE

    expected: dict[str, tuple[type[Exception], str]] = {
        "answer": (StatementRefused, "was left in another database"),
        "error": (NothingHappened, "on second thought"),
    }
    error, said = expected[ends]
    with pytest.raises(error, match=said):
        fellow.run(WHAT, handler)
    assert (outside.states, outside.rows()) == ([State.SUCCEEDED], [1])
    assert fellow.run(done, never).replayed


@pytest.mark.parametrize("kind", [pymysql.err.InterfaceError, asyncmy.errors.InterfaceError])
@pytest.mark.parametrize("said", [(), ("1213",), (None,), ([1213],)])
def test_an_error_without_a_number_is_not_a_conflict(kind: Callable[..., Any], said: tuple[Any, ...]) -> None:
    assert not is_conflict(kind(*said))
    assert is_conflict(kind(1213, "deadlock"))
