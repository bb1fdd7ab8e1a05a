"""Digests of forms by their parts: a new boundary or another spelling of the same fields is the same command.

`MultipartDigest` reads multipart/form-data as it streams and keeps two hashes per part, never a part's content.
`form_canonical` does the same for URL-encoded forms; `form_values` reads one field of either. All are strict on
purpose: a form that two parsers might read differently has no canonical form here, and the caller falls back to the
bytes as received, which is always safe. The file deliberately hands out no files, and only the values of the one
requested field.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

HEADER_BYTES_MAX = 8 * 1024
"""The longest header block of one part, in bytes."""

PARTS_MAX = 1000
"""The most parts one body may have."""

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ESSENCE = re.compile(rf"[ \t]*({_WORD}/{_WORD})[ \t]*").match
_PARAMETER = re.compile(rf';[ \t]*(?:({_WORD})=(?:({_WORD})|"((?:[^"\\]|\\.)*+)")[ \t]*)?').match
_ESCAPED = re.compile(r"\\(.)")
_DISPOSITION = re.compile(r"[ \t]*form-data[ \t]*", re.IGNORECASE).match
_NAME = re.compile(_WORD).fullmatch
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]").fullmatch

# For some parsers a quote escaped by a backslash ends the value, for others it does not.
_AMBIGUOUS_QUOTE = '\\"'
_CONTROLS = frozenset("\r\n\0")
_IDENTITY_ENCODINGS = frozenset({"7bit", "8bit", "binary"})


@dataclass(frozen=True, slots=True)
class MediaType:
    """A parsed Content-Type.

    Args:
        essence: `type/subtype` in lower case.
        charset: the charset parameter in lower case, or "".
        boundary: the boundary parameter as given, or "".
        others: every other parameter, its name in lower case and its value as given, sorted by name.
    """

    essence: str
    charset: str = ""
    boundary: str = ""
    others: tuple[tuple[str, str], ...] = ()

    @property
    def others_text(self) -> str:
        """Return the other parameters as one text, different for different ones; empty if there are none."""
        return "".join([f";{len(name)}:{name}{len(value)}:{value}" for name, value in self.others])


def parse_media_type(value: str) -> MediaType | None:
    """Read a Content-Type value; None if it is malformed or gives a parameter twice.

    Args:
        value: the field's value as received.

    Source: RFC 9110, section 8.3.1.

    >>> parse_media_type('Application/JSON; charset="UTF-8"')
    MediaType(essence='application/json', charset='utf-8', boundary='', others=())
    >>> parse_media_type("json") is None
    True
    """
    essence = _ESSENCE(value)
    if essence is None:
        return None
    parameters = _parameters(value, essence.end(), unescape=True)
    if parameters is None:
        return None
    charset, boundary = parameters.pop("charset", "").lower(), parameters.pop("boundary", "")
    return MediaType(essence[1].lower(), charset, boundary, tuple(sorted(parameters.items())))


def _parameters(value: str, position: int, *, unescape: bool) -> dict[str, str] | None:
    """The parameters from `position` to the end by lower-case name; None if malformed or given twice."""
    found: dict[str, str] = {}
    while position < len(value):
        match = _PARAMETER(value, position)
        if match is None:
            return None
        position = match.end()
        if match[1] is None:
            continue
        name = match[1].lower()
        if name in found:
            return None
        quoted = match[3] or ""
        found[name] = match[2] or (_ESCAPED.sub(r"\1", quoted) if unescape else quoted)
    return found


class _State(Enum):
    START = auto()
    DELIMITER = auto()
    HEADERS = auto()
    CONTENT = auto()
    EPILOGUE = auto()
    FAILED = auto()


class MultipartDigest:
    r"""The digest of a multipart/form-data body by its parts, computed as the body streams through.

    It covers name, file name, media type and content of each part. `parameterised` tells whether a part's media type
    has parameters beyond charset and boundary, which did not count in Semel's first fingerprints.
    Parts are sorted by name, and parts of one name
    keep their order. Memory is bounded by the header limit and 64 bytes for each part of any size.

    Args:
        boundary: the boundary parameter of the body's media type, without the leading dashes.

    Source: RFC 7578, RFC 2046 section 5.1.

    >>> def digest(boundary):
    ...     body = MultipartDigest(boundary)
    ...     body.feed(b'--%b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--%b--\r\n' % (boundary, boundary))
    ...     return body.finish()
    >>> digest(b"one") == digest(b"two")
    True
    """

    __slots__ = (
        "_buffer",
        "_content",
        "_content_bytes",
        "_delimiter",
        "_part",
        "_parts",
        "_searched",
        "_state",
        "parameterised",
    )

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"--" + boundary
        self._state = _State.START if _BOUNDARY(boundary) else _State.FAILED
        self._buffer = bytearray()
        self._searched = 0
        self._parts: list[tuple[bytes, bytes]] = []
        self._part = _Part()
        self._content = hashlib.sha256()
        self._content_bytes = 0
        self.parameterised = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body, in pieces of any size."""
        self._buffer += chunk
        while self._advance():
            pass

    def finish(self) -> bytes | None:
        """Return the digest (32 bytes), or None if the body is malformed, ambiguous or over a limit. Call it once."""
        if self._state is not _State.EPILOGUE or bytes(self._buffer) not in (b"", b"\r\n"):
            return None
        self._parts.sort(key=_by_name)
        return hashlib.sha256(b"".join(digest for _, digest in self._parts)).digest()

    def _advance(self) -> bool:
        """Take one step; False when more bytes are needed."""
        match self._state:
            case _State.START:
                return self._start()
            case _State.DELIMITER:
                return self._after_delimiter()
            case _State.HEADERS:
                return self._headers()
            case _State.CONTENT:
                return self._content_step()
            case _State.EPILOGUE:
                return self._epilogue()
            case _State.FAILED:
                self._buffer.clear()
                return False

    def _move(self, state: _State, consumed: int) -> bool:
        del self._buffer[:consumed]
        self._searched = 0
        self._state = state
        return True

    def _fail(self) -> bool:
        self._state = _State.FAILED
        self._buffer.clear()
        return True

    def _start(self) -> bool:
        # A preamble is legal in mail and unheard of in forms: some parsers skip it, some refuse it.
        if len(self._buffer) < len(self._delimiter):
            return False
        if not self._buffer.startswith(self._delimiter):
            return self._fail()
        return self._move(_State.DELIMITER, len(self._delimiter))

    def _after_delimiter(self) -> bool:
        if len(self._buffer) < 2:
            return False
        ending = bytes(self._buffer[:2])
        if ending == b"--":
            return self._move(_State.EPILOGUE, 2)
        if ending != b"\r\n" or len(self._parts) >= PARTS_MAX:
            return self._fail()
        return self._move(_State.HEADERS, 2)

    def _headers(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", max(0, self._searched - 3))
        if end > HEADER_BYTES_MAX or (end < 0 and len(self._buffer) > HEADER_BYTES_MAX + 3):
            return self._fail()
        if end < 0:
            self._searched = len(self._buffer)
            return False
        part = _parse_part(bytes(self._buffer[:end]))
        if part is None:
            return self._fail()
        self._part = part
        self.parameterised = self.parameterised or part.parameterised
        self._content = hashlib.sha256()
        self._content_bytes = 0
        return self._move(_State.CONTENT, end + 4)

    def _content_step(self) -> bool:
        # Search for the dashes and the boundary without their line break: if anything else precedes them, some parsers
        # see a delimiter and some see content.
        found = self._buffer.find(self._delimiter, max(0, self._searched - len(self._delimiter) + 1))
        if found < 0:
            # Keep bytes that may turn out to be the line break and the beginning of a delimiter.
            taken = len(self._buffer) - len(self._delimiter) - 1
            if taken > 0:
                self._take(taken)
                del self._buffer[:taken]
            self._searched = len(self._buffer)
            return False
        if found < 2 or self._buffer[found - 2 : found] != b"\r\n":
            return self._fail()
        self._take(found - 2)
        if self._part.length not in (None, self._content_bytes):
            return self._fail()
        self._parts.append(self._part.digests(self._content.digest()))
        return self._move(_State.DELIMITER, found + len(self._delimiter))

    def _take(self, count: int) -> None:
        with memoryview(self._buffer) as view, view[:count] as taken:
            self._content.update(taken)
        self._content_bytes += count

    def _epilogue(self) -> bool:
        # At most one line break may follow; another parser could read anything else as a second body.
        if len(self._buffer) > 2:
            return self._fail()
        return False


def _by_name(part: tuple[bytes, bytes]) -> bytes:
    return part[0]


@dataclass(frozen=True, slots=True)
class _Part:
    """The header block of one part."""

    name: str = ""
    filename: str | None = None
    filename_extended: str | None = None
    media: str | None = None
    length: int | None = None
    parameterised: bool = False

    def digests(self, content: bytes) -> tuple[bytes, bytes]:
        """Return the name's hash, by which parts are sorted, and the hash of the whole part."""
        fields = (self.name, self.filename, self.filename_extended, self.media)
        framed = b"".join(b"-" if text is None else _frame(text.encode("latin-1")) for text in fields)
        return hashlib.sha256(self.name.encode("latin-1")).digest(), hashlib.sha256(framed + content).digest()


def _parse_part(block: bytes) -> _Part | None:
    """Read a header block; None if it is malformed, ambiguous or not representable here."""
    # Latin-1 keeps all bytes distinct; their meaning is not needed.
    fields: dict[str, str] = {}
    for line in block.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon or _NAME(name) is None or name.lower() in fields or not _CONTROLS.isdisjoint(value):
            return None
        fields[name.lower()] = value.strip(" \t")
    disposition = _disposition(fields.pop("content-disposition", ""))
    media = fields.pop("content-type", None)
    length = fields.pop("content-length", None)
    encoding = fields.pop("content-transfer-encoding", "binary").lower()
    # Another field might matter to a handler, but the digest would ignore it.
    if disposition is None or fields or encoding not in _IDENTITY_ENCODINGS:
        return None
    if length is not None and re.fullmatch("[0-9]{1,18}", length) is None:
        return None
    kind, parameterised = (None, False) if media is None else _part_media(media)
    return _Part(
        name=disposition["name"],
        filename=disposition.get("filename"),
        filename_extended=disposition.get("filename*"),
        media=kind,
        length=None if length is None else int(length),
        parameterised=parameterised,
    )


def _disposition(value: str) -> dict[str, str] | None:
    """Return the parameters of a Content-Disposition, with values as sent; None without a name."""
    kind = _DISPOSITION(value)
    if kind is None or _AMBIGUOUS_QUOTE in value:
        return None
    parameters = _parameters(value, kind.end(), unescape=False)
    if parameters is None or not parameters.get("name") or not parameters.keys() <= {"name", "filename", "filename*"}:
        return None
    return parameters


@lru_cache(maxsize=64)
def _part_media(value: str) -> tuple[str, bool]:
    """Return a part's media type in canonical form, and whether it has parameters beyond charset and boundary."""
    media = parse_media_type(value)
    if media is None:  # the prefix keeps a malformed value from looking like a well-formed one
        return f"?{value}", False
    return f"{media.essence};{media.charset}{media.others_text}", bool(media.others)


def _frame(value: bytes) -> bytes:
    return b"%d:%b" % (len(value), value)


FIELDS_MAX = 10_000
"""The most pairs a URL-encoded form may have and still be sorted; few frameworks take more than a tenth of it."""

_HEX = "0123456789abcdefABCDEF"
_UNESCAPED = {(high + low).encode(): bytes((int(high + low, 16),)) for high in _HEX for low in _HEX}


def form_canonical(body: bytes) -> bytes:
    """Return the canonical bytes of an application/x-www-form-urlencoded body.

    Escapes and `+` are decoded, empty pairs are dropped, and the pairs are sorted by name; pairs of one name keep
    their order. `a` and `a=` stay different, because some frameworks tell them apart. A body that parsers read
    differently (a broken escape, a bare semicolon, bytes beyond ASCII), or with more than 10,000 pairs, is kept as
    it is, under its own mark.

    Args:
        body: the form as received.

    Source: the WHATWG URL standard, application/x-www-form-urlencoded parsing.

    >>> form_canonical(b"b=1+2&a=%41")
    b'form:1:a1:A1:b3:1 2'
    >>> form_canonical(b"a=%41&b=1%202") == form_canonical(b"b=1+2&a=A")
    True
    >>> form_canonical(b"a=100%")
    b'raw:a=100%'
    """
    if not body.isascii() or b";" in body or body.count(b"&") >= FIELDS_MAX:
        return b"raw:" + body
    pairs: list[tuple[bytes, bytes]] = []
    try:
        for pair in body.split(b"&"):
            if pair:
                name, equals, value = pair.partition(b"=")
                name = _decode(name)
                pairs.append((name, _frame(name) + (_frame(_decode(value)) if equals else b"-")))
    except KeyError:
        # A broken escape: some parsers take it literally, some refuse it.
        return b"raw:" + body
    pairs.sort(key=_by_name)
    return b"form:" + b"".join(framed for _, framed in pairs)


def _decode(text: bytes) -> bytes:
    """Undo `+` and escapes; KeyError for a broken escape."""
    first, *rest = text.replace(b"+", b" ").split(b"%")
    if not rest:
        return first
    pieces = [first]
    for piece in rest:
        pieces += (_UNESCAPED[piece[:2]], piece[2:])
    return b"".join(pieces)


def form_values(body: bytes, media_type: str, name: str) -> list[str] | None:
    """Return the values of a form's fields of one name, in order; None if parsers read the form differently.

    Args:
        body: the whole form as received.
        media_type: its Content-Type, of either kind of form.
        name: of the field, in ASCII. A file under this name counts as no value that can be read: None.

    >>> form_values(b"sku=A-1&_key=k%2D1", "application/x-www-form-urlencoded", "_key")
    ['k-1']
    >>> form_values(b"_key=100%", "application/x-www-form-urlencoded", "_key") is None
    True
    """
    media = parse_media_type(media_type)
    try:
        if media is None:
            return None
        if media.essence == "application/x-www-form-urlencoded":
            return _pair_values(body, name.encode())
        if media.essence == "multipart/form-data":
            return _part_values(body, media.boundary.encode("latin-1"), name)
    except (KeyError, UnicodeDecodeError):
        return None
    return None


def _pair_values(body: bytes, name: bytes) -> list[str] | None:
    if not body.isascii() or b";" in body or body.count(b"&") >= FIELDS_MAX:
        return None
    pairs = [pair.partition(b"=") for pair in body.split(b"&") if pair]
    decoded = [(_decode(field), _decode(value)) for field, _, value in pairs]
    return [value.decode() for field, value in decoded if field == name]


def _part_values(body: bytes, boundary: bytes, name: str) -> list[str] | None:
    digest = MultipartDigest(boundary)
    digest.feed(body)
    if digest.finish() is None:
        return None
    values = []
    for piece in body.split(b"--" + boundary)[1:-1]:  # the digest has checked that each delimiter begins a line
        block, _, content = piece[2:-2].partition(b"\r\n\r\n")
        part = _parse_part(block)
        if part is None or part.name != name:
            continue
        if part.filename is not None or part.filename_extended is not None:
            return None
        values.append(content.decode())
    return values
