"""A command's output: text for people, one JSON document for machines, and no control characters.

Stored text comes from clients. The output spells out every control character, escape sequence and invisible or
direction-changing character, so that a name can neither move the cursor nor hide its text.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import StringIO, TextIOWrapper
from typing import Any, Final, TextIO

from semel.admin.words import Json, table_lines
from semel.telemetry import safe

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Output:
    """A command's output. In JSON mode stdout gets exactly one document, even if the command fails.

    `serve`, `watch` and `export` are the exceptions: they print one document a line. ``reword`` rewrites commands
    in a text as users type them in this environment.
    """

    def __init__(
        self,
        *,
        machine: bool,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        reword: Callable[[str], str] | None = None,
    ) -> None:
        self.machine = machine
        self._reword = reword or (lambda text: text)
        # A process may be started with a closed stream (`semel list >&-`): then there is no output.
        self._stdout = stdout or sys.stdout or StringIO()
        self._stderr = stderr or sys.stderr or StringIO()
        if isinstance(self._stdout, TextIOWrapper):
            # A terminal that cannot show a character gets its escape, instead of a traceback.
            self._stdout.reconfigure(errors="backslashreplace")
        self._coloured = not machine and self._stdout.isatty() and not os.environ.get("NO_COLOR")

    def say(self, *lines: str) -> None:
        """Print lines for people, each made safe; silent in JSON mode."""
        if not self.machine:
            for line in lines:
                print(safe(self._reword(line)), file=self._stdout, flush=True)

    def say_styled(self, style: str, line: str) -> None:
        """Print as ``say`` does, in colour where the terminal supports it."""
        if not self.machine:
            shown = safe(self._reword(line))
            text = f"\x1b[{_STYLES[style]}m{shown}\x1b[0m" if self._coloured else shown
            print(text, file=self._stdout, flush=True)

    def say_hanging(self, head: str, text: str, style: str | None = None) -> None:
        """Print ``head`` and ``text`` on one line; a terminal wraps the text to its width, with its lines aligned."""
        text = self._reword(text)
        if (layout := self._layout()) is not None and len(head) <= layout.console.width // 2:
            layout.hanging(head, safe(text), style)
            return
        line = head + safe(text)
        if self.on_terminal:
            width = max(40, shutil.get_terminal_size().columns)
            indent = " " * (len(head) if len(head) <= width // 2 else 4)
            lines = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        else:
            lines = [line]
        for each in lines:
            self.say(each) if style is None else self.say_styled(style, each)

    def _layout(self) -> Layout | None:
        """Return the layout for a person's terminal; None without a terminal or without ``rich``."""
        return Layout.of(self._stdout, coloured=self._coloured) if self.on_terminal else None

    @property
    def on_terminal(self) -> bool:
        """Return whether a person's terminal shows the result."""
        return not self.machine and self._stdout.isatty()

    @property
    def is_terminal(self) -> bool:
        """Return whether stdout is a terminal."""
        return self._stdout.isatty()

    def redraw(self, lines: Sequence[str]) -> None:
        """Draw lines over a terminal's whole screen, each made safe and cut to the width with a mark."""
        width, height = shutil.get_terminal_size()
        shown = [f"{_cut(safe(line), width)}\x1b[K" for line in lines[: height - 1]]
        print("\x1b[H" + "\n".join(shown) + "\x1b[J", end="", file=self._stdout, flush=True)

    def raw(self, text: str) -> None:
        """Write text for programs unchanged: an export's lines, a completion script. Call ``flush`` at its end.

        On a terminal, each line is made safe.
        """
        if self.is_terminal:
            text = "\n".join(safe(line.removesuffix("\r")) for line in text.split("\n"))
        self._stdout.write(text)

    def flush(self) -> None:
        """Flush the output."""
        self._stdout.flush()

    def note(self, line: str) -> None:
        """Print a remark beside the result (progress, warnings, errors), always on stderr."""
        print(safe(self._reword(line)), file=self._stderr, flush=True)

    def document(self, value: Json) -> None:
        """Print the result as JSON; silent in text mode."""
        if self.machine:
            print(self._reword(json.dumps(value)), file=self._stdout, flush=True)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> None:
        """Print left-aligned columns as wide as their content; on a terminal they fit its width.

        Parameters: ``indent`` characters before each line.
        """
        body = list(rows)
        self.table_styled(heads, body, [None] * len(body), indent=indent)

    def table_styled(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None], *, indent: int = 0
    ) -> None:
        """Print as ``table`` does, each row in its style where the terminal supports it."""
        if (layout := self._layout()) is not None:
            body = [[safe(self._reword(cell)) for cell in row] for row in rows]
            layout.table([safe(head) for head in heads], body, styles, indent)
            return
        head, *lines = (" " * indent + line for line in table_lines(heads, rows))
        self.say(head)
        for line, style in zip(lines, styles, strict=True):
            self.say(line) if style is None else self.say_styled(style, line)


