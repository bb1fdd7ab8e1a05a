"""Callers cancelled at each of their awaits, over the engine and the ASGI middleware: nothing leaks, nothing is lost.

Each story runs once for every wait of its caller's task, cancelled at once and cancelled late, until a run is over
before it waits so often. Then everything must be quiet, and a new engine on the same file gives the right verdict.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.core.model import Effects
from semel.core.outcomes import Succeeded
from semel.errors import CommandError
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import from_state
from semel.http.routing import Operation
from tests.crash.work import Folder, command
from tests.processes.awaits import cancelled_at
from tests.web.driving import ALICE, KEY, asgi_call, asgi_scope, head

WAITS_MAX = 200
MADE = Answer(201, (), b"made")
EFFECTS = ["external", "idempotent", "atomic"]


class World:
    """One file, one engine, the middleware around an application, and what was done."""

    def __init__(self, folder: Folder, effects: str) -> None:
        self.folder = folder
        self.command = command("k", effects, wait_seconds=0)
        self.engine = folder.async_engine()
        policy = Policy.of(effects=effects, lease_seconds=1.0, deadline_seconds=60, wait_seconds=0, answer_bytes_max=64)
        self.web = SemelMiddleware(
            self.app, self.engine, caller=from_state("user"), operations=[Operation("/payments", policy)]
        )
        self.calls: list[str] = []
        self.long = False

    async def handler(self, permit: Permit) -> Answer:
        await asyncio.sleep(0)
        self.effect(permit)
        await asyncio.sleep(0)
        return MADE

    def effect(self, permit: Permit) -> None:
        self.calls.append(permit.key_for("charge"))
        if permit.effects is Effects.ATOMIC:
            permit.connection.execute("INSERT INTO business VALUES ('k', 'token')")

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            more = (await receive())["more_body"]
        await self.handler(scope["semel.permit"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        for _ in range(3):
            body = b"made" * (20 if self.long else 1)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def request(self) -> int:
        pieces = [b'{"amount":', b"1250}"]
        scope = asgi_scope("POST", "/payments", "", head(KEY, [], pieces), ALICE)

        async def yielding(scope: Any, receive: Any, send: Any) -> None:
            async def receive_later() -> Any:
                await asyncio.sleep(0)
                return await receive()

            async def send_later(message: Any) -> None:
                await asyncio.sleep(0)
                await send(message)

            await self.web(scope, receive_later, send_later)

        return (await asgi_call(yielding, scope, pieces)).status

    async def quiet(self) -> None:
        """Wait for what was begun, and see that nothing is left of it."""
        await self.web.close()
        await self.engine.close()
        core = self.engine.core
        assert (core.live, core.running, core.units, core.entering) == ({}, {}, {}, set())
        assert (core.waiting, core.waiting_by_caller, core.wakers) == (0, {}, {})
        assert asyncio.all_tasks() == {asyncio.current_task()}


Story = Callable[[World], Coroutine[Any, Any, Any]]


async def run(world: World) -> None:
    await world.engine.run(world.command, world.handler)


async def claim_and_settle(world: World) -> None:
    """By hand, with nothing to wait for in between: there the permit would be the caller's own to give back."""
    permit = await world.engine.claim(world.command)
    assert isinstance(permit, Permit), permit
    world.effect(permit)
    await world.engine.settle(permit, Succeeded(MADE))


async def request(world: World) -> None:
    assert await world.request() == 201


async def long_answer(world: World) -> None:
    """Longer than is kept: it is marked so and flows through."""
    world.long = True
    assert await world.request() == 201


async def read_and_find(world: World) -> None:
    """Store calls beside commands."""
    id = world.engine.core.attempt(world.command).id
    await world.engine.perform("read", lambda: world.engine.store.read((id,)))
    await world.engine.perform("lapse", lambda: world.engine.store.lapse(10))
    await world.engine.run(world.command, world.handler)


async def join_transaction(world: World) -> None:
    """In the caller's own transaction, which the caller ends."""
    connection = sqlite3.connect(world.folder.database)
    try:
        async with world.engine.atomic(connection, world.command) as once:
            if not once.replayed:
                await asyncio.sleep(0)
                world.calls.append("joined")
                connection.execute("INSERT INTO business VALUES ('k', 'token')")
                await asyncio.sleep(0)
                once.answer = MADE
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.close()


