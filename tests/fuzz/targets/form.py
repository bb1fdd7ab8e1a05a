"""URL-encoded forms, against the standard library's reading of the same pairs."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from semel.http.fingerprint.multipart import FIELDS_MAX, form_canonical

TOKENS = (
    *(
        b"a=1",
        b"&",
        b"=",
        b"+",
        b"%41",
        b"%2B",
        b"%26",
        b"%3D",
        b"%c3%a9",
        b"%",
        b"%4",
        b"%zz",
        b";",
        b"b=2",
        b"a=",
        b"a",
    ),
    *(b"&&", b"name=J%C3%BCrgen", b"\xc3\xa9", b"\x00", b" ", b"1:a", b"form:", b"raw:", b"-", b"&a=2&a=1", b"%00"),
)
_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def one(data: bytes) -> None:
    """Judge one form."""
    out = form_canonical(data)
    assert out == form_canonical(data)
    ambiguous = not data.isascii() or b";" in data or _BROKEN.search(data) or data.count(b"&") >= FIELDS_MAX
    if ambiguous:
        assert out == b"raw:" + data
        return
    pairs = _pairs(out)
    text = data.decode("ascii")
    wanted = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in parse_qsl(text, keep_blank_values=True, encoding="latin-1", separator="&")
    ]
    assert [(name, value or b"") for name, value in pairs] == sorted(wanted, key=lambda pair: pair[0])
    # Another spelling of the same pairs means the same, in any order of different names.
    spelt = [
        _escape(name) + (b"" if value is None else b"=" + _escape(value)) for name, value in pairs if name or value
    ]
    if all(name or value is not None for name, value in pairs):
        spelt = [_escape(name) + (b"" if value is None else b"=" + _escape(value)) for name, value in pairs]
        assert form_canonical(b"&&".join(spelt) + b"&") == out
        groups: dict[bytes, list[bytes]] = {}
        for (name, _), pair in zip(pairs, spelt, strict=True):
            groups.setdefault(name, []).append(pair)
        assert form_canonical(b"&".join(pair for name in reversed(groups) for pair in groups[name])) == out
    assert form_canonical(data + b"&x=1") != out
    for at, (name, _) in enumerate(pairs):
        assert form_canonical(b"&".join([*spelt[:at], _escape(name + b"!") + b"=", *spelt[at + 1 :]])) != out
        break


def _pairs(out: bytes) -> list[tuple[bytes, bytes | None]]:
    """Take the canonical form apart again: that this works is what keeps different forms different."""
    assert out.startswith(b"form:")
    at, pairs = 5, []
    while at < len(out):
        name, at = _read_frame(out, at)
        value: bytes | None = None
        if out[at : at + 1] == b"-":
            at += 1
        else:
            value, at = _read_frame(out, at)
        pairs.append((name, value))
    return pairs


def _read_frame(out: bytes, at: int) -> tuple[bytes, int]:
    colon = out.index(b":", at)
    end = colon + 1 + int(out[at:colon])
    assert end <= len(out)
    return out[colon + 1 : end], end


def _escape(value: bytes) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in value)
