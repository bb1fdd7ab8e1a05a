"""The page of kills names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "kills.md"


def test_every_test_that_the_page_names_exists() -> None:
    named, file = 0, ""
    for path, test in re.findall(r"`((?:tests/[\w/]+\.py)?)(?:::(\w+))?`", PAGE.read_text("utf-8")):
        file = path or file
        text = (ROOT / file).read_text("utf-8") if path or test else ""
        assert not test or f"def {test}(" in text, f"{file}::{test}"
        named += bool(test)
    assert named > 35
