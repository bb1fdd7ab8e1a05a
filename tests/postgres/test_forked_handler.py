"""A handler that forks: what its child returns settles nothing, and is not said on the parent's connection."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from semel import Answer, Permit
from semel.errors import HandlerError
from tests.engine.shells import MADE
from tests.postgres.conftest import WHAT, Fellow, Outside, Writes

TOLD, WRONG = 7, 1


def _exit_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
def test_a_forked_child_that_returns_from_the_handler_changes_nothing(
    make_fellow: Callable[..., Fellow], outside: Outside
) -> None:
    fellow = make_fellow(patience_seconds=2.0)
    parent = os.getpid()
    exits: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        child = os.fork()
        if child == 0:
            return Answer(200, (), b"the child's")
        exits.append(_exit_of(child))
        await db.insert(2)
        return MADE

    try:
        answer = fellow.run(WHAT, handler).answer
    except HandlerError:
        if os.getpid() != parent:
            os._exit(TOLD)
        raise
    finally:
        if os.getpid() != parent:
            os._exit(WRONG)
    assert (answer, exits) == (MADE, [TOLD])
    assert outside.rows() == [1, 2]