class Layout:
    """Tables and paragraphs by the library ``rich``, of the extra ``cli``. Callers make texts safe."""

    def __init__(self, console: Any, coloured: bool) -> None:
        self.console = console
        self._coloured = coloured

    @classmethod
    def of(cls, stream: TextIO, *, coloured: bool) -> Layout | None:
        """Return the layout of a terminal; None where ``rich`` is not installed."""
        try:
            from rich.console import Console
        except ImportError:
            return None
        return cls(Console(file=stream, highlight=False, markup=False, emoji=False, no_color=not coloured), coloured)

    def table(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None], indent: int
    ) -> None:
        """Print a table. Cells wrap between words; where that is too wide, a row takes several lines.

        No id, number or heading is folded, so that each can be copied whole.
        """
        from rich.cells import cell_len

        widths = _fit([heads, *rows], self.console.width - indent, cell_len)
        if widths is None:
            self._print_in_parts(heads, rows, styles, indent)
            return
        table = self._grid(heads, show_header=True)
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width
        for row, style in zip(rows, styles, strict=True):
            table.add_row(*self._texts(row), style=style if self._coloured else None)
        self._print(table, indent)

    def _print_in_parts(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None], indent: int
    ) -> None:
        """Print rows of several lines: as many columns on each as fit, and no line for empty cells."""
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        widths = _widths([heads, *rows], cell_len)
        parts = _parts(widths, self.console.width - indent)
        for row, style in zip((heads, *rows), ("bold", *styles), strict=True):
            for part in parts:
                line = "  ".join(set_cell_size(row[place], widths[place]) for place in part).rstrip()
                if not line:
                    continue
                shown = Text(line, overflow="fold", style=(style or "") if self._coloured else "")
                self._print(shown, indent + (_CONTINUED if part[0] else 0))

    def _print(self, shown: Any, indent: int) -> None:
        from rich.padding import Padding

        self.console.print(Padding(shown, (0, 0, 0, indent), expand=False) if indent else shown)

    def hanging(self, head: str, text: str, style: str | None) -> None:
        """Print a heading, and text with its lines aligned below each other."""
        grid = self._grid(("", ""), show_header=False)
        grid.columns[0].no_wrap = True
        grid.columns[0].width = len(head) - 2 if head.endswith("  ") else len(head.rstrip())
        grid.padding = (0, len(head) - grid.columns[0].width, 0, 0)
        grid.add_row(*self._texts((head.rstrip(), text)), style=style if self._coloured else None)
        self.console.print(grid)

    def _grid(self, heads: Sequence[str], *, show_header: bool) -> Any:
        from rich.table import Table

        bold = "bold" if self._coloured else ""
        table = Table(box=None, show_header=show_header, header_style=bold, pad_edge=False, padding=(0, 2, 0, 0))
        for head in heads:
            table.add_column(head, overflow="fold")
        return table

    def _texts(self, cells: Sequence[str]) -> list[Any]:
        from rich.text import Text

        return [Text(cell) for cell in cells]


_CONTINUED: Final = 2  # characters before the further lines of a row
Measure = Callable[[str], int]  # the number of terminal columns that a text takes


def _widths(cells: Sequence[Sequence[str]], measure: Measure) -> list[int]:
    return [max(measure(row[place]) for row in cells) for place in range(len(cells[0]))]


def _fit(cells: Sequence[Sequence[str]], room: int, measure: Measure = len) -> list[int] | None:
    """Return the widths of columns that fit into a line: the first whole, the others with at least their longest word.

    Returns None where they do not fit.

    >>> _fit([("ID", "REASON"), ("1841", "not yet known")], 12), _fit([("ID", "REASON"), ("1841", "x")], 8)
    ([4, 6], None)
    """
    whole = _widths(cells, measure)
    widths = [whole[0], *_widths(cells, lambda cell: max(map(measure, cell.split()), default=0))[1:]]
    spare = room - sum(widths) - 2 * (len(widths) - 1)
    if spare < 0:
        return None
    for place, most in enumerate(whole):
        more = min(spare, most - widths[place])
        widths[place] += more
        spare -= more
    return widths


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns on each line of a row that takes several lines: as many as fit.

    >>> _parts([4, 9, 9], 15)
    [[0, 1], [2]]
    """
    parts: list[list[int]] = []
    left = 0
    for place, width in enumerate(widths):
        if parts and width + 2 <= left:
            parts[-1].append(place)
            left -= width + 2
        else:
            left = room - width - (_CONTINUED if parts else 0)
            parts.append([place])
    return parts


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
