"""A server that is missing is never passed over in silence: its tests are named, or they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.servers.needed import PROGRAMS

CONFTEST = """
import tests.servers.needed as needed
needed.PROGRAMS = {**needed.PROGRAMS, "oracle": ("no-such-program",), "shell": ("sh",)}
def pytest_configure(config):
    config.pluginmanager.register(needed.LeftOut())
"""
TESTS = """
import pytest
from tests.servers.needed import needs, program
@needs("oracle")
def test_of_a_missing_one():
    program("oracle")
@needs("shell")
def test_of_one_that_is_here():
    assert program("shell").name == "sh"
@pytest.mark.parametrize("store", ["memory", pytest.param("oracle", marks=needs("oracle"))])
def test_of_each(store):
    assert store == "memory" or program(store)
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", "-c", os.devnull, *arguments]
    bare = {name: value for name, value in os.environ.items() if name not in ("CI", "SEMEL_ALL_SERVERS")}
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**bare, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_missing_server_is_named_at_the_end(workers: str, tmp_path: Path) -> None:
    done = run(tmp_path, "-n", workers)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "oracle: 2 of test_it.py" in done.stdout
    assert "scripts/install-servers" in done.stdout
    assert "shell:" not in done.stdout


@pytest.mark.parametrize("variable", ["CI", "SEMEL_ALL_SERVERS"])
def test_a_missing_server_fails_if_all_are_required(variable: str, tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "0", **{variable: "1"})
    assert done.returncode == 1
    assert "2 failed, 2 passed" in done.stdout
    assert "no-such-program was not found. Install what is missing with: sudo scripts/install-servers" in done.stdout


def test_the_script_installs_what_the_tests_may_need() -> None:
    script = (ROOT / "scripts" / "install-servers").read_text("utf-8")
    for server, (program, *_) in PROGRAMS.items():
        assert program.rpartition("/")[2] in script, server
