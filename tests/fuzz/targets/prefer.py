"""`Prefer: wait=N`, against a reading one character after the other."""

from __future__ import annotations

from semel.http.headers import parse_wait

TOKENS = (
    *(
        b"wait",
        b"Wait=5",
        b"wait=10",
        b'wait="7"',
        b"respond-async",
        b",",
        b", ",
        b";",
        b"=",
        b" ",
        b"\t",
        b'"',
        b'\\"',
    ),
    *(b"return=minimal", b"handling=lenient; x=y", b'x="a, wait=3"', b"wait=999999999", b"wait=1000000000", b"wait=-1"),
    *(b"wait=soon", b"\xb2", b"\x00", b"\xff", b"\r\n", b"foo; wait=9"),
)
_TCHAR = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def one(data: bytes) -> None:
    """Judge one or more field lines, cut at line feeds."""
    lines = data.split(b"\n")
    found = parse_wait(lines)
    assert found is None or 0 <= found <= 999_999_999
    if len(lines) > 1:
        each = [parse_wait([line]) for line in lines]
        assert found in (None, *each)
        return
    assert parse_wait([b"wait=5," + data]) == (5 if len(data) + 7 <= 1024 else None)
    wanted = _reference(data)
    if wanted != "malformed":
        assert found == wanted, (found, wanted)


def _reference(line: bytes) -> int | str | None:
    """The first wait of a well-formed line; anything else is malformed, and only its bounds are promised."""
    if len(line) > 1024:
        return None
    elements, closed = _split(line, 0x2C)
    for element in elements:
        name, equals, value = _split(element, 0x3B)[0][0].partition(b"=")
        name, value = name.strip(b" \t"), value.strip(b" \t")
        if not name or not _TCHAR.issuperset(name) or not closed:
            return "malformed"
        if value.startswith(b'"'):
            if len(value) < 2 or not value.endswith(b'"') or b'"' in value[1:-1] or b"\\" in value:
                return "malformed"
            value = value[1:-1]
        elif not _TCHAR.issuperset(value):
            return "malformed"
        if name.lower() == b"wait":
            fits = equals and 0 < len(value) <= 9 and all(0x30 <= byte <= 0x39 for byte in value)
            return int(value) if fits else None
    return None


def _split(line: bytes, separator: int) -> tuple[list[bytes], bool]:
    """Cut at a separator outside quoted strings; and whether every quote was closed."""
    parts, start, at, quoted = [], 0, 0, False
    while at < len(line):
        byte = line[at]
        if quoted and byte == 0x5C:
            at += 1
        elif byte == 0x22:
            quoted = not quoted
        elif byte == separator and not quoted:
            parts.append(line[start:at])
            start = at + 1
        at += 1
    return [*parts, line[start:]], not quoted
