"""Executions whose client has gone: who takes them over, when, how often, and which never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy
from semel.core.model import State
from semel.errors import ConfigurationError, OutcomeUnknownError, PolicyError, RequestTooLarge
from semel.operations.flow import find_operation
from semel.resuming.worker import Completer
from tests.engine.shells import SCOPE
from tests.engine.telling import at_once
from tests.steps.conftest import Process, Run, World, step_command

OK = Answer(201, (), b"done")
RESUMABLE = Policy(steps=True, resumable=True, attempts_max=3)
LEASE_US = 30_000_000


def resumable(key: str = "k", request: bytes = b"ten euros") -> Command:
    return Command(SCOPE, key, bytes(32), "1.tests", RESUMABLE, request=request)


class Story:
    """A handler that remembers its runs."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.calls: list[str] = []
        self.requests: list[bytes] = []
        self.error: Exception | None = None

    async def steps(self, run: Run) -> Answer:
        await run.step("charge", lambda: self.calls.append("charge"))
        await run.step("mail", lambda: self.calls.append("mail"), repeat=True)
        if self.error is not None:
            raise self.error
        return OK

    def handler(self) -> Callable[[Permit, bytes], Any]:
        async def on_loop(permit: Permit, request: bytes) -> Answer:
            self.requests.append(request)
            return await self.steps(Run(permit, is_async=True))

        def in_thread(permit: Permit, request: bytes) -> Answer:
            self.requests.append(request)
            return at_once(self.steps(Run(permit, is_async=False)))

        return on_loop if self.process.is_async else in_thread

    def completer(self, operation: str = SCOPE.operation) -> Completer:
        made = Completer(self.process.engine, rest_seconds=0.001)
        made.register(operation, RESUMABLE, self.handler())
        return made

    def complete(self, completer: Completer) -> int:
        if self.process.runner is None:
            return asyncio.run(completer.run_once())
        return self.process.runner.run(completer.run_once())


def abandon(process: Process, what: Command, *, steps: bool = True) -> None:
    """A process that dies with its first step finished and its second one under way."""
    permit = process.tell(process.engine.claim(what))
    assert isinstance(permit, Permit)
    run = Run(permit, is_async=process.is_async)

    async def begin_steps() -> None:
        await run.step("charge", lambda: None)
        await run.step("mail", lambda: None, repeat=True)

    if steps:
        _ = at_once(begin_steps()) if process.runner is None else process.runner.run(begin_steps())


def test_an_abandoned_execution_is_completed(world: World) -> None:
    story = Story(world.process())
    completer = story.completer()
    abandon(world.process(), resumable())
    assert story.complete(completer) == 0  # its holder counts as alive
    assert story.process.row(resumable()).request == b"ten euros"
    world.clock.advance(LEASE_US + 1)
    assert story.complete(completer) == 1
    assert (story.calls, story.requests) == (["mail"], [b"ten euros"])
    row = story.process.row(resumable())
    assert (row.state, row.request, row.attempt) == (State.SUCCEEDED, None, 2)
    assert story.process.run(resumable(), story.steps).replayed  # the client that comes back gets the answer
    assert story.complete(completer) == 0


def test_an_abandoned_execution_without_steps_is_completed(world: World) -> None:
    story = Story(world.process())
    abandon(world.process(), resumable(), steps=False)
    world.clock.advance(LEASE_US + 1)
    assert story.complete(story.completer()) == 1
    assert story.calls == ["charge", "mail"]


def test_a_doubt_is_not_completed(world: World) -> None:
    story = Story(world.process())
    process = world.process()
    permit = process.tell(process.engine.claim(resumable()))
    run = Run(permit, is_async=process.is_async)

    async def charge() -> None:
        await run.step("charge", lambda: None)

    _ = at_once(charge()) if process.runner is None else process.runner.run(charge())
    world.clock.advance(LEASE_US + 1)
    assert story.complete(story.completer()) == 0
    assert [row.doubt for row in story.process.lapse()] == ["step:charge"]
    assert story.complete(story.completer()) == 0
    assert story.calls == []


def test_an_operation_that_is_not_resumable_never_runs_without_its_client(world: World) -> None:
    story = Story(world.process())
    process = world.process()
    permit = process.tell(process.engine.claim(step_command()))
    assert isinstance(permit, Permit)
    world.clock.advance(LEASE_US + 1)
    assert story.complete(story.completer()) == 0
    with pytest.raises(ConfigurationError, match="never runs without its client"):
        story.completer().register("other", Policy(steps=True), story.handler())


def test_after_the_last_attempt_the_execution_is_unknown(world: World) -> None:
    story = Story(world.process())
    completer = story.completer()
    abandon(world.process(), resumable())
    story.error = ConnectionError("away")
    for _ in range(2):
        world.clock.advance(LEASE_US + 1)
        completer._rests.clear()
        quietly(story, completer)
    assert story.process.row(resumable()).state == State.CLAIMED
    completer._rests.clear()
    assert story.complete(completer) == 0
    row = story.process.row(resumable())
    assert (row.state, row.doubt, row.request) == (
        State.UNKNOWN,
        "attempts-over",
        b"ten euros",
    )  # there is no outcome yet
    with pytest.raises(OutcomeUnknownError, match="attempts-over"):
        story.process.run(resumable(), story.steps)


