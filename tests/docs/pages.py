"""The documents as the tests see them: pages, their fenced blocks, their headings and their links."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

DOCSTRINGS = "<!-- from here on written by docs/make_reference.py -->"
RUN = ("python", "console", "sh")
SHOWN = ("html", "http", "js", "json", "mermaid", "sql", "text", "toml")

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; ``line`` is that of its first line of text, ``note`` what follows the language."""

    language: str
    text: str
    line: int
    note: str = ""


def maker(name: str) -> Any:
    """A module that makes part of the generated pages."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(f"guarantee_pages.{name}")
    finally:
        sys.path.remove(str(DOCS))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    return [
        Block(found[1], found[3], text[: found.start(3)].count("\n") + 1, found[2].strip())
        for found in _FENCE.finditer(text)
    ]


def prose(text: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> Iterator[str]:
    """The targets of a page's links."""
    for found in _LINK.finditer(prose(text)):
        yield found[1]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    found = set()
    for heading in _HEADING.finditer(prose(text)):
        plain = re.sub(r"[^\w\- ]", "", heading[1].lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


def documents() -> str:
    """All pages as one text, without the docstrings that the reference repeats."""
    return "\n".join(page.read_text("utf-8").partition(DOCSTRINGS)[0] for page in PAGES)
