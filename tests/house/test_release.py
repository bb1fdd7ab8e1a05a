"""``make release`` builds what a release consists of, and refuses a version that the changelog does not have."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.house.sources import ROOT

PARTS = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "pyproject.toml")


def release(checkout: Path) -> subprocess.CompletedProcess[str]:
    script = checkout / "scripts" / "release"
    return subprocess.run([script, "dist"], cwd=checkout, capture_output=True, text=True, timeout=240, check=False)


def copy_of_the_checkout(folder: Path) -> Path:
    for name in PARTS:
        shutil.copy(ROOT / name, folder / name)
    for name in ("requirements", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("src", "tests", "examples", ".venv"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_a_release_has_both_distributions_a_bill_of_materials_and_checksums(tmp_path: Path) -> None:
    checkout = copy_of_the_checkout(tmp_path)
    done = release(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in (checkout / "dist").iterdir()}
    assert names == {
        "semel-0.1.0-py3-none-any.whl",
        "semel-0.1.0.tar.gz",
        "semel-0.1.0.cdx.json",
        "SHA256SUMS",
    }
    bill = json.loads((checkout / "dist" / "semel-0.1.0.cdx.json").read_text("utf-8"))
    assert bill["metadata"]["component"]["name"] == "semel"
    assert {"fastapi", "uvicorn"} <= {component["name"] for component in bill["components"]}


def test_a_version_without_a_section_in_the_changelog_is_refused(tmp_path: Path) -> None:
    checkout = copy_of_the_checkout(tmp_path)
    (checkout / "CHANGELOG.md").write_text("# Changelog\n")
    done = release(checkout)
    assert (done.returncode, "CHANGELOG.md has no section for 0.1.0" in done.stderr) == (1, True)


def test_locked_versions_are_installed_without_a_search_for_newer_ones() -> None:
    """pip refuses a release that came out after the lock, where a package asks for its project with an extra."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    by_lock = [line for line in lines if "--require-hashes" in line]
    assert len(by_lock) == 5
    assert all("--no-deps" in line for line in by_lock), by_lock
