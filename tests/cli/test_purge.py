"""`semel purge` forgets every kind of row whose time is over, says how many, and leaves everything else."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine
from semel.cli.main import main
from semel.workers import Reaper
from tests.cli.everything import fill, fresh

TABLES = ("record", "operation", "bulk", "item", "event", "inbox")
ALL_OVER = (
    "UPDATE semel_record SET answer_until = 1, forget_after = 1 WHERE forget_after IS NOT NULL",
    "UPDATE semel_operation SET forget_after = 1 WHERE forget_after IS NOT NULL",
    "UPDATE semel_inbox SET forget_after = 1",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    fill(fresh(f"sqlite:///{tmp_path / 'all.db'}"))
    return tmp_path / "all.db"


def run_purge(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["purge", "--json", "--chunk", "2", "--url", f"sqlite:///{file}", *options]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {name: count for name, count in document.items() if name != "scanned"}


def count_rows(file: Path, change: tuple[str, ...] = ()) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as db:
        for statement in change:
            db.execute(statement)
        db.commit()
        return {name: db.execute(f"SELECT count(*) FROM semel_{name}").fetchone()[0] for name in TABLES}


def test_a_purge_reports_each_kind_and_keeps_rows_without_an_end(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = count_rows(file)
    assert full == {"record": 3, "operation": 1, "bulk": 1, "item": 5, "event": 6, "inbox": 3}
    assert not any(run_purge(file, capsys).values())
    count_rows(file, ALL_OVER)
    assert run_purge(file, capsys, "--keep", "0") == {
        **{"answersDropped": 0, "recordsForgotten": 2, "operationsForgotten": 1, "itemsForgotten": 6},
        **{"messagesForgotten": 2, "eventsForgotten": 1},
    }
    # What is UNKNOWN, parked, or waits to be published has no end.
    assert count_rows(file) == {"record": 1, "operation": 0, "bulk": 0, "item": 0, "event": 5, "inbox": 1}


def test_a_published_event_is_kept_for_a_day(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count_rows(
        file, ("UPDATE semel_event SET published_at = published_at - 86000000000 WHERE published_at IS NOT NULL",)
    )
    assert run_purge(file, capsys)["eventsForgotten"] == 0
    count_rows(file, ("UPDATE semel_event SET published_at = published_at - 500000000 WHERE published_at IS NOT NULL",))
    assert run_purge(file, capsys)["eventsForgotten"] == 1


def test_the_output_names_what_was_purged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count_rows(file, ALL_OVER)
    capsys.readouterr()
    assert main(["purge", "--url", f"sqlite:///{file}"]) == 0
    told = capsys.readouterr().out
    assert told.endswith("0 answers dropped, 2 records forgotten, 1 operations, 6 items, 2 messages\n"), told


def test_the_reaper_deletes_the_same_rows_except_events(file: Path) -> None:
    told: dict[str, float] = {}

    class Hearing:
        def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
            if name == "purged":
                told[labels["kind"]] = value

    count_rows(file, (*ALL_OVER, "UPDATE semel_event SET published_at = 1 WHERE published_at IS NOT NULL"))

    async def reap() -> None:
        async with AsyncEngine.connect(f"sqlite:///{file}", observer=Hearing()) as engine:
            await Reaper(engine).purge(chunk=2)

    asyncio.run(reap())
    assert told == {"answers": 0, "records": 2, "operations": 1, "items": 6, "messages": 2}
    assert count_rows(file) == {"record": 1, "operation": 0, "bulk": 0, "item": 0, "event": 6, "inbox": 1}
