"""An engine that was not opened checks its store once, before its first claim, as ``open`` would have done."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Engine, Permit, Policy
from semel.engine.opening import AsyncFirstLook, FirstLook
from semel.engine.requirements import introduce
from semel.engine.state import Core
from semel.errors import ConfigurationError, IdentityMismatch, SchemaError, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.urls import connect_backend
from semel.telemetry import Counting
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import MADE, Mode, Shell, command
from tests.servers import redis
from tests.servers.running import Running, stop

ROOT = Path(__file__).parents[2]
MODES: tuple[Mode, ...] = ("sync", "async")
ATOMIC = Policy(effects="atomic")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A migrated store."""
    with closing(Engine(sqlite(tmp_path / "semel.db"))) as engine:
        engine.migrate()
    return tmp_path / "semel.db"


def make(permit: Permit) -> Answer:
    return MADE


def never(permit: Permit) -> Answer:
    raise AssertionError("the handler ran")


def looks(counting: Counting) -> int:
    """How often the store was asked who it is."""
    return sum(
        count
        for (event, labels), count in counting.counts.items()
        if event == "store_call_seconds" and "identity" in labels
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", [Policy(), ATOMIC], ids=["external", "atomic"])
def test_the_first_claim_looks_once(mode: Mode, policy: Policy, file: Path) -> None:
    counting = Counting()
    with closing(Shell(mode, sqlite(file), observer=counting)) as shell:
        assert looks(counting) == 0
        for key in ("a", "b", "a"):
            shell.run(command(key, policy=policy), make)
        assert looks(counting) == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_open_engine_does_not_look_again(mode: Mode, file: Path) -> None:
    counting = Counting()
    with closing(Shell(mode, sqlite(file), observer=counting)) as shell:
        shell.open()
        shell.run(command(), make)
        assert looks(counting) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_memory_store_needs_no_opening(mode: Mode) -> None:
    with closing(Shell(mode, memory())) as shell:
        assert shell.run(command(), make).answer == MADE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", [Policy(), ATOMIC], ids=["external", "atomic"])
def test_another_store_is_refused(mode: Mode, policy: Policy, file: Path, tmp_path: Path) -> None:
    with closing(Shell(mode, sqlite(file), id_secret=b"s" * 16)) as shell:
        for _ in range(2):  # nothing is remembered of a check that failed
            with pytest.raises(IdentityMismatch, match="the id secret is not the one"):
                shell.run(command(policy=policy), never)
    with closing(Shell(mode, sqlite(tmp_path / "bare.db"))) as shell:
        with pytest.raises(SchemaError, match="semel migrate"):
            shell.run(command(policy=policy), never)
        shell.open()
        shell.run(command(), make)


def test_a_join_is_refused_as_well(file: Path) -> None:
    import sqlite3

    with closing(Engine(sqlite(file), id_secret=b"s" * 16)) as engine, closing(sqlite3.connect(file)) as db:
        with pytest.raises(IdentityMismatch), engine.atomic(db, command(policy=ATOMIC)):
            raise AssertionError("the block ran")
        assert not engine.core.entering


# --- a server that forgets ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server as it comes: no append-only file."""
    server = redis.start(tmp_path_factory.mktemp("forgetful") / "own")
    yield server
    stop(server)


@pytest.fixture
def url(forgetful: Running) -> str:
    """A store on it, migrated."""
    made = f"redis://127.0.0.1:{forgetful.port}/0?prefix={redis.prefix()}"
    with closing(Engine.connect(made)) as engine:
        engine.migrate()
    return made


@pytest.mark.parametrize("mode", MODES)
def test_external_is_refused_on_a_server_that_forgets(mode: Mode, url: str) -> None:
    with closing(Shell(mode, connect_backend(url))) as shell:
        with pytest.raises(ConfigurationError, match="the store would lose the fact that it ran"):
            shell.run(command(), never)
        shell.run(command(policy=Policy.of(effects="idempotent")), make)


# --- those who come meanwhile ------------------------------------------------------------------------


class Fails:
    """A store that cannot be reached so many times, then is what it is."""

    def __init__(self, backend: Backend, times: int) -> None:
        self.store = backend.store
        self.times = times
        self.begun = 0

    def identity(self) -> Any:
        self.begun += 1
        if self.begun <= self.times:
            raise StoreUnavailable("the store cannot be reached")
        return (yield from introduce(self.store))[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_first_check_is_repeated(mode: Mode, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = sqlite(file)
    failing = Fails(backend, 2)
    monkeypatch.setattr("semel.engine.opening.introduce", lambda store: _identify(failing))
    with closing(Shell(mode, backend)) as shell:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                shell.run(command(), never)
        shell.run(command(), make)
        shell.run(command("other"), make)
    assert failing.begun == 3


def _identify(failing: Fails) -> Any:
    return (yield from failing.identity()), []


def test_threads_share_one_look(file: Path) -> None:
    counting = Counting()
    with closing(Engine(sqlite(file), observer=counting)) as engine, ThreadPoolExecutor(8) as pool:
        together = Barrier(8)

        def ask(n: int) -> Answer:
            together.wait()
            return engine.run(command(str(n)), make).answer

        assert list(pool.map(ask, range(8))) == [MADE] * 8
    assert looks(counting) == 1


def test_a_thread_that_arrives_meanwhile_waits_for_the_check() -> None:
    core = Core(None, None, 1, 1)
    begun, go = Event(), Event()
    taken: list[int] = []

    def check() -> None:
        taken.append(1)
        begun.set()
        go.wait(30)

    look = FirstLook(core, check)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(look.take)
        begun.wait(30)
        mine = look._look
        assert mine is not None
        waits = Event()
        result = mine.result

        def note_and_wait(timeout: float | None = None) -> None:
            waits.set()
            result(timeout)

        mine.result = note_and_wait  # type: ignore[method-assign]
        other = pool.submit(look.take)
        assert waits.wait(30)
        assert not other.done()
        go.set()
        one.result(30)
        other.result(30)
    assert taken == [1]


def test_an_interrupted_first_look_passes_to_the_next_caller() -> None:
    """Ctrl-C belongs to its thread alone: who waits for that look takes one of its own."""
    core = Core(None, None, 1, 1)
    begun, go = Event(), Event()
    takers: list[str] = []

    def check() -> None:
        takers.append("one" if not takers else "other")
        if takers == ["one"]:
            begun.set()
            go.wait(30)
            raise KeyboardInterrupt

    look = FirstLook(core, check)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(look.take)
        begun.wait(30)
        other = pool.submit(look.take)
        go.set()
        assert isinstance(one.exception(30), KeyboardInterrupt)
        other.result(30)
    assert takers == ["one", "other"]


def test_tasks_share_one_look(file: Path) -> None:
    counting = Counting()

    async def scenario() -> None:
        engine = AsyncEngine(sqlite(file), observer=counting)
        permits = await asyncio.gather(*(engine.claim(command(str(n))) for n in range(5)))
        assert all(isinstance(permit, Permit) for permit in permits)
        await engine.close()

    asyncio.run(scenario())
    assert looks(counting) == 1


def test_a_cancelled_task_passes_its_check_to_the_next() -> None:
    core = Core(None, None, 1, 1)
    looked: list[int] = []

    async def scenario() -> None:
        go = asyncio.Event()

        async def check() -> None:
            looked.append(1)
            await go.wait()
            core.checked = True

        look = AsyncFirstLook(core, check)
        takers = [asyncio.create_task(look.take()) for _ in range(4)]
        await asyncio.sleep(0)
        assert looked == [1]
        takers[0].cancel()
        takers[3].cancel()  # one that only waits ends nothing
        go.set()
        ended = await asyncio.gather(*takers, return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError, type(None), type(None), asyncio.CancelledError]

    asyncio.run(scenario())
    assert looked == [1, 1]


def test_tasks_share_a_look_that_fails() -> None:
    core = Core(None, None, 1, 1)
    looked: list[int] = []

    async def check() -> None:
        looked.append(1)
        await asyncio.sleep(0)
        raise StoreUnavailable("away")

    async def scenario() -> None:
        ended = await asyncio.gather(*(look.take() for _ in range(5)), return_exceptions=True)
        assert [str(error) for error in ended] == ["away"] * 5

    look = AsyncFirstLook(core, check)
    asyncio.run(scenario())
    assert looked == [1]


def test_a_loop_that_ended_during_the_check_does_not_block_the_next() -> None:
    core = Core(None, None, 1, 1)
    looked: list[int] = []

    async def check() -> None:
        looked.append(1)
        if len(looked) == 1:
            await asyncio.Event().wait()

    look = AsyncFirstLook(core, check)

    async def give_up() -> None:
        one = asyncio.create_task(look.take())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        one.cancel()

    asyncio.run(give_up())
    asyncio.run(look.take())
    assert looked == [1, 1]


FORKED = """
import os, sys
from semel import Answer, Engine
from semel.errors import IdentityMismatch
from tests.engine.shells import command

engine = Engine.connect(sys.argv[1], id_secret=b"s" * 16)
engine._performer.first_look._look = object()  # as if another thread of the parent were looking
child = os.fork()
if child == 0:
    try:
        engine.run(command(), lambda permit: Answer(200, (), b""))
    except IdentityMismatch:
        print("refused", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_looks_for_itself(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, f"sqlite:///{file}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )
    assert (done.stdout, done.stderr) == ("refused\n", "")
