"""What cannot work is refused where it is written down, with the remedy; and nothing is half-done."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, AsyncPermit, Engine, Permit, Policy
from semel.core.model import State
from semel.errors import ConfigurationError, PolicyError, StepError
from semel.operations.http import describe
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import command
from tests.steps.conftest import STEPS, step_command

OK = Answer(200, (), b"done")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine(sqlite(tmp_path / "semel.db"))) as made:
        made.migrate()
        yield made


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"effects": "atomic"}, "atomic commands need no steps"),
        ({"effects": "idempotent"}, "idempotent commands need no steps"),
        ({"marks_effects": True}, "each step marks its own beginning"),
        ({"on_error": "replay"}, "the next run continues"),
        ({"on_unprotected": "mark"}, "recorded before it begins"),
        ({"steps": "yes"}, "True or False"),
        ({"steps": False, "resumable": True}, "resumable=True needs steps=True"),
        ({"steps": True, "resumable": True, "attempts_max": 1}, "resumable=True needs attempts_max of at least 2"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(PolicyError, match=remedy):
        Policy.of(**{"steps": True, **options})


def test_steps_on_a_store_without_them_are_refused() -> None:
    with closing(Engine(memory())) as engine:
        engine.open()
        with pytest.raises(ConfigurationError, match="'pay' declares steps, which need a SQL database"):
            engine.run(step_command(), lambda permit: OK)


def test_a_step_without_the_declaration_is_refused(engine: Engine) -> None:
    def handler(permit: Permit) -> Answer:
        with pytest.raises(StepError, match="Policy\\(steps=True\\)"):
            permit.step("charge", lambda: None)
        with pytest.raises(StepError, match="Policy\\(steps=True\\)"):
            permit.local_step("charge", lambda connection: None)
        return OK

    assert engine.run(command(), handler).answer == OK


class Unknown:
    pass


async def late() -> None:
    raise AssertionError("this must not run")


async def late_local(connection: object) -> None:
    raise AssertionError("this must not run")


def pieces() -> Iterator[int]:
    yield 1


def local_pieces(connection: object) -> Iterator[int]:
    yield 1


async def late_pieces() -> AsyncIterator[int]:
    yield 1


MISTAKES: list[tuple[str, Callable[[Permit], object], str]] = [
    ("no name", lambda permit: permit.step("", lambda: None), "needs a name"),
    ("no function", lambda permit: permit.step("charge", 7), "needs a function"),  # type: ignore[call-overload]
    ("a call that has begun", lambda permit: permit.step("charge", late()), "has begun"),  # type: ignore[call-overload]
    ("a coroutine function", lambda permit: permit.step("charge", late), "a coroutine function"),
    ("a local one", lambda permit: permit.local_step("charge", late_local), "a coroutine function"),
    ("a generator function", lambda permit: permit.step("charge", pieces), "a generator function"),
    ("a local generator", lambda permit: permit.local_step("charge", local_pieces), "a generator function"),
    ("twice", lambda permit: [permit.step("charge", lambda: 1) for _ in range(2)], "ordinal=1"),
    (
        "inside itself",
        lambda permit: permit.step("charge", lambda: permit.step("charge", lambda: 1)),
        "already running",
    ),
    ("a type without a form", lambda permit: permit.step("charge", lambda: 1, returns=Unknown), "Unknown"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[0])
def test_a_mistake_is_reported(engine: Engine, mistake: tuple[str, Callable[[Permit], object], str]) -> None:
    _, ask, message = mistake

    def handler(permit: Permit) -> Answer:
        with pytest.raises(ConfigurationError, match=message):
            ask(permit)
        return OK

    assert engine.run(step_command(), handler).answer == OK


@pytest.mark.parametrize("call", [pieces, late_pieces])
def test_a_generator_function_is_reported_on_an_event_loop_too(call: Callable[[], object], tmp_path: Path) -> None:
    async def handler(permit: AsyncPermit) -> Answer:
        with pytest.raises(StepError, match="a generator function"):
            await permit.step("charge", call)
        return OK

    async def story() -> None:
        async with AsyncEngine(sqlite(tmp_path / "semel.db")) as engine:
            assert (await engine.run(step_command(), handler)).answer == OK

    with closing(Engine(sqlite(tmp_path / "semel.db"))) as engine:
        engine.migrate()
    asyncio.run(story())


def test_a_name_is_used_again_with_an_ordinal(engine: Engine) -> None:
    def handler(permit: Permit) -> Answer:
        said = [permit.step("mail", partial("mail {}".format, n), ordinal=n) for n in range(3)]
        return Answer(200, (), ", ".join(said).encode())

    assert engine.run(step_command(), handler).answer.body == b"mail 0, mail 1, mail 2"


def test_a_step_after_the_end(engine: Engine) -> None:
    permits: list[Permit] = []

    def handler(permit: Permit) -> Answer:
        permits.append(permit)
        return OK

    engine.run(step_command(), handler)
    with pytest.raises(StepError, match="after its command had ended"):
        permits[0].step("charge", lambda: None)


def test_a_repeatable_step_may_be_tried_again_in_the_same_run(engine: Engine) -> None:
    calls: list[str] = []

    def mail() -> str:
        calls.append("mail")
        if len(calls) == 1:
            raise ConnectionError("away")
        return "sent"

    def handler(permit: Permit) -> Answer:
        with pytest.raises(ConnectionError):
            permit.step("mail", mail, repeat=True)
        return Answer(200, (), permit.step("mail", mail, repeat=True).encode())

    assert engine.run(step_command(), handler).answer.body == b"sent"


def test_steps_may_overlap(tmp_path: Path) -> None:
    async def story() -> list[str]:
        engine = AsyncEngine(sqlite(tmp_path / "semel.db"))
        await engine.migrate()
        attempts: list[int] = []

        async def handler(permit: Permit) -> Answer:
            attempts.append(permit.attempt)

            async def call(n: int) -> str:
                await asyncio.sleep(0)
                calls.append(n)
                return f"result {n}"

            got = await asyncio.gather(
                *(permit.step(f"part-{n}", lambda n=n: call(n), repeat=True) for n in range(8))  # type: ignore[misc]
            )
            if permit.attempt == 1:
                raise ConnectionError("away")
            return Answer(200, (), ",".join(got).encode())

        calls: list[int] = []
        with pytest.raises(ConnectionError):
            await engine.run(step_command(), handler)
        body = (await engine.run(step_command(), handler)).answer.body.decode()
        await engine.close()
        assert sorted(calls) == list(range(8))
        return body.split(",")

    assert asyncio.run(story()) == [f"result {n}" for n in range(8)]


@pytest.mark.parametrize("kind", ["BLOB", "TEXT"])
def test_a_damaged_list_is_refused(engine: Engine, tmp_path: Path, kind: str) -> None:
    def handler(permit: Permit) -> Answer:
        permit.step("charge", lambda: "ch_1")
        if permit.attempt == 1:
            raise ConnectionError("away")
        return OK

    with pytest.raises(ConnectionError):
        engine.run(step_command(), handler)
    with closing(sqlite3.connect(tmp_path / "semel.db")) as db:
        db.execute(f"UPDATE semel_record SET steps = CAST(substr(steps, 1, 5) AS {kind})")
        db.commit()
    with pytest.raises(Exception, match="cannot be read"):
        engine.run(step_command(), handler)
    [row] = engine.perform("read", lambda: engine.store.read((engine.core.attempt(step_command()).id,)))
    assert row is not None
    assert (row.state, row.doubt) == (State.UNKNOWN, "steps-unreadable")


def test_the_status_names_the_running_step(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []

    def look(now: int) -> None:
        [row] = engine.perform("read", lambda: engine.store.read((engine.core.attempt(step_command()).id,)))
        assert row is not None
        seen.append(describe(row, row.created_at + now))

    def handler(permit: Permit) -> Answer:
        def charge() -> None:
            look(1)
            look(STEPS.terms.lease_us + 1)

        permit.step("charge", charge)
        return OK

    engine.run(step_command(), handler)
    running, lapsed = seen
    assert (running["step"], "doubt" in running) == ("charge", False)
    assert (lapsed["doubt"], "step" in lapsed) == ("step:charge", False)