def quietly(story: Story, completer: Completer) -> None:
    """One look of a completer whose handler fails: the exception is reported to the loop."""
    told: list[dict[str, Any]] = []

    async def look() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        return await completer.run_once()

    found = asyncio.run(look()) if story.process.runner is None else story.process.runner.run(look())
    assert found == 0
    assert [type(what["exception"]) for what in told] == [ConnectionError]


def test_two_completers_never_run_one_execution(world: World) -> None:
    one, other = Story(world.process()), Story(world.process())
    for n in range(6):
        abandon(world.process(), resumable(f"k{n}"))
    world.clock.advance(LEASE_US + 1)
    if world.kind in ("sqlite", "psycopg", "pymysql"):

        async def both() -> list[int]:
            return list(await asyncio.gather(one.completer().run_once(), other.completer().run_once()))

        ended = asyncio.run(both())
    else:
        ended = [one.complete(one.completer()), other.complete(other.completer())]
    assert sum(ended) == 6
    assert (one.calls + other.calls).count("mail") == 6


# --- requests -------------------------------------------------------------------------------------


def test_a_resumable_command_needs_its_request() -> None:
    with pytest.raises(PolicyError, match="needs its request"):
        Command(SCOPE, "k", bytes(32), "1.tests", RESUMABLE)
    with pytest.raises(PolicyError, match="resumable=True"):
        Command(SCOPE, "k", bytes(32), "1.tests", Policy(steps=True), request=b"")
    with pytest.raises(RequestTooLarge):
        resumable(request=b"x" * (1024 * 1024 + 1))


@pytest.mark.parametrize("options", [{"every_seconds": 1}, {"rest_seconds": 0}, {"at_once": 0}])
def test_a_completer_that_could_not_keep_its_promise_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        Completer(Engine.connect(f"sqlite:///{tmp_path}/a.db"), **options)


def test_a_store_without_steps_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SQL database"):
        Completer(AsyncEngine.connect("memory://"))


@pytest.mark.parametrize("why", ["rests", "unknown"])
def test_an_execution_that_cannot_continue_does_not_block_others(
    why: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.resuming.worker.FIND_MAX", 2)
    story = Story(world.process())
    completer = Completer(story.process.engine, rest_seconds=1000)
    completer.register(SCOPE.operation, RESUMABLE, story.handler())
    dead = world.process()
    for key in ("a", "b", "c"):
        other = replace(resumable(key), scope=SCOPE._replace(operation="another"))
        abandon(dead, resumable(key) if why == "rests" else other)
    world.clock.advance(LEASE_US + 1)
    story.error = ConnectionError("away")
    for _ in range(3 if why == "rests" else 0):
        assert story.complete(completer) == 0
    story.error = None
    abandon(dead, resumable("last", b"the last"))
    world.clock.advance(LEASE_US + 1)
    assert story.complete(completer) == 1
    assert story.requests[-1] == b"the last"


def test_the_operation_of_a_process_that_died_ends_with_its_record(world: World) -> None:
    """Its reference stays in the operation's row until a settlement: otherwise it would be taken for ever."""
    story = Story(world.process())
    what = replace(resumable(), business_ref="order-7")
    abandon(world.process(), what)
    world.clock.advance(LEASE_US + 1)
    assert story.complete(story.completer()) == 1
    engine = story.process.engine
    id = engine.core.attempt(what).id
    record, operation = story.process.tell(engine.perform("read", lambda: find_operation(engine.store, record_id=id)))
    assert record is not None
    assert operation is not None
    assert record.business_ref == "order-7"
    assert (operation.state, operation.settled_at) == (State.SUCCEEDED, record.settled_at)


def test_the_second_completer_does_not_release_the_command(world: World) -> None:
    """What did not fail here is taken over within a second of its next lapse."""
    story, other = Story(world.process()), world.process()

    class Raced:
        def __init__(self) -> None:
            self.handler, self.races = story.handler(), 0

        async def check(self, command: Command, request: bytes) -> None:
            self.races += 1
            if self.races == 1:  # another process claims it between the look and the claim here, and dies
                assert isinstance(await in_other(other), Permit)

        def __call__(self, permit: Permit, request: bytes) -> Any:
            return self.handler(permit, request)

    async def in_other(process: Process) -> Any:
        return await asyncio.to_thread(lambda: process.tell(process.engine.claim(resumable())))

    completer = Completer(story.process.engine, rest_seconds=1000)
    completer.register(SCOPE.operation, RESUMABLE, Raced())
    abandon(world.process(), resumable())
    for completed in (0, 1):
        world.clock.advance(LEASE_US + 1)
        assert story.complete(completer) == completed
    assert story.calls == ["mail"]
