"""Observers that raise stop nothing; what they get about unknown outcomes; what is logged without one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.errors import OutcomeUnknownError
from semel.retention.worker import Reaper
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.telemetry import REMEMBERED_MAX, Both, Counting, GuardedObserver, Logging, Silence, UnknownOutcomes, guard


def command(key: str, caller: str = "alice", **options: Any) -> Command:
    return Command(Scope("demo", caller, "pay"), key, bytes(32), "test", Policy.of(**options))


class Broken:
    """An exporter that raises at every event."""

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        raise RuntimeError("the registry is full")


class Remembering:
    """Keeps each event with its detail."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, str], dict[str, str]]] = []

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        self.events.append((name, dict(labels), dict(detail)))

    def details(self, name: str) -> list[dict[str, str]]:
        return [detail for told, _, detail in self.events if told == name]


def pay(permit: Permit) -> Answer:
    return Answer(201, (), b"paid")


def failing(permit: Permit) -> Answer:
    raise ConnectionError("the provider hung up")


async def failing_async(permit: Permit) -> Answer:
    raise ConnectionError("the provider hung up")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "semel"]


# --- observers that raise -----------------------------------------------------------------------


def test_commands_run_and_replay_although_the_observer_raises(caplog: pytest.LogCaptureFixture) -> None:
    with Engine.connect("memory://", observer=Broken()) as engine:
        first = engine.run(command("key-1"), pay)
        again = engine.run(command("key-1"), pay)
        assert (first.answer.body, first.replayed) == (b"paid", False)
        assert (again.answer.body, again.replayed) == (b"paid", True)
        assert isinstance(engine.core.observer, GuardedObserver)
        assert engine.core.observer.errors > 3
    assert len(warnings_of(caplog)) == 1  # logged once, counted always
    assert "Broken raised RuntimeError" in warnings_of(caplog)[0]


def test_async_commands_run_although_the_observer_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with AsyncEngine.connect("memory://", observer=Broken()) as engine:

            async def handler(permit: Permit) -> Answer:
                return Answer(201, (), b"paid")

            assert (await engine.run(command("key-1"), handler)).answer.body == b"paid"
            assert (await engine.run(command("key-1"), handler)).replayed

    asyncio.run(story())
    assert len(warnings_of(caplog)) == 1


def test_the_reaper_continues_although_the_observer_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        now = [1_800_000_000_000_000]
        backend = Backend("memory", MemoryStore(), LocalDriver(clock=lambda: now[0]))
        async with AsyncEngine(backend, observer=Broken()) as engine:
            for key in ("key-1", "key-2"):
                assert isinstance(await engine.claim(command(key, lease_seconds=5)), Permit)
            engine.core.live.clear()
            now[0] += 6_000_000
            assert await Reaper(engine).run_once() == 2
            assert (await Reaper(engine).purge()).scanned == 2

    asyncio.run(story())


def test_one_broken_observer_hides_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    with Engine.connect("memory://", observer=Both(Broken(), counting)) as engine:
        engine.run(command("key-1"), pay)
    assert counting.total("settlements") == 1


def test_an_observer_without_events_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"an observer has a method event\(name, value, labels, detail\)"):
        Engine.connect("memory://", observer=print)  # type: ignore[arg-type]


def test_guarding_twice_counts_once() -> None:
    observer = guard(Broken())
    assert guard(observer) is observer
    silence = Silence()
    assert guard(silence) is silence


# --- unknown and lapsed outcomes ----------------------------------------------------------------


def test_unknown_and_lapsed_events_name_the_operation_and_the_caller() -> None:
    heard = Remembering()

    async def story() -> list[str]:
        now = [1_800_000_000_000_000]
        backend = Backend("memory", MemoryStore(), LocalDriver(clock=lambda: now[0]))
        async with AsyncEngine(backend, observer=heard) as engine:
            failed: list[str] = []

            async def handler(permit: Permit) -> Answer:
                failed.append(permit.operation_id)
                raise ConnectionError("the provider hung up")

            with pytest.raises(ConnectionError):
                await engine.run(command("key-1"), handler)
            reaped = await engine.claim(command("key-2", "bob", lease_seconds=5))
            taken = await engine.claim(command("key-3", "carol", lease_seconds=5, effects="idempotent"))
            assert isinstance(reaped, Permit)
            assert isinstance(taken, Permit)
            engine.core.live.clear()
            now[0] += 6_000_000
            assert await Reaper(engine).run_once() == 1
            again = await engine.claim(command("key-3", "carol", lease_seconds=5, effects="idempotent"))
            assert isinstance(again, Permit)
            return [failed[0], reaped.operation_id, taken.operation_id]

    failed, reaped, taken = asyncio.run(story())
    assert heard.details("unknown") == [
        {"operation_id": failed, "caller": "alice"},
        {"operation_id": reaped, "caller": "bob"},
    ]
    by_reaper, by_takeover = heard.details("lapsed")
    assert by_reaper == {"operation_id": reaped, "caller": "bob"}
    assert {name: by_takeover[name] for name in ("operation_id", "caller")} == {
        "operation_id": taken,
        "caller": "carol",
    }


