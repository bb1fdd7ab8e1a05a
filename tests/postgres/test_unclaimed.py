"""A claim of an ATOMIC unit that fails in whatever way leaves no connection taken, and no lock held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from semel import Answer, Permit
from semel.errors import SchemaError
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, insert_and_answer, never

MakeFellow = Callable[..., Fellow]
CONNECTIONS = 2


class Broken(Exception):
    """The application's own."""


async def other(permit: Permit, db: Writes) -> Answer:
    return MADE


@pytest.fixture
def fellow(make_fellow: MakeFellow) -> Fellow:
    return make_fellow(connections_max=CONNECTIONS, patience_seconds=1.0)


def test_tables_that_are_missing_for_a_while(fellow: Fellow, outside: Outside) -> None:
    outside.connection.execute("ALTER TABLE semel_record RENAME TO away")
    for number in range(CONNECTIONS + 1):
        with pytest.raises(SchemaError):
            fellow.run(command(str(number), policy=ATOMIC), never)
    outside.connection.execute("ALTER TABLE away RENAME TO semel_record")
    assert fellow.run(WHAT, insert_and_answer).answer == MADE
    count, idle = fellow.units
    assert count == idle


def test_an_unknown_recipe_is_unreadable(fellow: Fellow, outside: Outside) -> None:
    """``under`` is the application's function, asked in the middle of the claim."""
    fellow.run(WHAT, other)

    def under(recipe: str) -> bytes:
        raise Broken

    for _ in range(CONNECTIONS + 1):
        with pytest.raises(Broken):
            fellow.run(replace(WHAT, recipe="2.tests", under=under), never)
    count, idle = fellow.units
    assert (count, outside.open_transactions) == (idle, 0)
