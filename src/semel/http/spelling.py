"""Normalisation of paths, as a lenient server, layer or framework may read them.

It is deliberately more lenient than any framework: it serves to *refuse* requests whose spelling matches no declared
operation, but which an application might still route to one. It never decides which operation a request is.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_ORIGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*").match
_PLAIN: Final = re.compile(r"(?:/[a-z0-9_-]+)*+/?", re.ASCII).fullmatch  # already in its normal spelling
_DECODED_MAX: Final = 3  # layers that may each decode a path again


def without_slashes(path: str) -> str:
    """Return a path without empty segments: a slash at its end does not make another command.

    >>> without_slashes("/eu//payments/")
    'eu/payments'
    """
    return "/".join(part for part in path.split("/") if part)


def normal_segments(path: str) -> list[str]:
    r"""Return the segments of a path without the parts that some layer may ignore or undo.

    These are: its origin, empty and dotted segments, backslashes, percent-encoding, parameters after a semicolon,
    control and broken characters, and the case of letters.

    >>> normal_segments("//Orders/./7;v=1/cancel%2F\n") == normal_segments("/orders/7/cancel")
    True
    """
    if _PLAIN(path) is not None:
        return [segment for segment in path.split("/") if segment]
    for _ in range(_DECODED_MAX):
        decoded = unquote(path, errors="ignore")
        if decoded == path:
            break
        path = decoded
    found = _ORIGIN(path)
    if found is not None:
        path = path[found.end() :]
    segments: list[str] = []
    for part in re.split(r"[?#]", path, maxsplit=1)[0].replace("\\", "/").split("/"):
        segment = "".join(each for each in part.partition(";")[0] if each.isprintable()).strip().casefold()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return segments


def normal_raw_segments(raw_path: bytes) -> list[str]:
    """Normalise a path as it came over the wire, for applications that split it before they decode it."""
    return [
        "/".join(segments)
        for part in raw_path.partition(b"?")[0].decode("latin-1").split("/")
        if (segments := normal_segments(part))
    ]


def without_formats(segments: list[str]) -> list[list[str]]:
    """Return normal segments without a format at their end; an empty list if there is none.

    Rails and others cut the format off at the last dot, older Spring at the first.

    >>> without_formats(["orders", "7", "cancel.v2.json"])
    [['orders', '7', 'cancel'], ['orders', '7', 'cancel.v2']]
    """
    *above, last = segments or [""]
    if "." not in last:
        return []
    shorter = {last.partition(".")[0], last.rpartition(".")[0]} - {""}
    return [[*above, each] for each in sorted(shorter)]
