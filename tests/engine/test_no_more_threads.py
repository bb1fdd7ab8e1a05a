"""A process that may start no more threads, for a moment: its calls are refused or done, none waits for ever.

The limit of a container counts threads. A thread that did not start was once taken for one that runs: from then on
nobody renewed a lease, or wrote what an event loop had queued.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel import Engine, Permit, Policy
from semel.core.model import Answer
from semel.errors import StoreUnavailable
from semel.stores import shield
from semel.stores.shield import THREAD_NAME, run_shielded
from semel.stores.urls import connect_backend
from tests.engine.shells import MADE, Shell, command
from tests.servers.redis import eventually

_start = threading.Thread.start


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """``with limit("semel-upkeep"):`` no thread of that name begins, as the interpreter says it."""

    @contextmanager
    def limit_threads(name: str) -> Iterator[None]:
        def start(thread: threading.Thread) -> None:
            if thread.name == name:
                raise RuntimeError("can't start new thread")
            _start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            yield

    return limit_threads


def refusal_of(act: Callable[[], object]) -> str:
    """The text of the error that it raises."""
    with pytest.raises(StoreUnavailable) as error:
        act()
    return str(error.value)


def test_a_shielded_call_runs_on_the_calling_thread_if_no_other_can_start(
    limit: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shield, "_threads", shield._Threads())  # none of which is idle
    ended: list[int] = []
    with limit(THREAD_NAME):
        threading.Thread(target=lambda: ended.append(run_shielded(lambda: 1)), daemon=True).start()
        eventually(lambda: ended == [1], 5.0)


def test_the_thread_that_renews_leases_does_no_callers_work(
    limit: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's work may wait for another command's end, for longer than a lease."""
    monkeypatch.setattr(shield, "_threads", shield._Threads())
    done_in: list[int] = []
    shield._threads.calls.put(shield._Call(lambda: done_in.append(threading.get_ident())))
    with limit(THREAD_NAME):
        shield.serve_lost()
        eventually(lambda: len(done_in) == 1, 5.0)
    assert done_in != [threading.get_ident()]


@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_a_command_does_not_run_if_no_renewal_thread_can_start(limit: Callable[[str], Any], effects: Any) -> None:
    runs: list[int] = []

    def handle(permit: Permit) -> Answer:
        runs.append(permit.attempt)
        return MADE

    pay = command(policy=Policy(effects=effects))
    with closing(Engine.connect("memory://")) as engine:
        engine.migrate()
        with limit("semel-upkeep"):
            assert "no more threads" in refusal_of(lambda: engine.run(pay, handle))
        assert (runs, engine.core.live) == ([], {})
        assert engine.run(pay, handle, wait_seconds=10).answer == MADE  # its key was given up, and is free
        assert engine._upkeep._thread is not None
        assert engine._upkeep._thread.is_alive()
    assert len(runs) == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_atomic_command_is_refused_and_runs_later(limit: Callable[[str], Any], tmp_path: Path, mode: Any) -> None:
    pay = command(policy=Policy(effects="atomic"))
    shell = Shell(mode, connect_backend(f"sqlite:///{tmp_path}/semel.db"))
    shell.open()
    shell.engine.backend.driver.close()  # its thread has ended
    with limit("semel-sqlite-writer"):
        assert "no more threads" in refusal_of(lambda: shell.run(pay, lambda permit: MADE))
    assert shell.run(pay, lambda permit: MADE).answer == MADE
    shell.close()


def test_an_event_loop_gets_an_error_if_no_writer_thread_can_start(limit: Callable[[str], Any], tmp_path: Path) -> None:
    shell = Shell("async", connect_backend(f"sqlite:///{tmp_path}/semel.db"))
    shell.open()
    shell.engine.backend.driver.close()
    shell.engine.backend.driver._commit_seconds = 1.0  # commits are slow: they are left to the thread
    with limit("semel-sqlite-writer"):
        assert "no more threads" in refusal_of(lambda: shell.run(command(), lambda permit: MADE))
    assert shell.run(command(), lambda permit: MADE).answer == MADE
    shell.close()
