"""Tables without transactions on MariaDB: what a ROLLBACK leaves in them makes the outcome UNKNOWN."""

from __future__ import annotations

import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import EarlyCommit, OutcomeUnknownError
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, made, never


@pytest.fixture(params=["MyISAM", "Aria"])
def log(request: pytest.FixtureRequest, outside: Outside) -> None:
    """A table of the application's that knows no transactions."""
    outside.fetch("DROP TABLE IF EXISTS log")
    outside.fetch(f"CREATE TABLE log (n integer) ENGINE={request.param}")


class Failed(Exception):
    """The handler gives up."""


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    "ends", [Failed(), Answer(409, (), b"refused"), Answer(500, (), b"")], ids=["raises", "refuses", "fails"]
)
def test_writes_that_a_rollback_leaves_are_made_once_and_the_outcome_is_unknown(
    fellow: Fellow, outside: Outside, ends: Answer | Failed
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.execute("INSERT INTO log VALUES (1)")
        if isinstance(ends, Failed):
            raise ends
        return ends

    with pytest.raises(EarlyCommit, match="table without transactions"):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.rows("log"), outside.states) == ([], [1], [State.UNKNOWN])
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="not-rolled-back"):
            fellow.run(WHAT, never)
    assert fellow.run(command("other", policy=ATOMIC), made).answer == MADE


@pytest.mark.usefixtures("log")
def test_a_rollback_of_other_tables_alone_frees_the_key(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        raise Failed

    with pytest.raises(Failed):
        fellow.run(WHAT, handler)
    assert fellow.run(WHAT, made).answer == MADE
    assert (outside.rows(), outside.rows("log"), outside.states) == ([1], [], [State.SUCCEEDED])
