"""The key's grammar, against an independent parser of structured fields and a reading without patterns."""

from __future__ import annotations

import uuid

import http_sf
from http_sf.errors import StructuredFieldError

from semel.errors import InvalidKey
from semel.keys import KEY_LENGTH_MAX, KeyFormat, parse_key, weakness

TOKENS = (
    *(b'"', b'\\"', b"\\\\", b"\\", b";", b"; ", b"=", b",", b" ", b"\t", b"a", b"key-1", b"8e03978e-40d5-43dd-bc93-"),
    *(b"6894a57f9324", b"v=1", b";v=1.5", b";v=?1", b";v=:YQ==:", b";v=@-12", b';v=%"%c3%a9"', b';v="x"', b";*w"),
    *(b"\x00", b"\x7f", b"\xc3\xa9", b"\r\n", b"a" * 255, b"~!#$%&'*+-.^_`|", b";v=tok/en:x", b";v=-0.125"),
)
_LINE_MAX = 4096
_NOT_BARE = frozenset(b'",;')


def one(data: bytes) -> None:
    """Judge one field line."""
    line = data[:_LINE_MAX]
    key = _read(line)
    wanted, exact = _reference(line)
    if exact:
        assert key == wanted, (key, wanted)
    elif key is not None:
        # Parameters are ignored, so their values are not read as closely as the reference does; the key is.
        assert key == wanted, (key, wanted)
    if key is None:
        return
    assert 1 <= len(key) <= KEY_LENGTH_MAX
    assert all("!" <= character <= "~" for character in key)
    quoted = b'"' + key.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'
    assert http_sf.ser(key).encode() == quoted
    assert _read(quoted) == key
    assert _read(b" \t" + quoted + b";a;b=1") == key
    if not _NOT_BARE & set(key.encode()):
        assert _read(key.encode()) == key
    assert _read(b'"' + b"a" * (KEY_LENGTH_MAX + 1 - len(key)) + quoted[1:]) is None
    weakness(key)
    assert _is_uuid(key) == _accepts(KeyFormat(uuid=True), key)
    assert _accepts(KeyFormat(length_min=16), key) == (len(key) >= 16)


def _read(line: bytes) -> str | None:
    try:
        return parse_key([line])
    except InvalidKey as error:
        text = str(error)
        assert text.isascii()
        assert len(text) < 200
        shown = line.strip().decode("latin-1")
        assert len(shown) < 24 or shown not in text, "the message repeats the key"
        return None


def _accepts(form: KeyFormat, key: str) -> bool:
    try:
        form.check(key)
    except InvalidKey:
        return False
    return True


def _reference(line: bytes) -> tuple[str | None, bool]:
    """The key that the reference reads, and whether it must be met exactly (False: only where ours accepts)."""
    value = line.strip(b" \t")
    if not value.startswith(b'"'):
        fits = 1 <= len(value) <= KEY_LENGTH_MAX and all(
            0x21 <= byte <= 0x7E and byte not in _NOT_BARE for byte in value
        )
        return (value.decode("ascii") if fits else None), True
    end = _closing(value)
    exact = end == len(value) or value[end : end + 1] != b";"
    whole = _item(value)
    if whole is None and not exact:
        return _item(value[:end]), False
    return whole, True


def _closing(value: bytes) -> int:
    """Return where the first string of a value ends."""
    at = 1
    while at < len(value) and value[at] != 0x22:
        at += 2 if value[at] == 0x5C else 1
    return at + 1


def _item(value: bytes) -> str | None:
    try:
        found = http_sf.parse(value, tltype="item")
    except (StructuredFieldError, ValueError, OverflowError):
        return None
    assert isinstance(found, tuple)
    item = found[0]
    if type(item) is not str or not 1 <= len(item) <= KEY_LENGTH_MAX or " " in item:
        return None
    return item


def _is_uuid(key: str) -> bool:
    try:
        return str(uuid.UUID(key)) == key.lower()
    except ValueError:
        return False
