"""Each README is what happens: its commands are run as they stand there, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, links
from tests.examples.readme import run_readme

TOLD: dict[str, dict[str, str]] = {
    "cases": {},
    "orders": {},
    "payments": {"PROVIDER_URL": "http://127.0.0.1:8001"},
}


@pytest.mark.parametrize("name", TOLD)
def test_the_commands_of(name: str, tmp_path: Path) -> None:
    run_readme(name, tmp_path, TOLD[name])


@pytest.mark.parametrize("name", TOLD)
def test_the_links_of(name: str) -> None:
    page = ROOT / "examples" / name / "README.md"
    inside = [link for link in links(page.read_text("utf-8")) if "://" not in link]
    assert inside, "it leads nowhere"
    assert [link for link in inside if not (page.parent / link.partition("#")[0]).exists()] == []


def test_every_example_has_its_readme() -> None:
    assert {path.parent.name for path in (ROOT / "examples").glob("*/README.md")} == set(TOLD)
    assert {path.parent.name for path in (ROOT / "examples").glob("*/__init__.py")} == set(TOLD)
