"""The SQLite driver's turns: who waits, for how long, on whose thread, and what time it is when they are over."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from semel import Policy
from semel.core.flow import Flow, ask
from semel.core.model import Claim, Proceed, Renewal, Verdict
from semel.errors import StoreUnavailable
from semel.stores.sql.statements import Execute, Script, Statement
from semel.stores.sqlite import driver as sqlite_module
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.job import FlowJob, settle_jobs
from semel.stores.sqlite.store import SqliteStore
from semel.stores.sqlite.transaction import begin_unit, begin_unit_async
from semel.testing.attempts import attempt
from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite

STORE = SqliteStore()
SECOND_US = 1_000_000


def migrate(path: Path, **options: Any) -> SqliteDriver:
    driver = SqliteDriver(str(path), synchronous="OFF", **options)
    driver.run(lambda: STORE.migrate("store", b"none"))
    return driver


def claiming(claim: Claim) -> Flow[list[Verdict]]:
    return STORE.claim((claim,))


# --- what time it is ---


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_lease_begins_when_the_claim_is_written(takes_over: bool, tmp_path: Path) -> None:
    """The claim waited longer for the file than its lease is: it must not be granted a lease that is over."""
    clock = SettableClock()
    waits = [0.0]

    def before(name: str) -> None:
        if name == "BEGIN":
            clock.advance(seconds=waits[0])

    backend = sqlite(tmp_path / "semel.db", clock, before=before)
    run = backend.driver.run
    run(lambda: STORE.migrate("store", b"none"))
    policy = Policy(effects="idempotent", lease_seconds=1, deadline_seconds=10)
    if takes_over:
        run(lambda: claiming(attempt(nonce=1, policy=policy)))
        clock.advance(seconds=2)
    waits[0] = 3.0
    [verdict] = run(lambda: claiming(attempt(nonce=2, policy=policy)))
    assert isinstance(verdict, Proceed)
    assert verdict.grant.lease_until == clock() + SECOND_US
    assert verdict.grant.deadline_at == clock() + 10 * SECOND_US
    grant = verdict.grant
    renewal = Renewal(grant.id, grant.fence, grant.nonce)
    assert run(lambda: STORE.renew((renewal,))) == [True]
    [row] = run(lambda: STORE.read((grant.id,)))
    assert row is not None
    assert row.lease_until == clock() + SECOND_US
    backend.driver.close()


# --- who waits, and for how long ---


def test_a_locked_file_refuses_only_the_flow_that_waited(tmp_path: Path) -> None:
    """Two writes in one group: one has used up its time, the other has only come."""
    path = tmp_path / "semel.db"
    driver = migrate(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    late: FlowJob[list[Verdict]] = FlowJob(lambda: claiming(attempt("late")), time.monotonic())
    early: FlowJob[list[Verdict]] = FlowJob(lambda: claiming(attempt("early")), time.monotonic() + 3600)

    class Told(threading.Event):
        def set(self) -> None:
            other.execute("ROLLBACK")  # the file is free again after the first refusal
            super().set()

    other.close()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    late.event, early.event = Told(), threading.Event()
    driver._queue.extend((late, early))
    assert driver._gate.acquire(timeout=5)
    driver._serve_group(wait=True)
    with pytest.raises(StoreUnavailable, match="locked"):
        late.result()
    assert early.done
    assert isinstance(early.result()[0], Proceed)
    other.close()
    driver.close()


def test_a_failed_group_does_not_make_an_event_loop_wait_for_the_file(tmp_path: Path) -> None:
    """Between the group's rollback and its members' own transactions another process takes the file."""
    path = tmp_path / "semel.db"
    driver = migrate(path)
    other = sqlite3.connect(path, isolation_level=None)
    broken = Statement("broken", "INSERT INTO nowhere VALUES (1)", "INSERT INTO nowhere VALUES (1)", ())
    rollback = driver._rollback

    def and_another_process_comes(writer: sqlite3.Connection) -> None:
        rollback(writer)
        other.execute("BEGIN IMMEDIATE")

    driver._rollback = and_another_process_comes  # type: ignore[method-assign]
    far = time.monotonic() + 3600
    jobs: list[FlowJob[Any]] = [
        FlowJob(lambda: ask(Execute(broken, ())), far),
        FlowJob(lambda: claiming(attempt()), far),
    ]
    driver._queue.extend(jobs)
    assert driver._gate.acquire(timeout=5)
    driver._serve_group(wait=False)  # as the loop does: it comes back at once
    assert list(driver._queue) == jobs
    other.execute("ROLLBACK")
    driver._rollback = rollback  # type: ignore[method-assign]
    for job in jobs:
        job.event = threading.Event()
    driver.submit(driver._queue.pop())
    assert all(job.event is not None and job.event.wait(10) for job in jobs)
    with pytest.raises(StoreUnavailable, match="nowhere"):
        jobs[0].result()
    assert isinstance(jobs[1].result()[0], Proceed)
    other.close()
    driver.close()


def test_a_thread_interrupted_after_its_commit_blocks_no_waiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is committed and its callers get that; it is not repeated."""
    driver = migrate(tmp_path / "semel.db")
    tell, interrupted = settle_jobs, [False]

    def interrupting(jobs: list[FlowJob[Any]]) -> None:
        if jobs and not interrupted[0]:
            interrupted[0] = True
            raise KeyboardInterrupt
        tell(jobs)

    monkeypatch.setattr(sqlite_module, "settle_jobs", interrupting)
    job: FlowJob[list[Verdict]] = FlowJob(lambda: claiming(attempt()), time.monotonic() + 3600)
    job.event = threading.Event()
    driver._queue.append(job)
    commits = driver.commits
    assert driver._gate.acquire(timeout=5)
    with pytest.raises(KeyboardInterrupt):
        driver._serve_group(wait=True)
    assert job.event.is_set()
    assert isinstance(job.result()[0], Proceed)
    assert (driver.commits - commits, len(driver._queue)) == (1, 0)
    driver.close()


