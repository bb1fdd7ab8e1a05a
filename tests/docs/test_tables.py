"""The tables on the pages that say what the rules decide."""

from __future__ import annotations

from pathlib import Path

from semel.core.decide import LAPSED, TABLE, DeclaredTerms

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_on_upgrading_has_the_table_of_lapses() -> None:
    page = (DOCS / "upgrading.md").read_text("utf-8")
    for was, line in LAPSED.items():
        verdicts = " | ".join(f"`{TABLE[line[now]].verdict.__name__}`" for now in DeclaredTerms)
        assert f"\n| {was.value} | {verdicts} |\n" in page
