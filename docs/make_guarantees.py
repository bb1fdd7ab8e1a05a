"""Prints the generated pages: what is promised, what each framework can, and the pictures.

    python docs/make_guarantees.py            # write guarantees.md, frameworks.md, internals/states.md, images/*.svg
    python docs/make_guarantees.py --check    # exit code 1 where a committed page is not what would be written

The prose is in ``guarantees.md.in`` beside this file; every table is a module of ``guarantee_pages`` and comes from
the rules and from what the stores declare. A test that a page names must exist, or nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the tests run this file from elsewhere
from guarantee_pages.capabilities import capabilities
from guarantee_pages.crashes import crashes
from guarantee_pages.frameworks import frameworks
from guarantee_pages.invariants import invariants
from guarantee_pages.layers import layers
from guarantee_pages.markdown import HEADER
from guarantee_pages.outcomes import ends, situations
from guarantee_pages.picture import picture
from guarantee_pages.plots import growth, latency, throughput
from guarantee_pages.settings import settings
from guarantee_pages.states import states

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent


def guarantees() -> str:
    """The page of promises."""
    text = (DOCS / "guarantees.md.in").read_text("utf-8")
    for make in (situations, ends, invariants, capabilities, settings):
        mark = f"{{{{{make.__name__}}}}}"
        if text.count(mark) != 1:
            raise LookupError(f"guarantees.md.in must have {mark} once")
        text = text.replace(mark, make())
    return HEADER + text


PAGES: Final = {
    DOCS / "guarantees.md": guarantees,
    DOCS / "frameworks.md": frameworks,
    DOCS / "internals" / "states.md": states,
    DOCS / "internals" / "states.svg": picture,
    DOCS / "images" / "layers.svg": layers,
    DOCS / "images" / "crashes.svg": crashes,
    DOCS / "images" / "throughput.svg": throughput,
    DOCS / "images" / "latency.svg": latency,
    DOCS / "images" / "growth.svg": growth,
}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or compare them."""
    stale = []
    for path, make in PAGES.items():
        text = make()
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
    if stale:
        sys.stderr.write(f"not current: {', '.join(stale)}; run: python docs/make_guarantees.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
