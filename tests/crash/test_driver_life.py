"""The SQLite driver when its users go away: closed in traffic, loops gone, callers cancelled with writes in flight."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Engine, Permit
from semel.core.model import Proceed, Settled
from semel.core.outcomes import Succeeded
from semel.errors import StoreUnavailable
from tests.crash.work import HEADERS, Folder, command

ANSWER = Answer(200, HEADERS, b"done")
DONE = Succeeded(ANSWER)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.create()
    return made


@contextmanager
def lock_file(folder: Folder) -> Iterator[sqlite3.Connection]:
    """Another connection holds the file's write lock."""
    other = sqlite3.connect(folder.database, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield other
    finally:
        other.close()


def run(engine: Engine, key: str, effects: str = "external") -> Answer:
    return engine.run(command(key, effects), lambda permit: ANSWER).answer


async def run_async(engine: AsyncEngine, key: str, effects: str = "external") -> Answer:
    async def handler(permit: Permit) -> Answer:
        return ANSWER

    return (await engine.run(command(key, effects), handler)).answer


@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_closing_during_traffic_loses_no_call(folder: Folder, effects: str) -> None:
    engine = folder.engine()
    stop = threading.Event()
    ran: list[str] = []
    failed: list[BaseException] = []

    def traffic(name: str) -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                run(engine, f"{name}-{number}", effects)
                ran.append(name)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failed.append(error)

    threads = [threading.Thread(target=traffic, args=(f"t{place}",), daemon=True) for place in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        engine.backend.driver.close()
        seen = len(ran)
        while len(ran) < seen + 4 and not failed:
            assert not stop.wait(0.001)
            assert any(thread.is_alive() for thread in threads)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert [thread.name for thread in threads if thread.is_alive()] == []
    assert failed == []
    engine.close()
    assert folder.sql("SELECT count(*) FROM semel_record WHERE state = 3") == [(len(ran),)]


def test_a_closed_engine_may_be_used_again(folder: Folder) -> None:
    engine = folder.engine()
    for number in range(3):
        assert run(engine, f"k{number}") == ANSWER
        engine.close()
        engine.close()
    engine.open()
    assert run(engine, "k0") == ANSWER
    engine.close()


def test_closing_does_not_wait_for_ever_for_an_atomic_command(folder: Folder) -> None:
    engine = folder.engine("?busy_seconds=0.2")
    permit = engine.claim(command("held", "atomic"))
    assert isinstance(permit, Permit)
    engine.close()
    assert engine.settle(permit, DONE) == Settled()
    engine.close()
    assert folder.sql("SELECT state FROM semel_record") == [(3,)]


def test_a_loop_closed_before_its_commit_loses_nothing(folder: Folder) -> None:
    """The next caller writes what was queued, and the next loop is served."""
    engine = folder.async_engine()
    loop = asyncio.new_event_loop()
    task = loop.create_task(run_async(engine, "cut-off"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert not task.done()

    assert asyncio.run(asyncio.wait_for(run_async(engine, "next"), 10)) == ANSWER

    task.get_coro().close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    engine.backend.driver.close()
    assert folder.sql("SELECT count(*) FROM semel_record WHERE state = 3") == [(1,)]


def test_a_loop_closed_while_it_waited_for_a_transaction(folder: Folder) -> None:
    """A unit whose caller is gone releases its lock."""
    engine = folder.async_engine("?busy_seconds=20")
    driver = engine.backend.driver
    loop = asyncio.new_event_loop()
    with lock_file(folder) as other:
        task = loop.create_task(run_async(engine, "cut-off", "atomic"))
        loop.run_until_complete(asyncio.wait({task}, timeout=0.1))
        loop.close()
        other.execute("ROLLBACK")
    threading.Event().wait(0.05)  # the writer's thread gets the lock for it

    assert asyncio.run(asyncio.wait_for(run_async(engine, "next", "atomic"), 10)) == ANSWER

    task.get_coro().close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    driver.close()
    assert folder.sql("SELECT count(*) FROM semel_record") == [(1,)]


def test_an_abandoned_transaction_releases_its_lock(folder: Folder) -> None:
    engine = folder.engine("?busy_seconds=5")
    permit = engine.claim(command("forgotten", "atomic"))
    assert isinstance(permit, Permit)
    engine.core.conclude(permit)
    del permit
    gc.collect()
    assert run(engine, "next", "atomic") == ANSWER
    engine.close()


@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_callers_cancelled_while_the_file_is_busy(folder: Folder, effects: str) -> None:
    """The write is committed or not; either way the key is free soon, and the driver works."""

    async def main() -> None:
        async with folder.async_engine("?busy_seconds=10") as engine:
            await run_async(engine, "warm", effects)
            with lock_file(folder):
                tasks = [asyncio.ensure_future(run_async(engine, f"k{place}", effects)) for place in range(5)]
                done, _ = await asyncio.wait(tasks, timeout=0.1)
                assert not done
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(end) for end in ends} == {asyncio.CancelledError}
            for place in range(5):
                verdict = await engine.claim(command(f"k{place}", effects), wait_seconds=5)
                assert isinstance(verdict, Permit), verdict
                assert await engine.settle(verdict, DONE) == Settled()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_cancelling_a_driver_call_does_not_split_the_write(folder: Folder) -> None:
    async def main() -> None:
        async with folder.async_engine("?busy_seconds=10") as engine:
            claims = [engine.core.attempt(command(f"k{place}", "external")) for place in range(3)]
            with lock_file(folder):
                calls = [
                    asyncio.ensure_future(engine.backend.driver.run_async(lambda one=one: engine.store.claim((one,))))
                    for one in claims
                ]
                await asyncio.wait(calls, timeout=0.05)
                calls[1].cancel()
            for call in (calls[0], calls[2]):
                [verdict] = await call
                assert isinstance(verdict, Proceed)
            rows = await engine.perform("read", lambda: engine.store.read([one.id for one in claims]))
            assert rows[0] is not None
            assert rows[2] is not None
            assert rows[1] is None or rows[1].nonce == claims[1].nonce

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_interrupt_while_committing_for_others(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller commits the writes of all; Ctrl-C in the middle must not leave its transaction open."""
    engine = folder.engine("?busy_seconds=5")
    run(engine, "warm")
    driver = engine.backend.driver
    commit = type(driver).commit

    def interrupt(self: object, writer: sqlite3.Connection) -> None:
        monkeypatch.setattr(type(driver), "commit", commit)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(driver), "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(engine, "interrupted")
    assert run(engine, "next") == ANSWER
    engine.close()


def test_a_locked_file_is_a_bounded_wait(folder: Folder) -> None:
    engine = folder.engine("?busy_seconds=0.3")
    assert run(engine, "before") == ANSWER
    ran: list[Permit] = []
    with lock_file(folder):
        for effects in ("external", "idempotent", "atomic"):
            with pytest.raises(StoreUnavailable, match=r"locked|busy"):
                engine.run(command("beside", effects), lambda permit: ran.append(permit) or ANSWER)  # type: ignore[func-returns-value]
        assert run(engine, "before") == ANSWER
    assert ran == []
    assert run(engine, "beside") == ANSWER
    engine.close()