async def count_cancelled(story: Story, tmp_path: Path, effects: str, check: Callable[..., Awaitable[None]]) -> int:
    """Tell the story, cancelled at every wait; how often that was."""
    template = Folder(tmp_path)
    template.create()
    image = template.database.read_bytes()
    cancelled = 0
    for late in (False, True):
        for at in range(1, WAITS_MAX):
            folder = Folder(tmp_path / f"{late}{at}")
            folder.path.mkdir()
            folder.database.write_bytes(image)
            world = World(folder, effects)
            reached = await cancelled_at(lambda world=world: story(world), at, late=late)  # type: ignore[misc]
            await world.quiet()
            await check(world, folder, effects)
            cancelled += reached
            if not reached:
                break
        else:
            pytest.fail("never over")
    return cancelled


async def by_command(world: World, folder: Folder, effects: str) -> None:
    """The same command again: run if it never began, replayed if it did, and never doubled."""
    again = World(folder, effects)
    result = await again.engine.run(again.command, again.handler)
    assert result.answer.body == MADE.body
    assert result.replayed == bool(folder_effects(world, folder, again))
    await again.quiet()
    check_effects(world, again, folder, effects)


def folder_effects(world: World, folder: Folder, again: World) -> int:
    """Effects that the first life left."""
    if world.command.policy.terms.effects is Effects.ATOMIC:
        return folder.business()["k"] - len(again.calls)
    return len(world.calls)


def check_effects(world: World, again: World, folder: Folder, effects: str) -> None:
    if effects == "atomic":
        assert folder.business() == {"k": 1}
    else:
        assert len(world.calls) + len(again.calls) == 1


async def by_request(world: World, folder: Folder, effects: str) -> None:
    again = World(folder, effects)
    again.long = world.long
    told = await again.request()
    await again.quiet()
    # An answer that flowed through is not kept; that it was given is.
    assert told == (409 if world.long and world.calls else 201)
    check_effects(world, again, folder, effects)


STORIES: list[tuple[Story, str, Callable[..., Awaitable[None]], int]] = [
    *((run, effects, by_command, 2) for effects in EFFECTS),
    *((claim_and_settle, effects, by_command, 2) for effects in EFFECTS),
    *((request, effects, by_request, 6) for effects in EFFECTS),
    *((long_answer, effects, by_request, 6) for effects in EFFECTS[:2]),
    (read_and_find, "external", by_command, 3),
    (join_transaction, "atomic", by_command, 2),
]


@pytest.mark.parametrize(
    ("story", "effects", "check", "waits_min"), STORIES, ids=[f"{story.__name__}-{kind}" for story, kind, *_ in STORIES]
)
def test_cancelled_at_every_await(
    story: Story, effects: str, check: Callable[..., Awaitable[None]], waits_min: int, tmp_path: Path
) -> None:
    async def main() -> int:
        return await count_cancelled(story, tmp_path, effects, check)

    cancelled = asyncio.run(main())
    print(f"{story.__name__} {effects}: cancelled at {cancelled} awaits")
    assert cancelled >= waits_min


def test_a_waiting_duplicate_cancelled_at_every_await(tmp_path: Path) -> None:
    """It gives its place back; the one it waited for is not disturbed."""
    folder = Folder(tmp_path)
    folder.create()

    async def main() -> int:
        world = World(folder, "external")
        first = await world.engine.claim(world.command)
        assert isinstance(first, Permit)

        async def waiting() -> None:
            with pytest.raises(CommandError):
                await world.engine.run(world.command, world.handler, wait_seconds=0.2)

        found = 0
        for late in (False, True):
            for at in range(1, WAITS_MAX):
                if not await cancelled_at(waiting, at, late=late):
                    break
                found += 1
                assert (world.engine.core.waiting, world.engine.core.wakers) == (0, {})
                assert len(world.engine.core.live) == 1
        await world.engine.settle(first, Succeeded(MADE))
        await world.quiet()
        assert (await AsyncEngine.run(world.engine, world.command, world.handler)).replayed
        await world.quiet()
        return found

    cancelled = asyncio.run(main())
    print(f"a waiting duplicate: cancelled at {cancelled} awaits")
    assert cancelled >= 4
