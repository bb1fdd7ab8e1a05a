"""``python -m verification.simulate`` on the command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from semel.core import decide
from semel.core.model import Proceed
from verification.simulate.command import main


def run(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, out), out.getvalue()


@pytest.fixture
def planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(decide.TABLE)
    table[decide.Situation.PROCESSING_LIVE] = decide.Rule(Proceed, "planted")
    monkeypatch.setattr(decide, "TABLE", table)


def test_many_seeds_find_no_violation(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run("--seeds", "60", "--start", "1000")
    assert code == 0
    assert text.startswith("60 schedules in ")
    assert "everything held" in text
    assert "60 of 60 schedules" in capsys.readouterr().err


def test_several_processes_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run("--seeds", "1200", "--jobs", "2", "--json")
    told = json.loads(text)
    assert code == 0
    assert told["schedules"] == 1200
    assert told["broken"] is None
    assert told["coverage"]["never seen × attempt"] > 100
    assert capsys.readouterr().err == ""


def test_one_seed_is_reported() -> None:
    code, text = run("--seed", "7")
    assert code == 0
    assert "asks worker-" in text
    assert text.endswith("everything held\n")
    code, text = run("--seed", "7", "--json")
    assert json.loads(text)["seed"] == 7


def test_handlers_with_steps_find_no_violation() -> None:
    code, text = run("--steps", "--seeds", "20", "--quiet")
    assert code == 0
    assert text.startswith("20 schedules in ")
    code, text = run("--steps", "--seed", "1:7")
    assert code == 0
    assert "write_steps: " in text


def test_coverage_is_printed() -> None:
    code, text = run("--seeds", "50", "--coverage", "--quiet")
    assert code == 0
    assert "attempt, other payload" in text
    assert "never see" in text


def test_a_violation_is_the_exit_code_the_report_and_the_recording(planted_bug: None, tmp_path: Path) -> None:
    path = tmp_path / "seeds.json"
    code, text = run("--seeds", "500", "--quiet", "--record", str(path))
    assert code == 1
    assert "breaks I3 fenced" in text
    assert "what happened, in simulated seconds" in text
    seed = json.loads(path.read_text())["seeds"][0]["seed"]
    assert run("--recorded", str(path), "--quiet")[0] == 1
    code, text = run("--seed", str(seed))
    assert code == 1
    assert "BROKEN I3 fenced" in text
    code, text = run("--seeds", "500", "--json")
    assert code == 1
    assert json.loads(text)["broken"]["seed"] == seed
    assert json.loads(text)["schedules"] == seed + 1


def test_a_recording_that_now_passes_is_not_a_violation(tmp_path: Path) -> None:
    path = tmp_path / "seeds.json"
    path.write_text('{"format": 1, "seeds": [{"seed": 3, "found": "long ago"}]}')
    assert run("--recorded", str(path), "--quiet")[0] == 0


def test_mistakes_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"format": 0, "seeds": []}')
    assert run("--recorded", str(path))[0] == 2
    assert "error: " in capsys.readouterr().err
    both = ["--seed", "1", "--seeds", "2"]
    old = ["--seed", "0:7"]
    for wrong in (["--seeds", "0"], ["--seeds", "many"], ["--jobs", "-1"], both, old, ["--start", "-1"]):
        with pytest.raises(SystemExit) as ended:
            run(*wrong)
        assert ended.value.code == 2
        assert "error: argument" in capsys.readouterr().err


def test_simulate_runs_as_a_module() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "verification.simulate", "--help"], capture_output=True, text=True, check=True
    )
    assert "--seeds 1000000 --start 5000000 --jobs 2" in told.stdout
    ended = subprocess.run(
        [sys.executable, "-m", "verification.simulate", "--seeds", "20", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0
    assert ended.stderr == ""