def test_without_an_observer_an_unknown_outcome_is_logged_once_for_its_record(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with Engine.connect("memory://") as engine:
        with pytest.raises(ConnectionError):
            engine.run(command("key-1"), failing)
        for _ in range(3):
            with pytest.raises(OutcomeUnknownError) as met:
                engine.run(command("key-1"), pay)
    [line] = warnings_of(caplog)
    assert f"operation=pay operation_id={met.value.operation_id} caller=alice doubt=error:ConnectionError" in line
    assert f"semel settle {met.value.operation_id}" in line
    assert caplog.records[0].levelno == logging.WARNING


def test_without_an_observer_what_the_reaper_finds_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> str:
        now = [1_800_000_000_000_000]
        async with AsyncEngine(Backend("memory", MemoryStore(), LocalDriver(clock=lambda: now[0]))) as engine:
            permit = await engine.claim(command("key-1", lease_seconds=5))
            assert isinstance(permit, Permit)
            engine.core.live.clear()
            now[0] += 6_000_000
            assert await Reaper(engine).run_once() == 1
            return permit.operation_id

    id = asyncio.run(story())
    [line] = warnings_of(caplog)
    assert f"operation_id={id}" in line
    assert "doubt=lapsed" in line


def test_a_lapsed_command_found_by_a_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = [1_800_000_000_000_000]
    with Engine(Backend("memory", MemoryStore(), LocalDriver(clock=lambda: now[0]))) as engine:
        assert isinstance(engine.claim(command("key-1", lease_seconds=5)), Permit)
        engine.core.live.clear()
        now[0] += 6_000_000
        with pytest.raises(OutcomeUnknownError):
            engine.run(command("key-1"), pay)
    [line] = warnings_of(caplog)
    assert "doubt=lapsed" in line


def test_the_silence_observer_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Engine.connect("memory://", observer=Silence()) as engine, pytest.raises(ConnectionError):
        engine.run(command("key-1"), failing)
    assert warnings_of(caplog) == []


def test_the_operation_ids_that_were_logged_take_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    unknowns = UnknownOutcomes()
    caplog.set_level(logging.CRITICAL, "semel")
    for number in range(REMEMBERED_MAX + 10):
        assert unknowns.tell("pay", "lapsed", str(number), "alice")
    assert not unknowns.tell("pay", "lapsed", str(REMEMBERED_MAX), "alice")
    assert unknowns.tell("pay", "lapsed", "0", "alice")  # it was forgotten
    assert len(unknowns._told) == REMEMBERED_MAX


# --- text from outside --------------------------------------------------------------------------

FORGED = 'alice\r\nWARNING semel.unknown operation=pay "x" \x1b[2J\u202e'


def test_a_caller_forges_neither_a_line_nor_a_field(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "semel")
    with Engine.connect("memory://", observer=Logging(logging.getLogger("semel"))) as engine:
        engine.run(command("key-1", FORGED), pay)
        engine.run(command("key-1", FORGED), pay)
    lines = [line for line in warnings_of(caplog) if "caller=" in line]
    assert len(lines) == 4  # two claims, a settlement and a replay
    for line in lines:
        assert line.isascii()
        assert line.isprintable()
        assert 'caller="alice\\x0d\\x0aWARNING semel.unknown operation=pay \\"x\\" \\x1b[2J\\u202e"' in line


def test_a_json_line_names_caller_operation_and_id_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "semel")
    with Engine.connect("memory://", observer=Logging(logging.getLogger("semel"), as_json=True)) as engine:
        id = engine.run(command("canary-1", FORGED), pay).operation_id
        engine.run(command("canary-1", FORGED), pay)
    lines = warnings_of(caplog)
    assert [line for line in lines if not (line.isascii() and line.isprintable()) or "canary" in line] == []
    documents = [json.loads(line) for line in lines if '"caller"' in line]
    assert [(each["event"], each["state"]) for each in documents] == [
        ("semel.claims", "PROCESSING"),
        ("semel.settlements", "SUCCEEDED"),
        ("semel.claims", "SUCCEEDED"),
        ("semel.replays", "SUCCEEDED"),
    ]
    for each in documents:
        assert (each["operation"], each["caller"], each["operation_id"]) == ("pay", FORGED, id)
        assert len(each["key_hash"]) == 8


def test_the_warning_of_an_unknown_outcome_is_one_line_too(caplog: pytest.LogCaptureFixture) -> None:
    with Engine.connect("memory://") as engine, pytest.raises(ConnectionError):
        engine.run(command("key-1", FORGED), failing)
    [line] = warnings_of(caplog)
    assert line.isprintable()
