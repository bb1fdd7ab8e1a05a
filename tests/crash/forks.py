"""Scenarios: an engine that was used, or only made, before ``os.fork``."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from semel import Answer, AsyncEngine, Engine, Permit
from semel.core.outcomes import Succeeded
from semel.errors import StoreUnavailable
from semel.stores.clock import system_clock
from tests.crash.processes import Line, Worker, pause, report
from tests.crash.work import HEADERS, LEASE_SECONDS, Folder, command, id_of

LONGER_THAN_A_LEASE = LEASE_SECONDS * 1.6
READING_FORKS = 30


def saying(text: str) -> Callable[[Permit], Answer]:
    return lambda permit: Answer(200, HEADERS, text.encode())


def run_here(engine: Engine, key: str, effects: str = "external") -> str:
    return engine.run(command(key, effects), saying(key), wait_seconds=10).answer.body.decode()


def claim_one(engine: Engine, key: str, effects: str = "external") -> Permit:
    permit = engine.claim(command(key, effects))
    assert isinstance(permit, Permit), permit
    return permit


def lease_left_us(engine: Engine, key: str) -> int:
    [row] = engine.perform("read", lambda: engine.store.read([id_of(key)]))
    assert row is not None
    return row.lease_until - system_clock()


def closing_parent(folder: Folder) -> dict[str, Any]:
    """The parent closes the file, and with it its write-ahead log, under a child that continues."""
    engine = folder.engine()
    run_here(engine, "before")

    def child(line: Line) -> None:
        run_here(engine, "beside")
        line.say("ready")
        line.hear()
        line.say("told", run_here(engine, "after"))

    worker = Worker(child)
    worker.wait_for("ready")
    engine.close()
    worker.tell()
    told = worker.wait_for("told")
    assert worker.wait() == 0
    return {"told": told, "seen": folder.sql("SELECT count(*) FROM semel_record")[0][0]}


def live_permits(folder: Folder) -> dict[str, Any]:
    """Both sides hold a command longer than a lease, on one engine object; both are renewed and settle."""
    engine = folder.engine()
    mine = claim_one(engine, "parents")

    def child(line: Line) -> None:
        permit = claim_one(engine, "childs")
        pause(LONGER_THAN_A_LEASE)
        line.say("left", str(lease_left_us(engine, "childs")))
        line.say("settled", type(engine.settle(permit, Succeeded(Answer(200, HEADERS, b"child")))).__name__)
        engine.close()

    worker = Worker(child)
    pause(LONGER_THAN_A_LEASE)
    left = lease_left_us(engine, "parents")
    said = {words[0]: words[1] for words in worker.rest()}
    assert worker.wait() == 0
    settled = type(engine.settle(mine, Succeeded(Answer(200, HEADERS, b"parent")))).__name__
    after = run_here(engine, "childs")
    engine.close()
    return {"parent": {"left": left, "settled": settled}, "child": said, "replayed": after}


def live_loop(folder: Folder) -> dict[str, Any]:
    """The same in a running event loop; the child runs a loop of its own."""
    engine = folder.async_engine()

    async def hold(key: str, beside: Callable[[], object]) -> dict[str, Any]:
        permit = await engine.claim(command(key, "external"))
        assert isinstance(permit, Permit), permit
        beside()
        ends = asyncio.get_running_loop().time() + LONGER_THAN_A_LEASE
        woken = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_at(ends, woken.set_result, None)
        await woken
        [row] = await engine.perform("read", lambda: engine.store.read([id_of(key)]))
        assert row is not None
        left = row.lease_until - system_clock()
        reply = await engine.settle(permit, Succeeded(Answer(200, HEADERS, key.encode())))
        return {"left": left, "settled": type(reply).__name__}

    def child(line: Line) -> None:
        async def life() -> None:
            for name, value in (await hold("childs", lambda: None)).items():
                line.say(name, str(value))
            await engine.close()

        asyncio.run(life())

    workers: list[Worker] = []
    mine = asyncio.run(hold("parents", lambda: workers.append(Worker(child))))
    [worker] = workers
    said = {words[0]: words[1] for words in worker.rest()}
    assert worker.wait() == 0
    return {"parent": mine, "child": said, "replayed": asyncio.run(run_again(engine))}


async def run_again(engine: AsyncEngine) -> str:
    async def handler(permit: Permit) -> Answer:
        raise AssertionError("it was done")

    async with engine:
        return (await engine.run(command("childs", "external"), handler)).answer.body.decode()


TRY_TO_WRITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
    print("written")
except sqlite3.OperationalError as error:
    print(error)
"""


