"""Prints docs/problems.md from what the code says of each problem: ``python docs/make_problems.py`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from semel.http.problem_page import ENTRIES
from semel.http.problems import anchor_of

PAGE: Final = Path(__file__).resolve().parent / "problems.md"
_HEAD: Final = """\
<!-- written by docs/make_problems.py -->

# Problems

This page lists what each `code` of a [problem document](http.md#refusals) means, and what a client does about it.
Applications serve this page beside the status of operations, as `/operations/problems`, and every refusal links to it
with `Link: <…>; rel="describedby"`, unless [`Problems(page=…)` or `type_base`](settings.md#how-problems-are-written)
names another one.

`keep` the key unless `keyAction` says otherwise, and retry only where `retryable` is true.
"""


def page() -> str:
    """The page, with an anchor for each code."""
    parts = [_HEAD]
    for entry in ENTRIES:
        title = anchor_of(entry.code).replace("-", " ").capitalize()  # whose anchor is the code's
        parts.append(f"## {title}\n\n`{entry.code}`, {entry.status}. {entry.happened}\n\n{entry.remedy}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
