"""ATOMIC units whose operation is kept: what ends the transaction early is reported as usual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.core.model import NotReplayable, State
from semel.errors import ConfigurationError, EarlyCommit, StoreError
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.integrations.starlette import Semel
from tests.engine.shells import MADE
from tests.operations.worlds import ATOMIC, World, paying

WHAT = paying("a", policy=ATOMIC)


@pytest.fixture(params=["psycopg", "pymysql"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    world.prepare()
    yield world
    world.close()


def says(permit: Permit, *texts: str) -> Answer:
    for text in texts:
        cursor = permit.connection.cursor()
        cursor.execute(text)
    return MADE


def test_what_the_handler_wrote_and_its_operation_commit_together(stage: World) -> None:
    shell = stage.shell()
    shell.run(WHAT, lambda permit: says(permit, "INSERT INTO effect VALUES (1)"))
    assert stage.effects() == [1]
    assert stage.states() == [(State.SUCCEEDED, True)]
    _, kept = stage.find(shell, operation_id=_id(shell))
    assert kept is not None
    assert kept.settled_at is not None
    assert kept.forget_after is not None


def test_events_of_an_atomic_command_commit_with_its_operation(stage: World) -> None:
    def act(permit: Permit) -> Answer:
        permit.emit("payments.made", {"n": 1})
        return MADE

    stage.shell().run(WHAT, act)
    assert stage.states() == [(State.SUCCEEDED, True)]
    with stage.outside() as execute:
        assert execute("SELECT count(*) FROM semel_event")[0][0] >= 1


def test_a_handler_that_commits_is_reported_and_its_reference_stays_held(stage: World) -> None:
    shell = stage.shell()
    with pytest.raises(EarlyCommit):
        shell.run(WHAT, lambda permit: says(permit, "INSERT INTO effect VALUES (1)", "COMMIT"))
    assert stage.states() == [(State.UNKNOWN, True)]


def test_a_handler_that_rolls_back_by_hand_leaves_nothing(stage: World) -> None:
    shell = stage.shell()
    with pytest.raises(StoreError):
        shell.run(WHAT, lambda permit: says(permit, "INSERT INTO effect VALUES (1)", "ROLLBACK"))
    assert stage.effects() == []
    assert stage.states() == []
    shell.run(paying("b", policy=ATOMIC), lambda permit: says(permit, "INSERT INTO effect VALUES (2)"))
    assert isinstance(shell.claim(WHAT), NotReplayable)


def _id(shell: Any) -> bytes:
    row = shell.row(WHAT)
    assert row is not None
    id: bytes = row.operation_id
    return id


def test_a_store_that_keeps_no_operations_is_refused_where_they_are_declared() -> None:
    engine, kept = AsyncEngine.connect("memory://"), Policy(reference_from="body:/id")
    with pytest.raises(ConfigurationError, match="need a SQL database"):
        Semel(engine, caller=single_caller).command("pay", kept)
    with pytest.raises(ConfigurationError, match="need a SQL database"):
        SemelMiddleware(_app, engine, caller=single_caller, operations=[Operation("/pay", kept)])


async def _app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("it must not be built")
