"""The diagram of states, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from guarantee_pages.states import edges

WIDTH, HEIGHT = 980, 560
BOX_WIDTH, BOX_HEIGHT = 186, 40
# Where each state stands: its centre, in pixels.
PLACES: Final = {
    "[*]": (490, 30),
    "CLAIMED": (120, 130),
    "PROCESSING": (490, 130),
    "UNKNOWN": (850, 130),
    "FAILED_NOT_REPLAYABLE": (120, 400),
    "FAILED_REPLAYABLE": (490, 400),
    "SUCCEEDED": (850, 400),
    "EXPIRED": (670, 530),
    "[*] again": (120, 530),
}
# How far an arrow bends from the straight line, in pixels, and how far along its words stand, from 0 to 1.
BENDS: Final[Mapping[tuple[str, str], tuple[int, float]]] = {
    ("PROCESSING", "UNKNOWN"): (-56, 0.5),
    ("UNKNOWN", "PROCESSING"): (-56, 0.5),
    ("CLAIMED", "PROCESSING"): (0, 0.5),
    ("PROCESSING", "FAILED_NOT_REPLAYABLE"): (-30, 0.8),
    ("FAILED_NOT_REPLAYABLE", "PROCESSING"): (-40, 0.72),
    ("UNKNOWN", "FAILED_NOT_REPLAYABLE"): (-30, 0.31),
    ("UNKNOWN", "FAILED_REPLAYABLE"): (0, 0.3),
    ("PROCESSING", "SUCCEEDED"): (0, 0.8),
    ("EXPIRED", "PROCESSING"): (60, 0.35),
    ("CLAIMED", "UNKNOWN"): (-150, 0.5),
    ("UNKNOWN", "CLAIMED"): (105, 0.5),
    ("PROCESSING", "CLAIMED"): (26, 0.5),
}


def picture() -> str:
    """The diagram of states."""
    arrows, words = [], []
    for (here, there), who in edges().items():
        end = "[*] again" if there == "[*]" else there
        path, x, y = _self_arrow(here) if here == there else _arrow(here, end)
        faint = ' class="faint"' if "CLAIMED" in (here, there) else ""
        arrows.append(f'<path d="{path}"{faint}/>')
        if not faint:
            lines = _lines(who)
            words += [
                f'<text class="who" x="{x:.0f}" y="{y + 12 * (number - (len(lines) - 1) / 2):.0f}">{line}</text>'
                for number, line in enumerate(lines)
            ]
    boxes = []
    for name, (x, y) in PLACES.items():
        if name.startswith("[*]"):
            boxes.append(f'<circle cx="{x}" cy="{y}" r="9"/>')
            continue
        faint = ' class="faint"' if name == "CLAIMED" else ""
        corner = f'x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"'
        boxes.append(f'<rect {corner} rx="8"{faint}/><text x="{x}" y="{y + 4}">{name}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">\n'
        "<title>The states of a record</title>\n<style>"
        "text{font:13px sans-serif;text-anchor:middle;fill:#1b1f24}"
        ".who{font-size:11px;fill:#174ea6;paint-order:stroke;stroke:#fff;stroke-width:4px}"
        "path{fill:none;stroke:#57606a;stroke-width:1.3;marker-end:url(#tip)}"
        "rect{fill:#eef3fb;stroke:#57606a}.faint{stroke:#c4cad1}rect.faint{fill:#f6f8fa}"
        "</style>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L10 5L0 10z" style="fill:#57606a;stroke:none;marker-end:none"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" style="fill:#fff;stroke:none"/>\n'
        + "\n".join((*arrows, *boxes, *words))
        + "\n</svg>\n"
    )


def _lines(who: Sequence[str]) -> list[str]:
    """The words of an arrow, at most two to a line."""
    return [", ".join(who[first : first + 2]) for first in range(0, len(who), 2)]


def _arrow(here: str, there: str) -> tuple[str, float, float]:
    """A bent arrow from box to box, and where its words stand."""
    (x1, y1), (x2, y2) = PLACES[here], PLACES[there]
    bend, along = BENDS.get((here, there), (0, 0.5))
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    cx, cy = (x1 + x2) / 2 - bend * (y2 - y1) / length, (y1 + y2) / 2 + bend * (x2 - x1) / length
    x1, y1 = _edge(here, cx, cy)
    x2, y2 = _edge(there, cx, cy)
    rest = 1 - along
    x = rest * rest * x1 + 2 * rest * along * cx + along * along * x2
    y = rest * rest * y1 + 2 * rest * along * cy + along * along * y2
    return f"M{x1:.0f} {y1:.0f}Q{cx:.0f} {cy:.0f} {x2:.0f} {y2:.0f}", x, y + 4


def _edge(name: str, toward_x: float, toward_y: float) -> tuple[float, float]:
    """Where a line from the middle of a state leaves it."""
    x, y = PLACES[name]
    dx, dy = toward_x - x, toward_y - y
    half_width, half_height = (9, 9) if name.startswith("[*]") else (BOX_WIDTH / 2, BOX_HEIGHT / 2)
    scale = min(half_width / abs(dx) if dx else 1e9, half_height / abs(dy) if dy else 1e9)
    return x + dx * scale, y + dy * scale


def _self_arrow(name: str) -> tuple[str, float, float]:
    x, y = PLACES[name]
    top = y - BOX_HEIGHT // 2
    return f"M{x - 60} {top}C{x - 80} {top - 50} {x - 20} {top - 50} {x - 40} {top}", x - 75, top - 28
