"""Writes the table of checks into docs/conformance.md: ``python -m tests.conform.page``."""

from __future__ import annotations

from pathlib import Path

from semel.conform import load_catalogue
from semel.conform.catalogue import PROFILES

PAGE = Path(__file__).resolve().parents[2] / "docs/conformance.md"
MARK = "<!-- checks: python -m tests.conform.page -->\n"


def table() -> str:
    """The catalogue as a table."""
    lines = ["| check | level | what holds | clause | needs | profiles |", "| --- | --- | --- | --- | --- | --- |"]
    for check in load_catalogue():
        profiles = "all" if set(check.profiles) == set(PROFILES) else ", ".join(check.profiles)
        needs = ", ".join(check.needs)
        lines.append(f"| `{check.id}` | {check.level} | {check.title} | {check.clause} | {needs} | {profiles} |")
    return "\n" + "\n".join(lines) + "\n"


def page() -> str:
    """The page with the table as it should be."""
    before, mark, _ = PAGE.read_text("utf-8").partition(MARK)
    assert mark, f"{PAGE} has no line {MARK!r}"
    return before + mark + table()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