# --- ATOMIC units ---


def test_the_commits_of_units_are_checkpointed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that has ATOMIC commands only: its write-ahead log would grow for ever."""
    monkeypatch.setattr(sqlite_module, "COMMITS_PER_CHECKPOINT", 3)
    path = tmp_path / "semel.db"
    first = migrate(path)
    first.run(lambda: STORE.read((bytes(16),)))  # a reader stays open, so that no close checkpoints in its place
    checkpointed = threading.Event()

    class Watched(SqliteDriver):
        def _checkpoint(self) -> None:
            super()._checkpoint()
            checkpointed.set()

    driver = Watched(str(path), synchronous="OFF")
    for number in range(3):
        unit = begin_unit(driver, 5)
        unit.hand_out().execute(f"CREATE TABLE t{number} (x)")
        unit.commit()
    assert checkpointed.wait(10)
    assert driver._uncheckpointed == 0
    other = sqlite3.connect(path)
    _, frames, moved = other.execute("PRAGMA wal_checkpoint(NOOP)").fetchone() or (0, 0, 0)
    assert frames == moved
    other.close()
    driver.close()
    first.close()


def hear_when_told(loop: asyncio.AbstractEventLoop, told: threading.Event) -> None:
    call_soon = loop.call_soon_threadsafe

    def hearing(*args: Any, **options: Any) -> Any:
        handle = call_soon(*args, **options)
        told.set()
        return handle

    loop.call_soon_threadsafe = hearing  # type: ignore[method-assign,assignment]


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # the collector closes it: said from 3.13 on
def test_a_unit_whose_loop_stopped_before_its_start_releases_the_file(tmp_path: Path) -> None:
    """Its caller was cancelled, the loop stopped, the gate was lent, and only then the loop was closed."""
    driver = migrate(tmp_path / "semel.db", busy_seconds=5.0)
    loop = asyncio.new_event_loop()
    assert driver._gate.acquire(timeout=5)
    waiting = loop.create_task(begin_unit_async(driver, 60))
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    lent = threading.Event()
    hear_when_told(loop, lent)
    driver.release_gate()
    assert lent.wait(10)
    del loop.call_soon_threadsafe
    loop.close()  # its reply is dropped
    del waiting, loop
    gc.collect()
    assert isinstance(driver.run(lambda: claiming(attempt()))[0], Proceed)
    driver.close()


# --- flows without any ask ---


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_flow_without_steps_returns(mode: str, tmp_path: Path) -> None:
    driver = migrate(tmp_path / "semel.db")
    if mode == "sync":
        assert driver.run(lambda: STORE.read(())) == []
    else:
        assert asyncio.run(driver.run_async(lambda: STORE.read(()))) == []
    driver.run(lambda: ask(Script(())))
    driver.close()
