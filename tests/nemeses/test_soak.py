"""``make soak`` on servers: a short one on each, and what it says of wrong arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nemeses.scripts import ROOT
from verification.soak.__main__ import OK, USAGE
from verification.soak.__main__ import main as soak
from verification.soak.plan import Plan
from verification.soak.summary import Summary, versions

SHORT = [
    "--kills",
    "20",
    "--operations",
    "300",
    "--pauses",
    "1",
    "--simulations",
    "0",
    "--lanes",
    "2",
    "--nemeses",
    "0",
]


@pytest.mark.no_cover
def test_a_short_soak_of_several_stores(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.nemeses.soak", "--stores", "postgresql,redis", "--folder", tmp_path, *SHORT],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == OK, process.stderr
    for store in ("postgresql", "redis"):
        path = tmp_path / store
        url = next(line.split()[2] for line in process.stderr.splitlines() if f" in {path}," in line)
        assert url.startswith(f"{store}://")
        found = Summary.load(path, versions(url))
        assert (found.kills >= 20, found.pauses >= 1, found.operations >= 300) == (True, True, True)
        assert [each.name for each in path.iterdir()] == ["summary.json"]


def test_the_help_option_starts_nothing() -> None:
    command = [sys.executable, "-m", "tests.nemeses.soak", "--help"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (OK, "")
    assert "--stores sqlite,redis" in process.stdout
    assert "--kills KILLS" in process.stdout


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///x.db", "--url is for servers: without it, each round has a SQLite file of its own"),
        ("memory://", "a soak needs a store that several processes share, on a server; memory is none"),
        ("postgresql://localhost/x?schema=mine", "leave schema= out: each round has one of its own"),
        ("postgresql://localhost/x?prepared=no", "leave prepared= out"),
        ("redis://localhost?prefix=mine", "leave prefix= out"),
        ("nothing://x", "unknown store 'nothing'"),
    ],
)
def test_a_soak_refuses_unusable_urls(tmp_path: Path, url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak(["--url", url, "--simulations", "0", "--folder", str(tmp_path)]) == USAGE
    assert said in capsys.readouterr().err


def test_no_password_is_shown_or_kept(tmp_path: Path) -> None:
    url = "postgresql://soak:secret@localhost/x"
    plan = Plan(tmp_path, kills=1, operations=0, pauses=0, simulations=0, hours=None, lanes=1, seed=0, url=url)
    Summary(versions=versions(url)).save(tmp_path)
    assert "secret" not in f"{plan.as_json()} {(tmp_path / 'summary.json').read_text()}"
