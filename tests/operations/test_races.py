"""Several processes with different keys and the same references at the same time: each reference runs once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.core.model import State
from tests.operations.worlds import World

ROUNDS = 8


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg", "asyncmy"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    world.prepare()
    yield world
    world.close()


@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_one_of_several_processes_with_one_reference_runs(stage: World, effects: str) -> None:
    racers = []
    for name in ("a", "b", "c"):
        options = {"name": name, "url": stage.url, "rounds": ROUNDS, "effects": effects, "asynchronous": name != "a"}
        racers.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.operations.racer", json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    told: list[dict[str, Any]] = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        told.append(json.loads(out))
    ran = sorted(number for each in told for number in each["ran"])
    met = [name for each in told for name in each["met"]]
    assert ran == list(range(ROUNDS)), told
    assert met == ["NotReplayableError"] * (2 * ROUNDS)
    assert stage.states() == [(State.SUCCEEDED, True)] * ROUNDS
