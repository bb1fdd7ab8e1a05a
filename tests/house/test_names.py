"""Functions are verbs, or nouns of what they return; those that are still participles become fewer, never more."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import ROOT

HOUSE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "house.py"))


@pytest.mark.parametrize(
    ("paths", "limit"),
    [
        (sorted(HOUSE["PACKAGE"].rglob("*.py")), HOUSE["PARTICIPLES_MOST"]),
        (HOUSE["outside_modules"](), HOUSE["PARTICIPLES_OUTSIDE_MOST"]),
    ],
    ids=["wheel", "outside"],
)
def test_participle_names_do_not_exceed_the_limit(paths: list[Path], limit: int) -> None:
    found = [
        f"{path.relative_to(ROOT)} {name}"
        for path in paths
        for name in HOUSE["participle_names"](path.read_text("utf-8"))
    ]
    assert len(found) == limit, "\n".join(found)  # fewer: lower the number in scripts/house.py


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def told(): ...", ["told"]),
        ("def _asked(): ...", ["_asked"]),
        ("def given_again(): ...", ["given_again"]),
        ("def tell(): ...", []),
        ("def stored_answer(): ...", []),
        ("class A:\n    @property\n    def settled(self): ...", []),
        ("class A:\n    @strawberry.field\n    def doubled(self): ...", []),
        ("def find_parked(): ...", []),
    ],
)
def test_a_participle_is_recognised(text: str, names: list[str]) -> None:
    assert list(HOUSE["participle_names"](text)) == names
