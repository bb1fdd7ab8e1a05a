"""docs/stores.md names the schemes, the options and the extras that there are: no more, and no fewer."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from semel.stores.urls import GROUP, OPTIONS
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "stores.md").read_text("utf-8")


def lines() -> Iterator[list[str]]:
    """The cells of the table of URLs."""
    table = PAGE.split("## URLs", 1)[1].split("\n\n", 2)[1]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_has_every_scheme_with_its_options() -> None:
    said = {scheme: tuple(sorted(names(options))) for schemes, _, _, options in lines() for scheme in names(schemes)}
    assert said == {scheme: tuple(sorted(options)) for scheme, options in OPTIONS.items()}


def test_every_extra_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    said = {extra for _, _, cell, _ in lines() for extra in names(cell)}
    assert said == {"asyncpg", "mariadb", "postgresql", "redis"}
    assert said <= extras.keys()
    assert f'[project.entry-points."{GROUP}"]' in PAGE
