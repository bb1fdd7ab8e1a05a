"""Multipart bodies, against python-multipart, and against what must follow for rebuilt and changed bodies."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from semel.http.fingerprint.fingerprinter import Facts, Fingerprinter, Recipe
from semel.http.fingerprint.multipart import MultipartDigest
from tests.fuzz.reading import pieces_of

TOKENS = (
    *(b"--cut\r\n", b"--cut--\r\n", b"--cut--", b"--cut", b"\r\n", b"\r\n\r\n", b"\n", b"--", b"x", b"\r\n--cut\r\n"),
    *(b'Content-Disposition: form-data; name="a"', b'Content-Disposition: form-data; name="b"; filename="f.txt"'),
    *(b"content-disposition:form-data;name=a", b'; filename="x"', b"; filename*=utf-8''x", b"Content-Type: text/plain"),
    *(b"Content-Type: image/png; charset=UTF-8", b"Content-Length: 1", b"Content-Transfer-Encoding: base64", b"X-A: b"),
    *(b'--cut\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--cut--\r\n', b'name="\\"', b"\xc3\xa9", b"\x00"),
    *(b'--cut\r\nContent-Disposition: form-data; name="b"\r\n\r\n2\r\n', b'"', b";", b"=", b"boundary", b"--other\r\n"),
)
BOUNDARY = b"cut"
OTHER = b"0ther-boundary.of/many=bytes"
_BYTES_MAX = 4096
_FINGERPRINTS = Fingerprinter(Recipe())


@dataclass
class Part:
    """One part as the reference reads it: header lines in their order, and the content."""

    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    content: bytes = b""

    def build(self, boundary: bytes) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % header for header in self.headers)
        return b"--%b\r\n%b\r\n%b\r\n" % (boundary, lines, self.content)


def one(data: bytes) -> None:
    """Judge one body whose boundary is `cut`."""
    body = data[:_BYTES_MAX]
    found = digest([body], BOUNDARY)
    assert digest(pieces_of(body), BOUNDARY) == found, "it matters how the body is cut into chunks"
    _check_fingerprint(body, found)
    if found is None:
        return
    parts = reference(body)
    assert parts is not None, "a body that the reference refuses has a canonical form"
    if any(OTHER in part.content for part in parts):
        return
    assert digest([build(parts, OTHER)], OTHER) == found, "a new boundary is another command"
    _check_changes(parts, found)
    named = [_named_as_read(part) for part in parts]
    if all(part is not None for part in named):
        assert digest([build([part for part in named if part is not None], OTHER)], OTHER) == found


def digest(pieces: list[bytes], boundary: bytes) -> bytes | None:
    """The digest of a body in pieces."""
    reading = MultipartDigest(boundary)
    for piece in pieces:
        reading.feed(piece)
    return reading.finish()


def build(parts: list[Part], boundary: bytes) -> bytes:
    """The parts as a body, spelled anew."""
    return b"".join(part.build(boundary) for part in parts) + b"--" + boundary + b"--\r\n"


def reference(body: bytes) -> list[Part] | None:
    """The parts as python-multipart reads them; None where it refuses the body or finds no end."""
    parts: list[Part] = []
    name: list[bytes] = []
    value: list[bytes] = []
    ended: list[bool] = []

    def header_end() -> None:
        parts[-1].headers.append((b"".join(name), b"".join(value)))
        name.clear()
        value.clear()

    def content(chunk: bytes, start: int, end: int) -> None:
        parts[-1].content += chunk[start:end]

    parser = MultipartParser(
        BOUNDARY,
        {
            "on_part_begin": lambda: parts.append(Part()),
            "on_part_data": content,
            "on_header_field": lambda chunk, start, end: name.append(chunk[start:end]),
            "on_header_value": lambda chunk, start, end: value.append(chunk[start:end]),
            "on_header_end": header_end,
            "on_end": lambda: ended.append(True),
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError:
        return None
    return parts if ended else None


def _check_changes(parts: list[Part], found: bytes) -> None:
    for at, part in enumerate(parts):
        sized = any(name.lower() == b"content-length" for name, _ in part.headers)
        changed = Part(part.headers, part.content + b"x")
        assert digest([build([*parts[:at], changed, *parts[at + 1 :]], OTHER)], OTHER) != found
        assert digest([build([*parts[:at], *parts[at + 1 :]], OTHER)], OTHER) != found, "a part is not covered"
        if part.content:
            flipped = Part(part.headers, part.content[:-1] + bytes([part.content[-1] ^ 1]))
            other = digest([build([*parts[:at], flipped, *parts[at + 1 :]], OTHER)], OTHER)
            assert other != found
            assert other is not None or not sized or OTHER in flipped.content


def _named_as_read(part: Part) -> Part | None:
    """The part with its disposition spelled from what the reference makes of it; None where that may differ."""
    headers = []
    for name, value in part.headers:
        if name.lower() != b"content-disposition":
            headers.append((name, value))
            continue
        kind, options = parse_options_header(value)
        # Backslashes are undone by some readers only, and extended names are dropped by this one.
        if (
            kind.strip() != b"form-data"
            or b"\\" in value
            or b"*" in value
            or not options.keys() <= {b"name", b"filename"}
        ):
            return None
        spelt = b"".join(b'; %b="%b"' % option for option in options.items())
        headers.append((b"Content-Disposition", b"form-data" + spelt))
    return Part(headers, part.content)


def _check_fingerprint(body: bytes, found: bytes | None) -> None:
    """Through the fingerprint: what has no canonical form counts byte by byte."""
    facts = _facts(BOUNDARY)
    made = _FINGERPRINTS.digest(facts, body)
    hashing = _FINGERPRINTS.begin(facts)
    for piece in pieces_of(body):
        hashing.feed(piece)
    assert hashing.finish() == made
    if found is None:
        assert _FINGERPRINTS.digest(facts, body + b"\n") != made
        if body:
            assert _FINGERPRINTS.digest(facts, body[:-1] + bytes([body[-1] ^ 1])) != made
    else:
        assert _FINGERPRINTS.digest(_facts(b"another"), body) != made


def _facts(boundary: bytes) -> Facts:
    return Facts(
        operation="upload",
        method="POST",
        path_params=(),
        query=b"",
        tenant="acme",
        caller="alice",
        media_type=f"multipart/form-data; boundary={boundary.decode()}",
    )
