"""A purge under a clock that cannot be right forgets nothing, and says so."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Permit
from semel.cli.main import main
from semel.retention.worker import Reaper
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from tests.cli.everything import fill, fresh
from tests.engine.drivers import sqlite
from tests.worker.test_reaper import SECOND_US, Times, command

MONTH_US = 31 * 86_400 * SECOND_US


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_reaper_deletes_nothing_after_a_jump(store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The key's answer is still there once the clock is right again."""

    async def scenario() -> None:
        times = Times()
        made = Backend("memory", MemoryStore(), LocalDriver(clock=times))
        backend = made if store == "memory" else sqlite(tmp_path / "semel.db", times)
        ran: list[int] = []

        async def answer(permit: Permit) -> Answer:
            ran.append(1)
            return Answer(200, (), b"done")

        engine = AsyncEngine(backend)
        await engine.migrate()
        await engine.run(command("key"), answer)
        reaper = Reaper(engine)
        await reaper._read_clock()  # as when it begins to run
        times.now += MONTH_US
        with caplog.at_level(logging.WARNING, "semel"):
            await reaper._purge_meanwhile()
        assert "semel purge --clock-is-right" in caplog.text
        times.now -= MONTH_US
        await reaper._purge_meanwhile()
        assert (await engine.run(command("key"), answer)).replayed
        assert ran == [1]
        await engine.close()

    asyncio.run(scenario())


def test_purge_trusts_the_clock_for_a_day_after_the_newest_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.db"
    url = f"sqlite:///{file}"
    fill(fresh(url))
    with closing(sqlite3.connect(file)) as db, db:
        moved = "created_at = created_at - ?, forget_after = created_at - ?"
        db.execute(f"UPDATE semel_record SET {moved}", (MONTH_US, MONTH_US // 3))
        db.execute("UPDATE semel_record SET forget_after = 1 WHERE id = (SELECT min(id) FROM semel_record)")
        [(known,)] = db.execute("SELECT count(*) FROM semel_record").fetchall()
    capsys.readouterr()
    archive = tmp_path / "archive.jsonl"
    assert main(["purge", "--json", "--url", url, "--archive", str(archive)]) == 0
    said = capsys.readouterr()
    assert "--clock-is-right" in said.err
    assert json.loads(said.out)["recordsForgotten"] == 1
    assert len([line for line in archive.read_text().splitlines() if json.loads(line)["of"] == "records"]) == 1
    assert main(["purge", "--json", "--url", url, "--clock-is-right"]) == 0
    assert json.loads(capsys.readouterr().out)["recordsForgotten"] == known - 1
