"""A replay from the memory store: recognised without a claim, and only where nothing else is due."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Permit, Policy, Scope
from semel.core.model import KeyReused, Replay
from semel.core.outcomes import Succeeded
from semel.engine.state import Core
from semel.errors import StoreUnavailable

MADE = Answer(201, ((b"location", b"/payments/1"),), b"made")


def command(fingerprint: bytes = bytes(32)) -> Command:
    return Command(Scope("acme", "alice", "pay"), "k", fingerprint, "1.tests", Policy())


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    made: list[Command] = []
    attempt: Callable[..., Any] = Core.attempt

    def counted(self: Core, command: Command, id: bytes | None = None) -> Any:
        made.append(command)
        return attempt(self, command, id)

    monkeypatch.setattr(Core, "attempt", counted)
    return made


async def answered(engine: AsyncEngine) -> None:
    permit = await engine.claim(command())
    assert isinstance(permit, Permit)
    await engine.settle(permit, Succeeded(MADE))


def test_a_replay_makes_no_claim(attempts: list[Command]) -> None:
    async def run() -> None:
        async with AsyncEngine.connect("memory://?persistence=none") as engine:
            await answered(engine)
            met = await engine.claim(command())
            assert isinstance(met, Replay)
            assert met.answer == MADE
            assert len(attempts) == 1
            assert isinstance(await engine.claim(command(b"x" * 32)), KeyReused)
            assert len(attempts) == 2

    asyncio.run(run())


def test_a_process_that_drains_replays_nothing() -> None:
    async def run() -> None:
        async with AsyncEngine.connect("memory://?persistence=none") as engine:
            await answered(engine)
            await engine.drain(0)
            with pytest.raises(StoreUnavailable, match="shutting down"):
                await engine.claim(command())

    asyncio.run(run())


def test_an_observer_hears_of_every_replay() -> None:
    class Heard:
        def __init__(self) -> None:
            self.verdicts: list[str] = []

        def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
            if name == "claims":
                self.verdicts.append(labels["verdict"])

    async def run() -> None:
        heard = Heard()
        async with AsyncEngine.connect("memory://?persistence=none", observer=heard) as engine:
            await answered(engine)
            await engine.claim(command())
        assert heard.verdicts == ["Proceed", "Replay"]

    asyncio.run(run())


def test_a_command_of_checked_parts_is_as_any_other() -> None:
    under: Callable[[str], None] = lambda recipe: None  # noqa: E731 - both commands need the same one
    policy = Policy()
    made = Command.of_checked(Scope("acme", "alice", "pay"), "k", bytes(32), "1.tests", policy, under)
    assert made == Command(Scope("acme", "alice", "pay"), "k", bytes(32), "1.tests", policy, under)
    assert type(made) is Command
    assert dataclasses.replace(made, key="other").key == "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.key = "other"  # type: ignore[misc]
