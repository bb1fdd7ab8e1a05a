"""What the drawn pictures share: one document, one set of colours for light and dark pages, boxes, words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape

STYLE: Final = (
    "text{font:13px sans-serif;fill:#1b1f24}.small{font-size:11px;fill:#57606a}.title{font-weight:bold}"
    ".middle{text-anchor:middle}.end{text-anchor:end}"
    "path,line{fill:none;stroke:#57606a;stroke-width:1.3}.arrow{marker-end:url(#tip)}"
    ".grid{stroke:#e3e7ec;stroke-width:1}"
    ".band{fill:#f6f8fa;stroke:#c4cad1}.box{fill:#eef3fb;stroke:#57606a}.crash{fill:#fdecea;stroke:#b3261e}"
    ".a{fill:#174ea6}.b{fill:#7ba7f0}.c{fill:#b3261e}"
)


def picture(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """A whole picture on a white ground, so that it is readable on a dark page too.

    Parameters
    ----------
    title
        What a screen reader says.
    width, height
        In pixels.
    parts
        SVG elements, in drawing order.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" style="fill:#57606a;stroke:none"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" style="fill:#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """A rectangle with round corners."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle of a plot."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def words(x: float, y: float, text: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}"' + (f' class="{kind}"' if kind else "") + f">{escape(text)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "") -> str:
    """A straight line."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f"<line {ends}" + (f' class="{kind}"' if kind else "") + "/>"
