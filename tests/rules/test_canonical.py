"""Canonical JSON against tables, and against a second implementation that shares nothing with it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.errors import RequestTooLarge
from semel.http.fingerprint import canonical
from semel.http.fingerprint.canonical import canonical_json, select_members
from semel.http.fingerprint.json_check import check_json
from tests.rules.slow_canonical import depth_of, slow_canonical

PLAIN = settings(derandomize=True, deadline=None, max_examples=600)


@pytest.fixture(params=["with orjson", "without"])
def _each_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    canonical.plain_reader.cache_clear()
    if request.param == "without":
        monkeypatch.setattr(importlib, "import_module", _absent)
    yield
    canonical.plain_reader.cache_clear()


def _absent(name: str) -> None:
    raise ImportError(name)


CANONICAL: list[tuple[bytes, bytes]] = [
    (b"{}", b"{}"),
    (b" [ ] ", b"[]"),
    (b'{"b":1,"a":2}', b'{"a":2,"b":1}'),
    (b'{"b": [1, 2, {"d": null, "c": true}], "a": false}', b'{"a":false,"b":[1,2,{"c":true,"d":null}]}'),
    (b'\t\r\n"x"\n', b'"x"'),
    (b"1", b"1"),
    (b"-0", b"-0"),
    (b"[-0,  1]", b"[-0,1]"),
    (b"[-0.0,0.0,-0e1,0E0]", b"[-0.0,0.0,-0e1,0E0]"),
    (b"[1,1.0,1e0,1E+0,10e-1]", b"[1,1.0,1e0,1E+0,10e-1]"),
    (b"9007199254740993", b"9007199254740993"),
    (b"[9007199254740992,9007199254740993]", b"[9007199254740992,9007199254740993]"),
    (b"[0.1,0.1000000000000000055]", b"[0.1,0.1000000000000000055]"),
    (b"[1e400,-1e-400,1E9999999999]", b"[1e400,-1e-400,1E9999999999]"),
    (b"[" + b"9" * 5000 + b"]", b"[" + b"9" * 5000 + b"]"),
    (
        b'{"card":"4111111111111111","at":"2024-02-29T12:00:00.000Z"}',
        b'{"at":"2024-02-29T12:00:00.000Z","card":"4111111111111111"}',
    ),
    (b'["\\u0041\\/\\u00e9"]', '["A/é"]'.encode()),
    (b'["\\u0000\\u001F\\b\\f\\n\\r\\t\\"\\\\\\u007f"]', b'["\\u0000\\u001f\\b\\f\\n\\r\\t\\"\\\\\x7f"]'),
    (b'["\x7f\xe2\x80\xa8"]', b'["\x7f\xe2\x80\xa8"]'),
    (b'"\\ud83d\\ude00"', "😀".join('""').encode()),
    # RFC 8785, 3.2.3: in UTF-16 the emoji comes before U+FB33, by code points after it.
    (
        '{"\ufb33":1,"😀":2,"ö":3,"€":4,"\\r":5,"1":6,"\x80":7}'.encode(),
        '{"\\r":5,"1":6,"\x80":7,"ö":3,"€":4,"😀":2,"\ufb33":1}'.encode(),
    ),
    (b'{"\\ufb33":1,"\\ud83d\\ude00":2}', '{"😀":2,"\ufb33":1}'.encode()),
    (b'{"":1,"a":{"":2}}', b'{"":1,"a":{"":2}}'),
    (b'{"a:":1,"b":": 1.5, 1234567890123456"}', b'{"a:":1,"b":": 1.5, 1234567890123456"}'),
]

NO_CANONICAL: list[bytes] = [
    b"",
    b" ",
    b"{",
    b"[1,]",
    b'{"a":1,}',
    b"{'a':1}",
    b"[01]",
    b"[1.]",
    b"[.5]",
    b"[+1]",
    b"[1e]",
    b"[--1]",
    b"[0x1]",
    b"[1_0]",
    b"NaN",
    b"[NaN]",
    b"[Infinity]",
    b"[-Infinity]",
    b"nul",
    b"[True]",
    b"{}{}",
    b"[] x",
    b"1 2",
    b'["a\nb"]',
    b'["\x00"]',
    b'["\\x"]',
    b'["\\u12"]',
    b'["\\u 123"]',
    b'["\\u+123"]',
    b'["\\u1_23"]',
    b'["\\ud800"]',
    b'["\\udc00\\ud800"]',
    b'{"\\ud800":1}',
    b'["\\ud83d\\u0041"]',
    b'{"a":1,"a":1}',
    b'{"a":1,"\\u0061":2}',
    b'{"a":{"b":1,"b":2},  "c":3}',
    b'[{"a":1,"a":[10,20]}, 1]',
    b"\xef\xbb\xbf{}",
    b'["\xff"]',
    b'["\xed\xa0\x80"]',
    b'["\xc0\xaf"]',
    "[\u0661]".encode(),
    "[1\u0661]".encode(),
    "[\uff11]".encode(),
    b"[1]\x00",
    b"\x0b[]",
    b"[\xc2\xa01]",
    "{}".encode("utf-16"),
]


@pytest.mark.usefixtures("_each_path")
@pytest.mark.parametrize(("body", "expected"), CANONICAL, ids=range(len(CANONICAL)))
def test_one_form_for_every_spelling(body: bytes, expected: bytes) -> None:
    assert canonical_json(body) == expected == slow_canonical(body)
    assert canonical_json(expected) == expected


@pytest.mark.usefixtures("_each_path")
@pytest.mark.parametrize("body", NO_CANONICAL, ids=range(len(NO_CANONICAL)))
def test_invalid_or_ambiguous_json_has_no_canonical_form(body: bytes) -> None:
    assert canonical_json(body) is None
    assert slow_canonical(body) is None


@pytest.mark.usefixtures("_each_path")
def test_depth_is_limited_before_parsing() -> None:
    assert canonical_json(b"[" * 64 + b"]" * 64) == b"[" * 64 + b"]" * 64
    assert canonical_json(b'{"a":' * 3 + b"1" + b"}" * 3, depth_max=3) is not None
    for body in (b"[" * 65 + b"]" * 65, b"[" * 200_000, b'{"a":' * 65, b"[[]," * 65):
        with pytest.raises(RequestTooLarge, match="64 levels"):
            canonical_json(body)
    with pytest.raises(RequestTooLarge, match="2 levels"):
        select_members(b'{"a":[[1]]}', ("a",), depth_max=2)


@pytest.mark.usefixtures("_each_path")
def test_unbalanced_brackets_do_not_count_as_depth() -> None:
    for body in (b"[" + b"[]," * 100 + b"1]", b'["' + b"[" * 100 + b'"]', b'["\\"' + b"{" * 100 + b'"]'):
        assert canonical_json(body, depth_max=2) == body
    assert canonical_json(b'"' + b'\\"[' * 100, depth_max=2) is None


def test_a_recursion_error_refuses_and_never_changes_the_form() -> None:
    body = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(RequestTooLarge, match="this process"):
        canonical_json(body, depth_max=200_000)


def test_the_fast_path_handles_usual_requests() -> None:
    quick = canonical.plain_reader()
    assert quick is not None
    document = {"id": "8e03978e-40d5-43dd-bc93-0894a57f9324", "at": "2024-02-29T12:00:00Z", "n": [-10, 0, 999]}
    for body in (json.dumps(document), json.dumps(document, indent=2), json.dumps(document, separators=(",", ":"))):
        assert quick(body.encode()) == canonical._exact(body.encode())
    for body in (
        '{"who":"Ana Pérez","how":"\\u00e9\\n\\"\\/","名":"😀"}',
        '{"id":123456789012345678, "at": "1.50"}',
    ):
        assert quick(body.encode()) == canonical._exact(body.encode())
    for body in ('{"a":1.5}', '{"a":-0}', '{"a":1234567890123456789}', '{"a":1,"a":1}', '["\\ud800"]', "1", "[1"):
        assert quick(body.encode()) is None


def test_the_fast_path_leaves_what_it_cannot_be_sure_of() -> None:
    quick = canonical.plain_reader()
    assert quick is not None
    for body in (
        '{"דּ":1,"😀":2}',  # these two are sorted otherwise in UTF-16
        '{"\\ufb33":1,"\\ud83d\\ude00":2}',
        '{"a":1, "a":1, "b":"\\u003a"}',  # the colon of a dropped member is there again
        '{"a":1,"\\u0061":2}',
    ):
        assert quick(body.encode()) is None, body


def test_usual_json_has_any_numbers_and_passes_every_check_of_a_body() -> None:
    for body in (b'{"b": 1.50, "a": [-0, 1e3, 1E-400, 12345678901234567890]}', '["é", "\\u00e9", 0.1]'.encode()):
        assert canonical.usual_json(body, 64) == canonical._exact(body)
        assert canonical.usual_json(body, 64) is not None
        check_json(body, 64)
    for body in (
        b"[1e999]",
        b"[" + b"9" * 5000 + b"]",
        b'{"a":1.5,"a":1}',
        b"[NaN]",
        b'["\\ud800", 1.5]',
        b"[1.5",
        b"",
    ):
        assert canonical.usual_json(body, 64) is None
    assert canonical.usual_json(b"[[[1.5]]]", 2) is None
    assert canonical.usual_json(b"[" * 100_000 + b"]" * 100_000, 200_000) is None


def test_another_module_named_orjson_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impostor:
        OPT_SORT_KEYS = 0

        @staticmethod
        def loads(body: bytes) -> object:
            return json.loads(body)

        @staticmethod
        def dumps(value: object, option: int) -> bytes:
            return json.dumps(value).encode()

    canonical.plain_reader.cache_clear()
    monkeypatch.setattr(importlib, "import_module", lambda name: Impostor)
    assert canonical.plain_reader() is None
    canonical.plain_reader.cache_clear()


def test_a_risky_number_is_always_detected() -> None:
    for number in ("1.5", "-1.5", "0e1", "10E2", "-0", "-0.0", "1" * 19, "-" + "9" * 20):
        for before in ("[", "[ ", "[\t", "[\n", "[\r", "[1,", '{"a":', '{"a": '):
            for after in ("", "]", ",1]", " ]", "\n}"):
                assert canonical._PLAIN((before + number + after).encode()) is None
    assert canonical._PLAIN(b'{"a":[-10,0,999999999999999],"b":"8e-0.5 4111111111111111"}') is not None


def test_plain_json_passes_every_check_of_a_body() -> None:
    for body in (b'{"a":[-10,0,999999999999999],"b":"NaN"}', b'[ "]", {"deep": [[]]} ]'):
        assert canonical.plain_json(body, 64) == canonical._exact(body)
        check_json(body, 64)
    for body in (
        b"[NaN]",
        b"[1e999]",
        b'["\\ud800"]',
        b"[",
        b'{"a":1,"a":1}',
        b"\xef\xbb\xbf[]",
        b"7",
        b"",
        b'["\xff"]',
    ):
        assert canonical.plain_json(body, 64) is None
    assert canonical.plain_json(b"[[[]]]", 2) is None


# --- documents as text: odd numbers, escapes, names that sort differently, names given twice ---

INTEGERS = ["0", "-0", "1", "-1", "10", "-10", "7", "100", "123456789012345", "999999999999999", "-999999999999999"]
LONG = ["1234567890123456", "9007199254740993", "18446744073709551616"]
FRACTIONS = ["0.0", "-0.0", "1.0", "1.5e3", "1E5", "-2e-7", "1e400", "0e0"]
NUMBERS = st.sampled_from([*INTEGERS, *LONG, *FRACTIONS]) | st.integers().map(str)
ASCII = ["a", "b", "e1", "E", "1.5", "-0", ":", ",", "[", "{", "}", " ", ": 1e5", "0123456789012345", "~", "\x7f", "/"]
BEYOND = ["é", "€", "\ufb33", "\uffff", "😀", "\U00010000", "\u2028"]
ESCAPED = ["\\n", "\\u0041", "\\u00E9", "\\ud83d\\ude00", "\\uFB33", '\\"', "\\\\", "\\/", "\\u0000", "\\u001f", "\\t"]
LETTERS = st.sampled_from([*ASCII, *BEYOND, *ESCAPED])
BROKEN_LETTERS = LETTERS | st.sampled_from(["\\ud800", "\\udc00", "\\x", "\n", "\x00", "\\u12"])


def strings(letters: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(letters, max_size=4).map(lambda parts: '"' + "".join(parts) + '"')


def documents(letters: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    blank = st.sampled_from(["", "", "", " ", "\n  ", "\t", "\r\n"])
    leaf = NUMBERS | strings(letters) | st.sampled_from(["true", "false", "null"])

    def nest(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        item = st.tuples(blank, inner, blank).map("".join)
        member = st.tuples(blank, strings(letters), blank, st.just(":"), item).map("".join)
        array = st.lists(item, max_size=4).map(lambda items: "[" + ",".join(items) + "]")
        return array | st.lists(member, max_size=5).map(lambda members: "{" + ",".join(members) + "}")

    return st.recursive(leaf, nest, max_leaves=15)


def agree(body: bytes, depth_max: int) -> None:
    expected: bytes | None
    try:
        expected = slow_canonical(body, depth_max)
    except RequestTooLarge:
        with pytest.raises(RequestTooLarge):
            canonical_json(body, depth_max=depth_max)
        return
    assert canonical_json(body, depth_max=depth_max) == expected
    assert canonical._exact(body) == expected
    quick = canonical.plain_reader()
    assert quick is not None
    for found in (quick(body, depth_max), canonical.usual_json(body, depth_max)):
        assert found in (None, expected)
        if found is not None:
            check_json(body, depth_max)  # does not refuse it


@PLAIN
@given(documents(LETTERS), st.sampled_from([2, 64]))
@example('{"a":-0,  "b":1}', 64)
@example('{"a":[1,1.0],"b":"😀","\ufb33":0}', 64)
def test_the_two_implementations_agree(document: str, depth_max: int) -> None:
    agree(document.encode(), depth_max)


@PLAIN
@given(documents(BROKEN_LETTERS), st.integers(0, 60), st.integers(0, 60))
def test_both_implementations_agree_on_broken_documents(document: str, start: int, end: int) -> None:
    body = document.encode()
    agree(body, 64)
    agree(body[: len(body) - end], 64)
    agree(body[:start] + body[start + 1 :], 64)


@PLAIN
@given(
    st.text('{}[]":,\\u0dD8-+.eE19 \n\tntrue', max_size=30) | st.binary(max_size=20).map(lambda b: b.decode("latin-1"))
)
def test_fast_and_slow_paths_agree_on_random_input(noise: str) -> None:
    agree(noise.encode("latin-1", "replace"), 3)


@PLAIN
@given(
    st.recursive(
        st.integers(-(10**17), 10**17) | st.text(st.characters(max_codepoint=127), max_size=6) | st.booleans(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abXY1.:", max_size=3), inner, max_size=4),
    ),
    st.sampled_from([None, (",", ":"), (", ", ": "), (" ,", " :")]),
)
def test_both_implementations_agree_on_output_of_json_libraries(
    value: object, separators: tuple[str, str] | None
) -> None:
    agree(json.dumps(value, separators=separators, ensure_ascii=False).encode(), 64)


@PLAIN
@given(st.text('[]{}"\\a', max_size=40))
def test_depth_is_counted_alike(text: str) -> None:
    depth = depth_of(text.encode())
    canonical._refuse_deep(text.encode(), depth)
    if depth:
        with pytest.raises(RequestTooLarge):
            canonical._refuse_deep(text.encode(), depth - 1)


@pytest.mark.parametrize(
    ("body", "members", "expected"),
    [
        (b'{"b":1.0,"a":"\\u0041","c":0}', ("a", "b"), b'{"a":"A","b":1.0}'),
        (b'{"b":{"y":1,"x":[2]}}', ("b",), b'{"b":{"x":[2],"y":1}}'),
        (b'{"a":null}', ("a",), b'{"a":null}'),
        (b'{"b":1}', ("a",), b"{}"),
        (b'{"a":{"b":{"c":7,"d":8}}}', ("a.b.c",), b'{"a.b.c":7}'),
        (b'{"a":5}', ("a.b",), b"{}"),
        (b'{"a":[{"b":1},{"b":2}]}', ("a.1.b",), b'{"a.1.b":2}'),
        (b'{"a":[1,2]}', ("a.2", "a.01", "a.-1", "a.x", "a." + "9" * 5000), b"{}"),
        (b'{"a.b":1,"a~b":2,"a":{"b":3}}', ("a~1b", "a~0b", "a.b"), b'{"a.b":3,"a~0b":2,"a~1b":1}'),
        (b'{"a":{"1":2}}', ("a.1",), b'{"a.1":2}'),
        (b'{"a":[1]}', ("a.\u00b2", "a.\u0661"), b"{}"),
        (b"[1]", ("a",), None),
        (b"null", ("a",), None),
        (b'{"a":1,"x":1,"x":2}', ("a",), None),
        (b'{"a":1,"x":"\\ud800"}', ("a",), b'{"a":1}'),
        (b'{"a":"\\ud800"}', ("a",), None),
        (b'{"a":1', ("a",), None),
    ],
)
def test_only_the_named_members_count(body: bytes, members: tuple[str, ...], expected: bytes | None) -> None:
    assert select_members(body, members, depth_max=64) == expected