def atomic_parent(folder: Folder) -> dict[str, Any]:
    """Forked inside an ATOMIC command: the child may not touch the file, and its end leaves the parent's lock alone."""
    engine = folder.engine()
    permit = claim_one(engine, "atomic", "atomic")
    permit.connection.execute("INSERT INTO business VALUES ('atomic', 'parent')")

    def child(line: Line) -> None:
        for known in (engine, folder.engine()):  # also not by another engine
            try:
                line.say("ran", run_here(known, "childs"))
            except StoreUnavailable as error:
                line.say("refused", str(error).replace(" ", "_"))

    worker = Worker(child)
    said = worker.rest()
    assert worker.wait() == 0
    beside = subprocess.run(
        [sys.executable, "-c", TRY_TO_WRITE, str(folder.database)], capture_output=True, text=True, check=True
    )
    settled = engine.settle(permit, Succeeded(Answer(200, HEADERS, b"parent")))
    engine.close()
    return {"said": said, "beside": beside.stdout.strip(), "settled": type(settled).__name__}


def busy_parent(folder: Folder) -> dict[str, Any]:
    """Forks from a process with busy threads: a child runs, or gets an error that says why not, and nothing hangs."""
    engine = folder.engine()
    stop = threading.Event()
    ran = []

    def traffic(name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            ran.append(run_here(engine, f"{name}-{number}"))

    threads = [threading.Thread(target=traffic, args=(f"thread{place}",)) for place in range(2)]
    for thread in threads:
        thread.start()
    ends = {"ran": 0, "refused": 0, "failed": 0}
    for number in range(20):

        def child(line: Line, key: str = f"child-{number}") -> None:
            try:
                line.say("ran", run_here(engine, key))
            except StoreUnavailable as error:
                line.say("refused" if "after the fork" in str(error) else "failed")
            engine.close()

        worker = Worker(child)
        [said] = worker.rest()
        assert worker.wait() == 0
        worker.close()
        ends[said[0]] += 1
    stop.set()
    for thread in threads:
        thread.join()
    engine.close()
    return {"ends": ends, "ran": len(ran), "stored": folder.sql("SELECT count(*) FROM semel_record")[0][0]}


def reading_parent(folder: Folder) -> dict[str, Any]:
    """Forks out of a process whose threads read: locks in SQLite's memory at the fork are not held in a child.

    The child uses SQLite beside Semel, as its own application may, or a tool that keeps its data so.
    """
    engine = folder.engine()
    run_here(engine, "read")
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            lease_left_us(engine, "read")

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    ends: Counter[str] = Counter()
    try:
        for _ in range(READING_FORKS):

            def child(line: Line) -> None:
                connection = sqlite3.connect(":memory:")
                connection.execute("CREATE TABLE mine (text TEXT)")
                connection.close()
                try:
                    line.say(run_here(engine, "read"))
                except StoreUnavailable:
                    line.say("refused")

            worker = Worker(child)
            try:
                [said] = worker.rest()
            except AssertionError:  # it hangs
                worker.kill()
                raise
            assert worker.wait() == 0
            worker.close()
            ends[said[0]] += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    engine.close()
    return {"ends": ends}


def preload(folder: Folder) -> dict[str, Any]:
    """An engine made before the fork and opened after it, in each of three workers."""
    engine = folder.engine()

    def child(line: Line) -> None:
        with engine:
            line.say("told", run_here(engine, f"of-{os.getpid()}"), run_here(engine, "shared", "idempotent"))

    workers = [Worker(child) for _ in range(3)]
    told = [worker.rest() for worker in workers]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    return {"told": told, "stored": folder.sql("SELECT count(*) FROM semel_record")[0][0]}


def memory(folder: Folder) -> dict[str, Any]:
    """A memory store would be a second truth in the child."""
    engine = Engine.connect("memory://")
    engine.open()
    run_here(engine, "before")

    def child(line: Line) -> None:
        try:
            line.say("ran", run_here(engine, "before"))
        except StoreUnavailable as error:
            line.say("refused", str(error).replace(" ", "_"))

    worker = Worker(child)
    said = worker.rest()
    assert worker.wait() == 0
    return {"said": said, "parent": run_here(engine, "after")}


SCENARIOS = (closing_parent, live_permits, live_loop, atomic_parent, busy_parent, reading_parent, preload, memory)


def main(options: dict[str, Any]) -> None:
    scenario = {act.__name__: act for act in SCENARIOS}[options["scenario"]]
    report(scenario(Folder(options["folder"])))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
