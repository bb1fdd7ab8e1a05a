"""Shared output of commands, findings and pages: the values of their documents, and tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.telemetry import safe

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: left-aligned columns, as wide as their content.

    >>> table_lines(("A", "B"), [("one", "two")])
    ['A    B', 'one  two']
    """
    cells = [[safe(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
