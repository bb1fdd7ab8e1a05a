"""The in-process measurement of a request: its table, its counts, and that it notices a wrong answer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench import bare, hotpath
from bench.payments import payment_handlers
from bench.setup import Setup
from bench.subjects import Mode

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hotpath, "BATCH", hotpath.CONNECTIONS)


def test_the_table_names_what_each_costs_beyond_the_bare_application(capsys: Capture) -> None:
    hotpath.main(["--rounds", "1", "--profile", Mode.REPLAY.value])
    said = capsys.readouterr().out
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == ["| bare", "| fresh", "| replay"]
    assert rows[0][3:] == ["0.0", "1.00 |"]
    assert "middleware.py" in said


def test_the_counts_are_the_same_each_time_and_a_replay_skips_the_application(capsys: Capture) -> None:
    tables = []
    for _ in range(2):
        hotpath.main(["--count"])
        lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
        tables.append({part: [int(number.replace(",", "")) for number in numbers] for part, *numbers in lines})
    one, again = tables
    specialises = 0.01 if sys.version_info >= (3, 12) else 0  # from 3.12 on, few bytecodes depend on earlier runs
    assert one["semel.http"] == pytest.approx(again["semel.http"], rel=specialises)
    assert one["semel.http"][0] == one["starlette"][2] == 0
    assert max(one["all"][0], one["all"][2]) < one["all"][1]


def test_an_atomic_command_is_counted_by_its_form(capsys: Capture, tmp_path: Path) -> None:
    hotpath.main(["--count", "--form", "atomic", "--url", f"sqlite:///{tmp_path / 'semel.db'}"])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head == "| bytecodes per request | bare | fresh | replay |"
    counted = {part: numbers for part, *numbers in (line.strip("| ").split(" | ") for line in lines)}
    assert counted["semel.operations"][0] == "0" != counted["semel.operations"][1]


def test_a_wrong_number_of_replays_is_not_measured() -> None:
    async def measure() -> None:
        plain = hotpath.serve(bare.build(Setup(module="bench.bare"), payment_handlers()))
        await plain.cpu_us(hotpath.keys(1, iter(range(3))), replays=3)

    with pytest.raises(RuntimeError, match="3 answers, 0 replays; not 3, 3"):
        asyncio.run(measure())
