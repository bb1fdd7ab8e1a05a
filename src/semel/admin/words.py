"""What commands, findings and pages show alike: the values of their documents, and spans of time in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def span_text(microseconds: int) -> str:
    """A span as people say it.

    >>> span_text(90_000_000), span_text(-1), span_text(200_000)
    ('90 s', '0 s', '0.2 s')
    """
    seconds = max(microseconds, 0) / 1_000_000
    if 0.05 <= seconds < 1:
        return f"{seconds:.1f} s"
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
