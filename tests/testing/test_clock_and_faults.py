"""The kit itself: a clock that moves only when advanced, and faults that strike only at their place."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from semel.core.flow import Flow
from semel.core.model import Proceed, State
from semel.engine.renewal import THREAD_NAME
from semel.engine.sync_engine import Engine
from semel.errors import StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.shield import begin_own_thread
from semel.testing.attempts import attempt
from semel.testing.clock import START_US, SettableClock
from semel.testing.faults import (
    FAULTS_MAX,
    KINDS,
    Crash,
    Fault,
    Faults,
    FaultyBackend,
    Kind,
    When,
    every_fault,
    faulty_memory,
    faulty_sqlite,
)
from semel.testing.interleave import Act, MemoryWorld, interleavings


def test_a_settable_clock_moves_only_when_advanced() -> None:
    clock = SettableClock()
    assert clock() == clock() == START_US
    assert clock.advance(5) == START_US + 5
    assert clock.advance(seconds=1.5) == START_US + 1_500_005
    clock.set(3)
    assert clock() == 3


def backends(path: Path, faults: Faults) -> list[FaultyBackend]:
    clock = SettableClock()
    return [faulty_memory(clock, faults), faulty_sqlite(str(path / "semel.db"), clock, faults)]


def claim(backend: Backend) -> Proceed:
    [verdict] = backend.driver.run(partial(backend.store.claim, (attempt(),)))
    assert isinstance(verdict, Proceed)
    return verdict


def migrate(backend: FaultyBackend) -> FaultyBackend:
    backend.faults.rest()
    backend.backend.driver.run(partial(backend.backend.store.migrate, "faults", b"none"))
    backend.faults.resume()
    return backend


def test_a_fault_driver_without_a_fault_only_counts(tmp_path: Path) -> None:
    for place in range(2):
        faults = Faults()
        faulty = migrate(backends(tmp_path, faults)[place])
        claim(faulty.backend)
        assert faults.clean
        assert faults.asks == (["claim"], ["now", "read_record", "BEGIN", "now", "insert_claim", "COMMIT"])[place]
        faulty.bury()


@pytest.mark.parametrize(
    ("kind", "when", "error", "landed"),
    [
        (Kind.FAIL, When.BEFORE, StoreUnavailable, False),
        (Kind.TIMEOUT, When.BEFORE, StoreTimeout, False),
        (Kind.TIMEOUT, When.AFTER, StoreTimeout, True),
        (Kind.CRASH, When.BEFORE, Crash, False),
        (Kind.CRASH, When.AFTER, Crash, True),
    ],
)
def test_a_fault_strikes_at_the_write(
    kind: Kind, when: When, error: type[BaseException], landed: bool, tmp_path: Path
) -> None:
    """At the commit, on each store: the reported result, and the stored one."""
    for place, n in enumerate((1, 6)):
        faults = Faults(Fault(kind, when, n))
        folder = tmp_path / str(place)
        folder.mkdir()
        faulty = migrate(backends(folder, faults)[place])
        with pytest.raises(error):
            claim(faulty.backend)
        if kind is Kind.CRASH:
            with pytest.raises(Crash):  # the dead stay dead
                claim(faulty.backend)
            with pytest.raises(Crash):
                asyncio.run(faulty.backend.driver.run_async(faulty.backend.store.counts))
        faults.rest()
        faults.dead = False
        counts = faulty.backend.driver.run(faulty.backend.store.counts)
        assert counts == ({int(State.PROCESSING): 1} if landed else {})
        faulty.bury()


def test_a_fault_strikes_once_or_from_then_on(tmp_path: Path) -> None:
    for once in (True, False):
        faults = Faults(Fault(Kind.FAIL, When.BEFORE, 1, once))
        faulty = backends(tmp_path, faults)[0]
        with pytest.raises(StoreUnavailable):
            claim(faulty.backend)
        if once:
            claim(faulty.backend)
        else:
            with pytest.raises(StoreUnavailable):
                claim(faulty.backend)


def test_a_fault_inside_a_transaction_leaves_nothing(tmp_path: Path) -> None:
    """Every ask before the commit, each kind: everything is rolled back."""
    for kind, when, once in KINDS:
        for fault in every_fault(kind, when, once=once):
            faults = Faults(fault)
            folder = tmp_path / str(fault)
            folder.mkdir()
            faulty = migrate(backends(folder, faults)[1])
            told = "granted"
            try:
                claim(faulty.backend)
            except (StoreUnavailable, StoreTimeout, Crash) as error:
                told = type(error).__name__
            faulty.bury()
            again = migrate_file(folder)
            counts = again.backend.driver.run(again.backend.store.counts)
            again.bury()
            landed = faults.clean or (fault.n == 6 and when is When.AFTER)
            assert counts == ({int(State.PROCESSING): 1} if landed else {}), (fault, told)
            if faults.clean:
                assert (fault.n, told) == (7, "granted")
                break


def migrate_file(folder: Path) -> FaultyBackend:
    faults = Faults()
    return faulty_sqlite(str(folder / "semel.db"), SettableClock(), faults)


def test_the_upkeep_of_a_dead_process_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread without a waiter gets no exception: it would end with a traceback in a later test."""
    loud: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: loud.append(raised.exc_type))
    path = str(tmp_path / "semel.db")
    faults = Faults(Fault(Kind.CRASH, When.BEFORE, 1))
    faults.rest()
    faulty = faulty_sqlite(path, SettableClock(), faults)
    engine = Engine(faulty.backend)
    engine.migrate()
    faults.resume()
    with pytest.raises(Crash):
        engine.perform("counts", lambda: engine.store.counts())
    engine._upkeep.abandon(attempt())  # its thread begins, and would release this

    def release() -> None:
        begin_own_thread()  # as the engine's own
        engine._upkeep._release()

    working = threading.Thread(target=release, name=THREAD_NAME)
    working.start()
    assert working.is_alive()
    faulty.bury(engine)
    working.join()
    assert loud == []


def test_a_loop_over_every_fault_ends() -> None:
    with pytest.raises(AssertionError, match="still not clean"):
        assert len(list(every_fault(Kind.FAIL, When.BEFORE))) == FAULTS_MAX


def test_a_fault_describes_itself() -> None:
    assert str(Fault(Kind.CRASH, When.AFTER, 3)) == "crash after ask 3"
    assert str(Fault(Kind.TIMEOUT, When.BEFORE, 2, False)) == "time out before ask 2 and from then on"


def test_a_failing_interleaving_is_readable() -> None:
    """The schedule names who moved when, in order; a program of one step each, in all six orders."""
    moved: list[str] = []
    programs = [lambda world, name=name: one(moved, name) for name in "abc"]
    schedules = [run.schedule for run in interleavings(MemoryWorld, programs)]
    assert schedules == [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    assert "".join(moved) == "abcacbbacbcacabcba"


def one(moved: list[str], name: str) -> Flow[None]:
    yield Act(lambda: moved.append(name))
