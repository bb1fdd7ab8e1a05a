"""The time limits of Celery's and Dramatiq's own workers, in handlers and inside Semel. 10 s."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import TimeLimit, TimeLimitExceeded

from semel import Answer, Engine, Permit, Policy
from tests.engine.shells import MADE, command
from tests.outside.stores import execute, on_sqlite
from tests.servers import redis as redis_server
from tests.servers.running import stop

SLOW = 9  # more than there are connections for units
ATOMIC = Policy(effects="atomic")


def test_celerys_soft_limit_leaves_nothing_behind(tmp_path: Path) -> None:
    store = on_sqlite(tmp_path)
    store.make_table()
    with closing(Engine.connect(store.url)) as engine:
        engine.migrate()
    server = redis_server.start(tmp_path / "redis")
    try:
        told = _run_worker(f"redis://127.0.0.1:{server.port}/0", tmp_path)
    finally:
        stop(server)
    slow = [f"k-{n} limited" for n in range(SLOW)]
    assert told == [*slow, *(f"k-{n} made" for n in range(SLOW)), "k-0 replayed"]
    assert store.rows() == [f"k-{n}" for n in range(SLOW)]


def _run_worker(broker: str, folder: Path) -> list[str]:
    """Each key twice: with a handler that meets the limit, and as its retry; and one again."""
    asked = [(f"k-{n}", slow) for slow in (True, False) for n in range(SLOW)]
    with Celery(broker=broker) as sender:
        for key, slow in (*asked, ("k-0", False)):
            sender.send_task("tests.outside.celery_app.pay", [key, slow], queue="semel-outside")
    known = {"SEMEL_TEST_BROKER": broker, "SEMEL_TEST_DATABASE": str(folder / "semel.db")}
    command = [sys.executable, "-m", "celery", "--app", "tests.outside.celery_app", "worker"]
    options = ["--pool", "prefork", "--concurrency", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    told, log = folder / "told", folder / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen([*command, *options], env={**os.environ, **known}, stdout=output, stderr=output)
    try:
        ends = time.monotonic() + 90
        while not (told.exists() and len(told.read_text().splitlines()) >= 2 * SLOW + 1):
            assert worker.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < ends, (told.read_text() if told.exists() else "", log.read_text()[-3000:])
            select.select([], [], [], 0.02)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait(30)
    return told.read_text().splitlines()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    store = on_sqlite(tmp_path)
    store.make_table()
    with closing(Engine.connect(store.url)) as made:
        made.migrate()
        yield made


def _work(engine: Engine, *keys: str, begun: threading.Event) -> list[str]:
    """Dramatiq's own worker and limit; a key that ends with "slow" has a handler that meets the limit."""
    broker: Any = StubBroker(middleware=[TimeLimit(interval=20)])
    told: list[str] = []

    def handler(permit: Permit) -> Answer:
        execute(permit.connection, f"INSERT INTO effect VALUES ('{permit.command.key}')")
        while permit.command.key.endswith("slow"):
            threading.Event().wait(0.01)  # an exception from outside comes between two instructions
        return MADE

    @dramatiq.actor(broker=broker, time_limit=200)
    def pay(key: str) -> None:
        begun.set()
        try:
            told.append(f"{key} {'replayed' if engine.run(command(key, policy=ATOMIC), handler).replayed else 'made'}")
        except TimeLimitExceeded:
            told.append(f"{key} limited")

    for key in keys:
        broker.enqueue(pay.message(key))
    broker.emit_after("process_boot")  # as its command line does: the limit's clock
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=10)
    worker.start()
    broker.join(pay.queue_name, timeout=60_000)
    worker.join()
    worker.stop()
    broker.close()
    return told


def test_dramatiqs_limit_in_a_handler_leaves_nothing_behind(engine: Engine, tmp_path: Path) -> None:
    keys = [f"{n}-slow" for n in range(SLOW)]
    told = _work(engine, *keys, "quick", "quick", begun=threading.Event())
    assert told == [*(f"{key} limited" for key in keys), "quick made", "quick replayed"]
    with closing(sqlite3.connect(tmp_path / "semel.db", timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")  # no lock is held
        assert execute(other, "SELECT name FROM effect") == [("quick",)]


def test_dramatiqs_limit_inside_semel_leaves_nothing_behind(engine: Engine, tmp_path: Path) -> None:
    """The command waits for the file's lock when its limit comes: the limit is raised once that wait is over."""
    begun = threading.Event()
    with closing(sqlite3.connect(tmp_path / "semel.db", check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        def release() -> None:
            begun.wait(30)
            threading.Event().wait(1)  # longer than the limit
            other.rollback()

        releasing = threading.Thread(target=release)
        releasing.start()
        told = _work(engine, "waits", "waits", begun=begun)
        releasing.join()
    assert told == ["waits limited", "waits made"]
    assert not engine.core.live
    assert not engine.core.running
