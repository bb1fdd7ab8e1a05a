"""A settled ATOMIC key is replayed, also while other replays of it are on their way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from semel import Engine, Policy
from semel.errors import InProgressError
from tests.engine.shells import MADE, command
from tests.outside.stores import STORES
from tests.servers import mariadb

ATOMIC = Policy(effects="atomic")
THREADS, TIMES = 8, 15
NAMES = ["sqlite", "postgresql", pytest.param("mariadb", marks=mariadb.MARK)]


def crowd(ask: Callable[[int], str]) -> Counter[str]:
    """Each of several threads asks so often, all at the same time; what they were answered."""
    told: list[str] = []  # appending is atomic; adding to a Counter reads first, and loses what another adds meanwhile
    line = threading.Barrier(THREADS)

    def asks() -> None:
        for turn in range(TIMES):
            line.wait(30)
            try:
                told.append(ask(turn))
            except InProgressError:
                told.append("still running")

    threads = [threading.Thread(target=asks) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(told)


@pytest.mark.parametrize("name", NAMES)
def test_a_crowd_of_replays_is_replayed(name: str, tmp_path: Path) -> None:
    with closing(Engine.connect(STORES[name](tmp_path).url)) as engine:
        engine.migrate()
        engine.run(command(policy=ATOMIC), lambda permit: MADE)

        def ask(turn: int) -> str:
            result = engine.run(command(policy=ATOMIC), lambda permit: MADE, wait_seconds=0)
            return "replayed" if result.replayed else "run"

        assert crowd(ask) == {"replayed": THREADS * TIMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_crowd_of_joined_replays_is_replayed(name: str, tmp_path: Path) -> None:
    store = STORES[name](tmp_path)
    with closing(Engine.connect(store.url)) as engine:
        engine.migrate()
        engine.run(command(policy=ATOMIC), lambda permit: MADE)

        def ask(turn: int) -> str:
            assert store.connect is not None
            with closing(store.connect()) as connection:
                try:
                    with engine.atomic(connection, command(policy=ATOMIC)) as once:
                        return "replayed" if once.replayed else "run"
                finally:
                    with suppress(Exception):
                        connection.rollback()

        assert crowd(ask) == {"replayed": THREADS * TIMES}
