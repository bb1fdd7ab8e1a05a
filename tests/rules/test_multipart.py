"""Forms by their parts: what is one command, what is another, and what has no canonical form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.http.fingerprint.multipart import (
    FIELDS_MAX,
    HEADER_BYTES_MAX,
    PARTS_MAX,
    MediaType,
    MultipartDigest,
    form_canonical,
    parse_media_type,
)

PLAIN = settings(derandomize=True, deadline=None, max_examples=300)
Part = tuple[str, bytes]


def field(name: str, content: bytes = b"1", more: str = "") -> Part:
    return f'Content-Disposition: form-data; name="{name}"{more}', content


def body(*parts: Part, boundary: bytes = b"cut") -> bytes:
    written = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head.encode(), content) for head, content in parts)
    return written + b"--" + boundary + b"--\r\n"


def digest(raw: bytes, boundary: bytes = b"cut", step: int = 1 << 20) -> bytes | None:
    multipart = MultipartDigest(boundary)
    for start in range(0, len(raw), step):
        multipart.feed(raw[start : start + step])
    return multipart.finish()


BASE = body(field("a"), field("b", b"2"))

SAME: list[bytes] = [
    body(field("b", b"2"), field("a")),
    BASE.removesuffix(b"\r\n"),
    BASE.replace(b"Content-Disposition: form-data; ", b"content-DISPOSITION:Form-Data;"),
    BASE.replace(b'name="a"', b"NAME=a"),
    BASE.replace(b'name="a"', b'name="a"\r\nContent-Length: 1'),
    BASE.replace(b'name="a"', b'name="a"\r\nContent-Transfer-Encoding: 8BIT'),
]

OTHER: list[bytes] = [
    body(field("a")),
    body(field("a"), field("b", b"3")),
    body(field("a"), field("c", b"2")),
    body(field("a", b"2"), field("b", b"1")),
    body(field("a"), field("b", b"2"), field("b", b"2")),
    body(field("a"), field("b", b"2\r\n")),
    body(field("a"), field("b", b"2", '; filename="x"')),
    body(field("a"), field("b", b"2", '; filename="y"')),
    body(field("a"), field("b", b"2", '; filename=""')),
    body(field("a"), field("b", b"2", "; filename*=utf-8''x")),
    body(field("a"), field("b", b"2", "\r\nContent-Type: text/plain")),
    body(field("a"), field("b", b"2", "\r\nContent-Type: text/plain; charset=utf-8")),
    body(field("a"), field("b", b"2", "\r\nContent-Type: image/png")),
    body(field("a"), field("b", b"2", "\r\nContent-Type: broken")),
    body(field("a"), field("b", b"2", "\r\nContent-Type: ")),
    body(),
]

REFUSED: list[bytes] = [
    b"",
    b"--cut",
    b"--cut\r\n",
    b"\r\n" + BASE,
    b"preamble\r\n" + BASE,
    BASE.removesuffix(b"--\r\n"),
    BASE.removesuffix(b"\r\n--cut--\r\n"),
    BASE + b"epilogue",
    BASE + b"\r\n",
    BASE.removesuffix(b"\n"),
    BASE.replace(b"\r\n", b"\n"),
    BASE.replace(b"--cut\r\nContent", b"--cut \r\nContent", 1),
    BASE.replace(b"--cut\r\nContent", b"--cutting\r\nContent"),
    body(field("a", b"x\n--cut\r\n")),
    body(field("a", b"see --cut here")),
    body(field("a", b"--cut--")),
    body(("Content-Type: text/plain", b"1")),
    body(("", b"1")),
    body(("Content-Disposition: form-data", b"1")),
    body(("Content-Disposition: attachment; name=a", b"1")),
    body(field("")),
    body(field("a", more='; name="b"')),
    body(field("a", more="; size=3")),
    body(field("a", more='; filename="a\\"b"')),
    body(field("a", more='; filename="x')),
    body(field("a", more="\r\n folded")),
    body(field("a", more="\r\nno colon")),
    body(field("a", more="\r\nX : 1")),
    body(field("a", more="\r\nX-Custom: 1")),
    body(field("a", more="\r\nContent-Type: a/b\r\ncontent-type: a/c")),
    body(field("a", more="\r\nContent-Type: a/b\nX: 1")),
    body(field("a", more="\r\nContent-Transfer-Encoding: base64")),
    body(field("a", more="\r\nContent-Length: 2")),
    body(field("a", more="\r\nContent-Length: -1")),
    body(field("a" * HEADER_BYTES_MAX)),
    body(*[field("a")] * (PARTS_MAX + 1)),
]


def test_a_new_boundary_is_not_a_new_command() -> None:
    assert digest(BASE) is not None
    assert digest(BASE) == digest(body(field("a"), field("b", b"2"), boundary=b"-- a/b?"), b"-- a/b?")


@pytest.mark.parametrize("raw", SAME, ids=range(len(SAME)))
def test_the_same_parts_are_the_same_command(raw: bytes) -> None:
    assert raw != BASE
    assert digest(raw) == digest(BASE)


def test_other_parts_are_other_commands() -> None:
    digests = [digest(raw) for raw in [BASE, *OTHER]]
    assert None not in digests
    assert len(set(digests)) == len(digests)


def test_parts_of_one_name_keep_their_order() -> None:
    assert digest(body(field("a"), field("a", b"2"))) != digest(body(field("a", b"2"), field("a")))
    assert digest(body(field("a"), field("a", b"2"), field("b"))) == digest(
        body(field("b"), field("a"), field("a", b"2"))
    )


def test_bytes_that_move_between_fields_change_the_fingerprint() -> None:
    pairs = [
        (field("a", b"bc"), field("ab", b"c")),
        (field("a", more='; filename="b"'), field("a", more="; filename*=b")),
        (field("a", b"", '; filename="b"'), field("a", b"b", '; filename=""')),
    ]
    for one, other in pairs:
        assert digest(body(one)) != digest(body(other))


@pytest.mark.parametrize("step", [1, 3, 1 << 20])
@pytest.mark.parametrize("raw", REFUSED, ids=range(len(REFUSED)))
def test_an_ambiguous_body_has_no_canonical_form(raw: bytes, step: int) -> None:
    assert digest(raw, step=step) is None


@pytest.mark.parametrize("boundary", [b"", b"a ", b"a" * 71, b"a\r\n", b"\xc3\xa9", b'"'])
def test_an_impossible_boundary_has_no_form(boundary: bytes) -> None:
    assert digest(body(field("a"), boundary=boundary), boundary) is None


def test_the_limits_themselves_are_allowed() -> None:
    assert digest(body(*[field("a")] * PARTS_MAX)) is not None
    frame = len(field("")[0])
    assert digest(body(field("a" * (HEADER_BYTES_MAX - frame)))) is not None
    assert digest(body(field("a" * (HEADER_BYTES_MAX - frame + 1)))) is None


def test_a_large_part_is_never_held() -> None:
    multipart = MultipartDigest(b"cut")
    multipart.feed(body(field("a", b""))[: -len(b"\r\n--cut--\r\n")])
    for _ in range(64):
        multipart.feed(b"\r\n--cu" * 10_000)
        assert len(multipart._buffer) < 100
    multipart.feed(b"\r\n--cut--")
    assert multipart.finish() == digest(body(field("a", b"\r\n--cu" * 640_000)))


def test_an_abandoned_body_holds_no_memory() -> None:
    multipart = MultipartDigest(b"cut")
    for _ in range(10):
        multipart.feed(b"no form" * 1000)
    assert not multipart._buffer
    assert multipart.finish() is None


CONTENTS = st.lists(st.sampled_from([b"\r\n", b"--", b"-", b"cu", b"\r", b"\n", b"x", b"\x00", b"--cu"]), max_size=8)


@PLAIN
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "é"]), CONTENTS.map(b"".join)), max_size=4),
    st.integers(1, 40),
    st.integers(0, 30),
)
def test_chunk_boundaries_make_no_difference(fields: list[tuple[str, bytes]], step: int, cut: int) -> None:
    raw = body(*[field(name, content) for name, content in fields])
    raw = raw[: len(raw) - cut]
    assert digest(raw, step=step) == digest(raw) == digest(raw, step=1)


@PLAIN
@given(st.binary(max_size=60), st.integers(1, 9))
def test_random_input_is_refused_without_an_exception(noise: bytes, step: int) -> None:
    assert digest(b"--cut\r\n" + noise, step=step) is None


# --- URL-encoded forms ---


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1&b=2", b"b=2&a=1"),
        (b"a=1+2", b"a=1%202"),
        (b"a=%41%5a", b"%61=AZ"),
        (b"a=%5A", b"a=%5a"),
        (b"a=1&&b=2&", b"a=1&b=2"),
        (b"", b"&"),
        (b"a=b=c", b"a=b%3Dc"),
        (b"a=x&a=y&b=", b"b=&a=x&a=y"),
    ],
)
def test_spellings_of_one_form(one: bytes, other: bytes) -> None:
    assert form_canonical(one) == form_canonical(other)


def test_other_forms_are_other_commands() -> None:
    forms = [b"", b"a", b"a=", b"a=1", b"a=2", b"b=1", b"a=1&a=2", b"a=2&a=1", b"a=1%26b=2", b"a=1&b=2", b"a=1;b=2"]
    forms += [
        b"a=1%3Bb=2",
        b"a=%",
        b"a=%25",
        b"a=%4",
        b"a=%zz",
        b"a=%C3%A9",
        b"a=\xc3\xa9",
        b"a=%2B",
        b"a=+",
        b"=",
        b"=1",
    ]
    forms += [b"a=3:b", b"ab=1", b"a=b1"]
    assert len({form_canonical(form) for form in forms}) == len(forms)


@pytest.mark.parametrize("form", [b"a=%", b"a=%4", b"a=%zz", b"%=1", b"a;b", b"\xff", b"a&" * FIELDS_MAX])
def test_an_ambiguous_form_counts_byte_by_byte(form: bytes) -> None:
    assert form_canonical(form) == b"raw:" + form


@PLAIN
@given(st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), max_size=5))
def test_every_escaping_has_one_canonical_form(pairs: list[tuple[bytes, bytes]]) -> None:
    def escape(text: bytes, sparing: bool) -> bytes:
        if sparing and re.fullmatch(rb"[A-Za-z0-9 ]*", text):
            return text.replace(b" ", b"+")
        return b"".join(b"%%%02x" % byte for byte in text)

    written = [b"&".join(escape(n, s) + b"=" + escape(v, s) for n, v in pairs) for s in (True, False)]
    assert form_canonical(written[0]) == form_canonical(written[1])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("application/json", MediaType("application/json")),
        (" Application/JSON ; Charset=UTF-8 ", MediaType("application/json", "utf-8")),
        ('text/plain;charset="utf\\-8";x=1', MediaType("text/plain", "utf-8", "", (("x", "1"),))),
        ("application/json;", MediaType("application/json")),
        ("multipart/form-data; boundary=AbC", MediaType("multipart/form-data", "", "AbC")),
        ('multipart/form-data; boundary="a b"', MediaType("multipart/form-data", "", "a b")),
        ("", None),
        ("json", None),
        ("a/b, c/d", None),
        ("a/b; charset", None),
        ("a/b; charset=x; charset=x", None),
        ('a/b; charset="x', None),
        ("a/b; ch\u00e9=x", None),
    ],
)
def test_media_types_are_parsed(value: str, expected: MediaType | None) -> None:
    assert parse_media_type(value) == expected


# --- what is stored may not change ---

HEAD = b'--b\r\nContent-Disposition: form-data; name="a"; filename="x.txt"\r\nContent-Type: text/plain\r\n'
TAIL = b'\r\n--b\r\nContent-Disposition: form-data; name="c"\r\n\r\n\r\n--b--\r\n'
PINNED = "e1887d9b67ef9fdfc06aa439e194880b7dbc5008480012b96cd28052887b46b9"


def in_pieces(whole: bytes, size: int) -> str | None:
    parts = MultipartDigest(b"b")
    for at in range(0, len(whole), size):
        parts.feed(whole[at : at + size])
    found = parts.finish()
    return None if found is None else found.hex()


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("length", [b"", b"Content-Length: 12\r\n", b"Content-Transfer-Encoding: BINARY\r\n"])
def test_the_digest_of_a_form_does_not_change_between_releases(size: int, length: bytes) -> None:
    """Pinned: a record is compared with it for as long as its tombstone lasts. The length is of all pieces."""
    assert in_pieces(HEAD + length + b"\r\none two four" + TAIL, size) == PINNED
    assert in_pieces(HEAD + b"Content-Length: 4\r\n\r\none two four" + TAIL, size) is None


def test_the_canonical_form_of_pairs_does_not_change_between_releases() -> None:
    assert form_canonical(b"b=2&a&a=&c=%20+x") == b"form:1:a-1:a0:1:b1:21:c3:  x"
    assert form_canonical(b"") == b"form:"
