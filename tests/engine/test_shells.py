"""The two engines: thin, alike, and as cheap as promised."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Engine, Permit, Policy
from semel.telemetry import Counting
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import MADE, Mode, Shell, command, until

DUNDERS = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def public(kind: type) -> dict[str, inspect.Signature]:
    names = {
        name: value for name, value in vars(kind).items() if inspect.isfunction(value) or isinstance(value, classmethod)
    }
    return {
        DUNDERS.get(name, name): inspect.signature(getattr(kind, name))
        for name in names
        if not name.startswith("_") or name in ("__init__", "__enter__", "__aenter__", "__exit__", "__aexit__")
    }


def test_both_engines_have_the_same_public_names_and_parameters() -> None:
    one, other = public(Engine), public(AsyncEngine)
    assert set(one) == set(other)
    for name in one:
        left = [(p.name, p.kind, p.default) for p in one[name].parameters.values()]
        right = [(p.name, p.kind, p.default) for p in other[name].parameters.values()]
        assert left == right, name


def handler(permit: Permit) -> Answer:
    if permit.unit is not None:
        permit.connection.execute("CREATE TABLE IF NOT EXISTS effect (n INTEGER)")
    return MADE


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_a_fresh_command_is_two_store_calls_and_a_replay_one(
    mode: Mode, store: str, effects: str, tmp_path: Path
) -> None:
    counting = Counting()
    shell = Shell(mode, memory() if store == "memory" else sqlite(tmp_path / "semel.db"), observer=counting)
    shell.open()
    policy = Policy.of(effects=effects)

    def calls() -> int:
        return sum(count for (event, _), count in counting.counts.items() if event == "store_call_seconds")

    before = calls()
    assert not shell.run(command(policy=policy), handler).replayed
    assert calls() - before == 2
    assert shell.run(command(policy=policy), handler).replayed
    assert calls() - before == 3
    shell.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_commits_are_counted(mode: Mode, tmp_path: Path) -> None:
    """ATOMIC is one commit with the handler's own writes; a claim and a settlement are two; a replay is none."""
    backend = sqlite(tmp_path / "semel.db")
    shell = Shell(mode, backend)
    shell.open()

    def commits(what: Policy, key: str) -> int:
        before = backend.driver.commits
        shell.run(command(key, policy=what), handler)
        count: int = backend.driver.commits - before
        return count

    assert commits(Policy(effects="atomic"), "a") == 1
    assert commits(Policy(), "e") == 2
    assert commits(Policy(effects="atomic"), "a") == commits(Policy(), "e") == 0
    shell.close()


def test_what_is_queued_together_is_committed_together(tmp_path: Path) -> None:
    """Group commit: twenty claims that queue up while another caller holds the writer's gate are one commit."""

    async def scenario() -> int:
        backend = sqlite(tmp_path / "semel.db")
        engine = AsyncEngine(backend)
        await engine.migrate()
        async with engine:
            unit = await backend.begin_async()
            before: int = backend.driver.commits
            claims = [asyncio.create_task(engine.claim(command(str(n)))) for n in range(20)]
            await until(lambda: len(backend.driver._queue) == len(claims))
            await unit.rollback_async()
            permits = await asyncio.gather(*claims)
            assert all(isinstance(permit, Permit) for permit in permits)
            count: int = backend.driver.commits - before
            return count

    assert asyncio.run(scenario()) == 1
