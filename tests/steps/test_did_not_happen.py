"""What was settled as "did not happen" runs anew: its local steps' rows are still there, its id is the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, Permit
from semel.model import Resolution, Resolved
from tests.engine.drivers import sqlite
from tests.steps.conftest import stepped


def test_what_local_steps_wrote_stays_and_only_derived_keys_are_new(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    rows: list[list[Any]] = []

    def reserve(connection: Any) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS reserved (operation TEXT, name TEXT UNIQUE)")
        connection.execute("INSERT INTO reserved VALUES (?, ?)", seen[-1])
        rows.append(connection.execute("SELECT operation, name FROM reserved ORDER BY rowid").fetchall())

    def charge() -> str:
        if len(seen) == 1:
            raise TimeoutError("no answer")
        return "ch_1"

    def pay(permit: Permit) -> Answer:
        seen.append((permit.operation_id, permit.key_for("reserve")))
        permit.local_step("reserve", reserve)
        return Answer(201, (), permit.step("charge", charge).encode())

    with closing(Engine(sqlite(tmp_path / "semel.db"))) as engine:
        engine.migrate()
        with pytest.raises(TimeoutError):
            engine.run(stepped(), pay)
        id = engine.core.attempt(stepped()).id
        [row] = engine.perform("read", lambda: engine.store.read((id,)))
        assert row is not None
        word = Resolution(row.id, row.fence, happened=False, answer=None, actor="op", reason="asked", forced=True)
        assert isinstance(engine.perform("resolve", lambda: engine.store.resolve(word)), Resolved)
        assert engine.run(stepped(), pay).answer.body == b"ch_1"

    (operation, first), (again, second) = seen
    assert operation == again
    assert first != second
    assert rows == [[(operation, first)], [(operation, first), (operation, second)]]
