"""The wheel: what is in it, how large it is, and that it works in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.house.sources import ROOT, SRC, files

KIB_MAX = 1_600  # the wheel as it is downloaded: some 1,500 today
SECONDS_MAX = 240


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built by its own backend."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
    [found] = folder.glob("*.whl")
    return found


def run(command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=dict(env or clean()), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clean() -> dict[str, str]:
    """This environment without what would reach this checkout or another store."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SEMEL", "COV"))}


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {str(path.relative_to(SRC)) for path in files(SRC)}
    assert {name.split("/")[0] for name in names} == {"semel"}
    assert wheel.stat().st_size < KIB_MAX * 1024


def test_it_runs_the_function_example_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    python = environment(wheel, tmp_path)
    [example] = [block for block in blocks((ROOT / "README.md").read_text("utf-8")) if "@command(" in block.text]
    (tmp_path / "example.py").write_text(example.text, "utf-8")
    expected = re.findall(r"^# > (.*)$", example.text, re.MULTILINE)
    assert expected
    assert run([str(python), "example.py"], cwd=tmp_path).splitlines() == expected
    assert "usage: semel" in run([str(python.with_name("semel")), "--help"], cwd=tmp_path)


def test_without_the_service_extra_the_demo_names_its_requirements(wheel: Path, tmp_path: Path) -> None:
    python = environment(wheel, tmp_path, libraries=True)
    home = run([str(python), "-c", "import semel; print(semel.__file__)"], cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path)
    told = json.loads(run([str(python.with_name("semel")), "demo", "--json"], cwd=tmp_path))
    assert told["held"] is True
    assert told["seconds"] < 60
    assert len(told["steps"]) >= 8
    assert all(kept["held"] for step in told["steps"] for kept in step["expectations"])
    assert sum(len(step["expectations"]) for step in told["steps"]) >= 20


def environment(wheel: Path, folder: Path, *, libraries: bool = False) -> Path:
    """A new environment with the wheel alone, or beside the libraries of this one (but not its checkout)."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], cwd=folder)
    python = folder / "venv" / "bin" / "python"
    into = ["--python", str(python), "--disable-pip-version-check"]  # a pip of its own would take longer than the test
    run([sys.executable, "-m", "pip", *into, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], cwd=folder)
    if libraries:
        [home] = (folder / "venv" / "lib").glob("python*/site-packages")
        # A folder named in a .pth file is searched, but its own .pth files are not read: the checkout stays unseen.
        (home / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    return python
