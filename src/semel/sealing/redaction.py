"""Redacts the members of a JSON answer that are never stored: their values become ``null``; all other bytes stay.

The text is scanned, not parsed and written again: numbers keep their digits, members their order and spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from semel.errors import PolicyError

Path = tuple[str, ...]
ANY: Final = "*"
DEPTH_MAX: Final = 200
_SPACE: Final = re.compile(r"[ \t\n\r]*").match
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?").match
_STRING: Final = json.decoder.scanstring  # type: ignore[attr-defined]  # not in the stubs
_WORDS: Final = ("null", "true", "false")


def check_redact(redact: object) -> tuple[str, ...]:
    """Check the members to leave out, as they are declared. Raises PolicyError.

    >>> check_redact(["card.number"])
    ('card.number',)
    """
    if isinstance(redact, (str, bytes)) or not isinstance(redact, (tuple, list, set, frozenset)):
        raise PolicyError(f"redact must be a tuple of members, such as ('card.number',); it is {redact!r}")
    for each in redact:
        if not isinstance(each, str) or "" in each.split("."):
            raise PolicyError(f"redact takes members such as 'card.number' or 'cards.*.number'; it has {each!r}")
    return tuple(redact)


def paths_of(redact: Sequence[str]) -> tuple[Path, ...]:
    """Split the declared members into their parts."""
    return tuple(tuple(each.split(".")) for each in redact)


def redact(body: bytes, paths: Sequence[Path]) -> bytes | None:
    """Replace the value of each of these members of a JSON text by ``null``; None if it is not JSON.

    Parameters: ``paths`` the parts of each member's name from the top; ``*`` is every member of an object. The elements
    of an array need no part of their own.

    >>> redact(b'{"id": 7, "card": {"number": "4111", "last": "11"}}', [("card", "number")])
    b'{"id": 7, "card": {"number": null, "last": "11"}}'
    >>> redact(b'[{"pin": 1.0}, {"pin": {"a": []}}]', [("pin",)])
    b'[{"pin": null}, {"pin": null}]'
    >>> redact(b"pin=1", [("pin",)]) is None
    True
    """
    try:
        text = body.decode()
        spans: list[tuple[int, int]] = []
        end = _value(text, _after_space(text, 0), paths, spans, 0)
    except (ValueError, IndexError):  # UnicodeDecodeError is a ValueError
        return None
    if _after_space(text, end) != len(text):
        return None
    return "".join(_pieces(text, spans)).encode()


def _pieces(text: str, spans: list[tuple[int, int]]) -> Iterator[str]:
    at = 0
    for begin, end in spans:
        yield text[at:begin]
        yield "null"
        at = end
    yield text[at:]


def _after_space(text: str, at: int) -> int:
    match = _SPACE(text, at)
    assert match is not None
    return match.end()


def _value(text: str, at: int, paths: Sequence[Path], spans: list[tuple[int, int]], depth: int) -> int:
    """Walk one value, and return its end. Raises ValueError and IndexError if it is none."""
    if depth > DEPTH_MAX:
        raise ValueError("nested too deeply")
    first = text[at]
    if first == "{":
        return _object(text, at + 1, paths, spans, depth)
    if first == "[":
        return _array(text, at + 1, paths, spans, depth)
    if first == '"':
        end: int = _STRING(text, at + 1)[1]
        return end
    for word in _WORDS:
        if text.startswith(word, at):
            return at + len(word)
    match = _NUMBER(text, at)
    if match is None:
        raise ValueError("no JSON")
    return match.end()


def _array(text: str, at: int, paths: Sequence[Path], spans: list[tuple[int, int]], depth: int) -> int:
    at = _after_space(text, at)
    if text[at] == "]":
        return at + 1
    while True:
        at = _after_space(text, _value(text, at, paths, spans, depth + 1))
        if text[at] == "]":
            return at + 1
        if text[at] != ",":
            raise ValueError("no JSON")
        at = _after_space(text, at + 1)


def _object(text: str, at: int, paths: Sequence[Path], spans: list[tuple[int, int]], depth: int) -> int:
    at = _after_space(text, at)
    if text[at] == "}":
        return at + 1
    while True:
        if text[at] != '"':
            raise ValueError("no JSON")
        name, at = _STRING(text, at + 1)
        at = _after_space(text, at)
        if text[at] != ":":
            raise ValueError("no JSON")
        begin = _after_space(text, at + 1)
        below = [path[1:] for path in paths if path and path[0] in (name, ANY)]
        if () in below:
            at = _value(text, begin, (), spans, depth + 1)
            spans.append((begin, at))
        else:
            at = _value(text, begin, below, spans, depth + 1)
        at = _after_space(text, at)
        if text[at] == "}":
            return at + 1
        if text[at] != ",":
            raise ValueError("no JSON")
        at = _after_space(text, at + 1)
