"""The soak, short and real: it kills, judges, continues where it was, and keeps the evidence of a broken promise."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verification.history.__main__ import BROKEN as HISTORY_BROKEN
from verification.history.__main__ import main as history
from verification.soak import simulation
from verification.soak.__main__ import BROKEN, INTERRUPTED, OK, TIME_UP, USAGE, main
from verification.soak.plan import Plan
from verification.soak.summary import SoakError, Summary
from verification.soak.worker import pause

SHORT = ["--kills", "20", "--operations", "500", "--pauses", "1", "--simulations", "0", "--lanes", "2"]

# A store that now and then says "settled" and has written nothing.
FORGETFUL = """
import sys, random
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.core.model import Settled
from verification.soak.__main__ import main

def forgets(permit):
    return permit.unit is None and random.random() < 0.2

sync, aio = Engine.settle, AsyncEngine.settle

def settle(self, permit, outcome):
    return Settled() if forgets(permit) else sync(self, permit, outcome)

async def settle_async(self, permit, outcome):
    return Settled() if forgets(permit) else await aio(self, permit, outcome)

Engine.settle, AsyncEngine.settle = settle, settle_async
sys.exit(main(sys.argv[1:]))
"""


def start(folder: Path, *arguments: str, code: str | None = None, measured: bool = False) -> subprocess.Popen[str]:
    """A soak in its own process: pytest's has threads, and must not fork. One is enough for the coverage tool."""
    what = ["-m", "verification.soak"] if code is None else ["-c", code]
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.Popen(
        [sys.executable, *what, *arguments, "--folder", str(folder)],
        env=None if measured else unmeasured,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """Wait for the end and return the output; leave no process of it behind."""
    try:
        said = process.communicate(timeout=seconds)[1]
    finally:
        left = [pid for pid in session(process.pid) if pid != process.pid]
        for pid in (process.pid, *left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    assert left == []
    return said


def session(id: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, belongs_to = stat.read_text().rpartition(")")[2].split()[:4]
            if int(belongs_to) == id and state != "Z":
                found.append(int(stat.parent.name))
    return found


def test_a_short_soak_reaches_its_goals_and_resumes(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, measured=True)
    said = finish(process)
    assert process.returncode == OK, said
    found = Summary.load(tmp_path)
    assert found.kills >= 20
    assert found.pauses >= 1
    assert found.operations >= 500
    assert found.kills <= found.kills_all
    assert found.effects > 0
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]  # nothing grows
    assert f"{found.kills:,} effective kills" in said

    again = start(tmp_path, *SHORT)
    said = finish(again)
    assert again.returncode == OK, said
    assert Summary.load(tmp_path).rounds == found.rounds


def test_a_broken_promise_ends_the_soak_and_leaves_the_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(tmp_path, *SHORT, "--kills", "1000", code=FORGETFUL)
    said = finish(process)
    assert process.returncode == BROKEN, said
    evidence = Path(json.loads((tmp_path / "summary.json").read_text())["evidence"])
    assert f"VIOLATION: the evidence is in {evidence}" in said
    kept = json.loads((evidence / "evidence.json").read_text())
    assert kept["found"]["violations"]
    assert kept["versions"]["sqlite"]
    assert kept["plan"]["kills"] == 1000
    assert (evidence / "semel.db").exists()

    assert history(["check", str(evidence)]) == HISTORY_BROKEN
    assert "no order explains it" in capsys.readouterr().out
    with pytest.raises(SoakError, match="found a violation"):
        Summary.load(tmp_path)


def test_an_interrupted_soak_leaves_no_process_behind(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, "--kills", "100000")
    while not list(tmp_path.glob("round-*/*.history.jsonl")):
        assert process.poll() is None
        pause(0.02)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert process.returncode == INTERRUPTED, said
    assert f"go on with --folder {tmp_path}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    assert Summary.load(tmp_path).status == "running"


def test_a_soak_ends_when_its_time_is_up(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, "--kills", "100000", "--hours", "0.00001")
    said = finish(process)
    assert process.returncode == TIME_UP, said
    assert "nothing broken" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kills", "-1"], "it must be a whole number from 0; it is '-1'"),
        (["--lanes", "0"], "it must be a whole number from 1 to 64"),
        (["--hours", "nan"], "it must be a number of hours above 0"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == USAGE
    assert said in capsys.readouterr().err


def test_a_summary_of_other_software_is_not_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Summary(versions={"semel": "0.0"}).save(tmp_path)
    assert main(["--folder", str(tmp_path), "--simulations", "0"]) == USAGE
    assert "figures of different software are not added up: name another --folder" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{")
    assert main(["--folder", str(tmp_path), "--simulations", "0"]) == USAGE
    assert "is damaged or of another version" in capsys.readouterr().err


NO_ROUNDS = ["--kills", "0", "--operations", "0", "--pauses", "0", "--lanes", "1"]


def test_schedules_are_simulated_and_counted(tmp_path: Path) -> None:
    assert main([*NO_ROUNDS, "--simulations", "40", "--folder", str(tmp_path)]) == OK
    assert Summary.load(tmp_path).simulations == 40
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert main([*NO_ROUNDS, "--simulations", "60", "--folder", str(tmp_path)]) == OK
    assert Summary.load(tmp_path).simulations == 60


def test_a_failing_simulation_ends_the_soak_and_leaves_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "MODULE", "verification.history")  # it has no such options, and says so
    assert main([*NO_ROUNDS, "--simulations", "40", "--folder", str(tmp_path)]) == BROKEN
    assert f"the evidence is in {tmp_path}/simulation-0.log" in capsys.readouterr().err
    assert "usage: " in (tmp_path / "simulation-0.log").read_text()
    assert json.loads((tmp_path / "summary.json").read_text())["simulations"] == 0


def test_a_simulator_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "there", lambda: False)
    assert main(["--folder", str(tmp_path)]) == USAGE
    assert "use --simulations 0" in capsys.readouterr().err


def test_progress_shows_the_remaining_time(tmp_path: Path) -> None:
    plan = Plan(tmp_path, kills=100, operations=0, pauses=0, simulations=1000, hours=None, lanes=2, seed=0)
    before, now = Summary(kills=20), Summary(kills=60, simulations=100)
    assert plan.left_seconds(now, before, 60) == 540
    assert plan.line(now, before, 60).endswith("0 rounds, 1.0 min, 9 min to go")
    assert plan.line(before, before, 60).endswith("unknown to go")
