"""Canonical JSON, against the slow second implementation and the values that the standard library reads."""

from __future__ import annotations

import json
from typing import Any

from semel.errors import RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json, select_members
from tests.rules.slow_canonical import depth_of, slow_canonical

TOKENS = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b'"a"',
        b'"b":',
        b'"a":',
        b'{"a":1}',
        b"[1,2]",
        b"true",
        b"false",
        b"null",
    ),
    *(
        b"0",
        b"-0",
        b"1.0",
        b"1e2",
        b"1E+2",
        b"9007199254740993",
        b"123456789012345",
        b"1234567890123456",
        b"01",
        b"NaN",
    ),
    *(
        b"\\u0061",
        b"\\ud83d\\ude00",
        b"\\ud800",
        b"\\n",
        b"\\/",
        b'\\"',
        b"\xc3\xa9",
        b"\xff",
        b"\xef\xbb\xbf",
        b" ",
        b"\n",
    ),
    *(
        b"\xf0\x9f\x98\x80",
        b"\xef\xbf\xbd",
        b'"items":[',
        b'"a.b"',
        b'{"a":{"b":',
        b"[" * 64,
        b"]" * 64,
        b"Infinity",
        b"\x7f",
    ),
)
_BYTES_MAX = 2048
PATHS = ("a", "a.b", "a~1b", "items.0", "b.a.a")


class Token(str):
    """A number as it was written."""


def one(data: bytes) -> None:
    """Judge one document."""
    body = data[:_BYTES_MAX]
    for depth_max in (64, 3):
        assert _outcome(body, depth_max) == _slow(body, depth_max)
    out = _outcome(body, 64)
    assert (out == "too deep") == (depth_of(body) > 64)
    if isinstance(out, bytes):
        value, same = _loads(body), _loads(out)
        assert _add_types(value) == _add_types(same), "the canonical form means something else"
        assert canonical_json(out) == out
        assert len(out) <= 2 * len(body) + 2
        assert canonical_json(_respelt(value).encode()) == out, "another spelling of the same document"
        _check_numbers(out, value)
    _check_selection(body)


def _check_numbers(out: bytes, value: Any) -> None:
    if isinstance(value, Token):
        for other in (f"{value}0" if "." in value else f"{value}.0", f"{value}e0" if "e" not in value.lower() else "1"):
            assert canonical_json(other.encode()) != out or other == value


def _check_selection(body: bytes) -> None:
    try:
        selected = select_members(body, PATHS)
    except RequestTooLarge:
        assert depth_of(body) > 64
        return
    whole = canonical_json(body)
    if selected is None:
        assert whole is None or not whole.startswith(b"{")
        return
    wanted: dict[str, Any] = {}
    document = _loads(body)
    for path in PATHS:
        steps = [step.replace("~1", ".") for step in path.split(".")]
        found, value = _walk(document, steps)
        if found:
            wanted[path] = value
    assert _add_types(_loads(selected)) == _add_types(wanted)
    assert canonical_json(selected) == selected


def _walk(value: Any, steps: list[str]) -> tuple[bool, Any]:
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step == "0" and value:
            value = value[0]
        else:
            return False, None
    return True, value


def _outcome(body: bytes, depth_max: int) -> bytes | str | None:
    try:
        return canonical_json(body, depth_max=depth_max)
    except RequestTooLarge:
        return "too deep"


def _slow(body: bytes, depth_max: int) -> bytes | str | None:
    try:
        return slow_canonical(body, depth_max)
    except RequestTooLarge:
        return "too deep"


def _loads(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"), parse_int=Token, parse_float=Token)


def _add_types(value: Any) -> Any:
    """A value in which a number, a text and a truth value of the same spelling differ."""
    if isinstance(value, dict):
        return "object", {name: _add_types(each) for name, each in value.items()}
    if isinstance(value, list):
        return "array", [_add_types(each) for each in value]
    return type(value).__name__, value


def _respelt(value: Any) -> str:
    """The same document with members backwards, blanks everywhere and every character escaped."""
    if isinstance(value, dict):
        members = [f"{_escape(name)}\t: {_respelt(each)}" for name, each in reversed(value.items())]
        return "{ " + " ,\n".join(members) + " }"
    if isinstance(value, list):
        return "[\r" + " , ".join(_respelt(each) for each in value) + " ]"
    if isinstance(value, Token):
        return str(value)
    return _escape(value) if isinstance(value, str) else json.dumps(value)


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[at]:02X}{units[at + 1]:02x}" for at in range(0, len(units), 2)) + '"'
