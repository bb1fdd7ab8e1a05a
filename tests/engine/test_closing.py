"""``Engine.close()`` waits for live handlers, and renews their leases to the end, in threads as on event loops."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from semel import Answer, Engine, Permit, Policy
from semel.engine.result import Result
from tests.engine.shells import MADE, command
from tests.outside.stores import STORES


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "redis"])
def test_a_handler_and_its_waiters_are_waited_for(name: str, tmp_path: Path) -> None:
    engine = Engine.connect(STORES[name](tmp_path).url)
    engine.migrate()
    given = command(policy=Policy(lease_seconds=1, deadline_seconds=60))
    begun, may_end, told = threading.Event(), threading.Event(), list[Result]()

    def handler(permit: Permit) -> Answer:
        begun.set()
        may_end.wait(30)
        return MADE

    def ask() -> None:
        told.append(engine.run(given, handler, wait_seconds=30))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(1.3)  # longer than a lease
    assert closing.is_alive()
    may_end.set()
    for thread in (*threads, closing):
        thread.join(30)
    assert sorted(result.replayed for result in told) == [False, True, True]
    engine.close()  # what the waiters have opened again


def test_a_handler_that_closes_its_own_engine_does_not_wait_for_itself(tmp_path: Path) -> None:
    engine = Engine.connect(f"sqlite:///{tmp_path / 'semel.db'}")
    engine.migrate()

    def handler(permit: Permit) -> Answer:
        engine.close()
        return MADE

    assert engine.run(command(), handler).answer == MADE
    engine.close()
