"""Every malformed request gets its documented answer, nothing runs, nothing is stored. On ASGI and WSGI alike."""

from __future__ import annotations

from typing import Any

import pytest

from semel.http.exchange import RETRY_BYTES_MAX
from semel.http.fingerprint.fingerprinter import DigestField, Members, Recipe
from semel.http.routing import Operation
from semel.keys import KeyFormat
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import ALICE, KEY, Reply, Web

MISSING, INVALID = "MISSING_IDEMPOTENCY_KEY", "INVALID_IDEMPOTENCY_KEY"
TOO_LARGE, CONTRADICTS = "IDEMPOTENCY_REQUEST_TOO_LARGE", "IDEMPOTENCY_REQUEST_INVALID"


def assert_refused(web: Web, status: int, code: str, **request: Any) -> dict[str, Any]:
    answer = web.call(**request)
    assert (answer.status, answer.code) == (status, code)
    assert web.seen == []
    assert web.records() == []
    key = request.get("key", KEY)
    assert key is None or len(key) < 6 or key.encode("latin-1") not in answer.body
    return answer.problem


@pytest.mark.parametrize(
    "key",
    [
        "",
        "   ",
        '""',
        "a b",
        '"a b"',
        '"open',
        '"a" b',
        'a"b"c',
        "a,b,c,d,e,f",
        "caf\xe9-caf\xe9",
        "nul\x00nul",
        "tab\tbed-tab",
        "del\x7fdel",
        "semi;colon",
        "k" * 256,
        '"' + "k" * 256 + '"',
        '"' + "k" * 9000 + '"',
        '"bad\\escape"',
    ],
)
def test_a_malformed_key_is_refused(web: Web, key: str) -> None:
    problem = assert_refused(web, 400, INVALID, key=key)
    assert (problem["retryable"], problem["keyAction"]) == (False, "new")


def test_a_missing_key_is_refused(web: Web) -> None:
    problem = assert_refused(web, 400, MISSING, key=None)
    assert problem["keyAction"] == "new"


def test_several_keys_even_if_they_are_the_same(web: Web) -> None:
    assert_refused(web, 400, INVALID, headers=[("Idempotency-Key", KEY)])


@pytest.mark.parametrize("key", ["1", "no-uuid-but-long-enough-to-be-one-000"])
def test_a_key_of_another_format(make_web: MakeWeb, key: str) -> None:
    assert_refused(make_web(policy=Policy(key_format=KeyFormat(uuid=True))), 400, INVALID, key=key)


def test_both_spellings_of_a_key_are_one_key(web: Web) -> None:
    assert not web.call(key="one-and-the-same").replayed
    assert web.call(key='"one-and-the-same"').replayed
    assert web.call(key='"one-and-the-same";v=1').replayed


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"x" * 101, []),
        ([b"x" * 60, b"x" * 60], []),
        (b"", [("Content-Length", str(RETRY_BYTES_MAX + 1))]),
        (b"", [("Content-Length", "9" * 40)]),
    ],
)
def test_a_body_that_is_too_large(make_web: MakeWeb, body: Any, headers: Any) -> None:
    web = make_web(policy=Policy(body_bytes_max=100))
    assert assert_refused(web, 413, TOO_LARGE, body=body, headers=headers)["keyAction"] == "keep"


@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
@pytest.mark.parametrize("body", [b"1" * 100, [b"1" * 60, b"1" * 40]], ids=["whole", "in pieces"])
def test_a_body_as_large_as_allowed(make_web: MakeWeb, body: Any, media_type: str) -> None:
    web = make_web(policy=Policy(body_bytes_max=100))
    assert web.call(body=body, headers=[("Content-Type", media_type)]).status == 201
    assert web.seen[0].body == b"1" * 100


def test_a_body_that_is_announced_as_large_as_is_read(make_web: MakeWeb) -> None:
    """One byte more is refused by its Content-Length alone, see above."""
    web = make_web(policy=Policy(body_bytes_max=RETRY_BYTES_MAX))
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(RETRY_BYTES_MAX))]
    assert web.call(body=b"1" * RETRY_BYTES_MAX, headers=headers).status == 201


def test_json_nested_too_deep(web: Web) -> None:
    assert_refused(web, 413, TOO_LARGE, body=b"[" * 5000 + b"]" * 5000)
    assert_refused(web, 413, TOO_LARGE, body=[b"[" * 5000, b"]" * 5000])


@pytest.mark.parametrize(
    "digest", [[], ["sha-256=:AAAA:"], ["nonsense"], ["md5=:AAAA:"], ["sha-256=:AAAA:", "sha-256=:BBBB:"]]
)
@pytest.mark.parametrize("body", [b"{}", [b"{", b"}"]])
def test_a_digest_that_is_not_the_bodys(make_web: MakeWeb, digest: list[str], body: Any) -> None:
    web = make_web(policy=Policy(fingerprint=Recipe(body=DigestField())))
    headers = [("Content-Digest", value) for value in digest]
    assert assert_refused(web, 400, CONTRADICTS, headers=headers, body=body)["keyAction"] == "keep"


def test_a_selection_from_json_that_cannot_be_held(make_web: MakeWeb) -> None:
    recipe = Recipe(body=Members(("amount",)), json_bytes_max=50)
    assert_refused(make_web(policy=Policy(fingerprint=recipe)), 413, TOO_LARGE, body=[b"[" + b" " * 60, b"]"])


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b'{"a":1,"a":2}', b'"\\ud800"', b"NaN", b"1e999999", b"\x00"],
)
@pytest.mark.parametrize(
    "media", ["application/json", "application/json; charset=utf-16", "", "nonsense", "a/b;;=\xe9"]
)
@pytest.mark.parametrize("mode", ["checked", "any"])
def test_malformed_input_that_only_the_application_can_judge_reaches_it(
    make_web: MakeWeb, body: bytes, media: str, mode: str
) -> None:
    if mode == "checked" and media.startswith("application/json"):
        body = body if body in (b"", b'{"a":1,"a":2}') else b"[]"
    web = make_web(policy=Policy.of(json=mode))
    headers = [("Content-Type", media)]
    assert web.call(body=body, headers=headers).status == 201
    assert web.call(body=body, headers=headers).replayed
    assert [seen.body for seen in web.seen] == [body]


NOT_JSON = [
    (b"{", "at character 1"),
    (b'{"amount": "5.0', "unterminated string"),
    (b"\xff\xfe", "expecting value"),
    (b'{"a": "\xe9"}', "not UTF-8"),
    (b'["\xed\xa0\x80"]', "not UTF-8"),
    (b'["\\ud800"]', "surrogate"),
    (b"[NaN]", "NaN"),
    (b"[-Infinity]", "-Infinity"),
    (b"1e999", "too large for a double"),
    (b"[" + b"1" * 300 + b"e99]", "too large for a double"),
    (b"1" * 5000, "too many digits"),
    (b"{}\x00", "extra data"),
    (b" ", "expecting value"),
]


@pytest.mark.parametrize(("body", "why"), NOT_JSON)
@pytest.mark.parametrize(
    "media",
    ["application/json", "application/json; charset=x", "text/json", "application/vnd.shop+json;v=2"],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_malformed_json_body_is_refused_before_the_claim(
    web: Web, body: bytes, why: str, media: str, pieces: int
) -> None:
    half = len(body) // 2
    sent = body if pieces == 1 else [body[:half], body[half:]]
    problem = assert_refused(web, 400, CONTRADICTS, body=sent, headers=[("Content-Type", media)])
    assert why.lower() in problem["detail"].lower()
    assert problem["keyAction"] == "keep"  # the corrected body is the same intent
    assert web.call(body=b"{}", headers=[("Content-Type", media)]).status == 201


@pytest.mark.parametrize("media", ["", "text/plain", "application/json"])
@pytest.mark.parametrize("body", [b"", b"{", b"a=b"])
def test_an_operation_that_requires_json_refuses_other_bodies(make_web: MakeWeb, media: str, body: bytes) -> None:
    web = make_web(policy=Policy(json="required"))
    assert_refused(web, 400, CONTRADICTS, body=body, headers=[("Content-Type", media)])
    assert web.call(body=b"[1]", headers=[("Content-Type", media)]).status == 201


@pytest.mark.parametrize("body", [b'\xef\xbb\xbf{"a": 1}', '{"a": "\u20ac"}'.encode("utf-16"), b"[1e99, 1.5e-999, 12]"])
def test_json_that_python_reads_passes(web: Web, body: bytes) -> None:
    assert web.call(body=body, headers=[("Content-Type", "application/json")]).status == 201


DEEP = b"[" * 3000 + b"]" * 3000
LARGE = b'["' + b"[" * 100 + b'\\"' + b"x" * (1024 * 1024) + b'",'


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=x", "text/json"])
@pytest.mark.parametrize("body", [DEEP, LARGE + DEEP + b"]"], ids=["small", "large"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_deep_json_of_any_size_is_refused(web: Web, media: str, body: bytes, pieces: int) -> None:
    size = -(-len(body) // pieces)
    sent = [body[at : at + size] for at in range(0, len(body), size)]
    assert_refused(web, 413, TOO_LARGE, body=sent, headers=[("Content-Type", media)])


def test_brackets_in_strings_do_not_count_as_depth(web: Web) -> None:
    body = LARGE + b'"' + b"[{" * 200 + b'"]'
    half = len(body) // 2
    assert web.call(body=[body[:half], body[half:]]).status == 201


@pytest.mark.parametrize(
    "prefer",
    ["", "wait", "wait=", "wait=soon", "wait=-1", "wait=1.5", "wait=" + "9" * 50, "=;,", '"', "w" * 5000, "\xff"],
)
def test_an_invalid_preference_is_ignored(web: Web, prefer: str) -> None:
    assert web.call(headers=[("Prefer", prefer)]).status == 201


def test_early_data_is_refused(web: Web) -> None:
    problem = assert_refused(web, 425, "IDEMPOTENCY_TOO_EARLY", headers=[("Early-Data", "1")])
    assert (problem["retryable"], problem["keyAction"]) == (True, "keep")


def test_a_command_without_a_caller_is_refused(web: Web) -> None:
    assert_refused(web, 401, "IDEMPOTENCY_CALLER_UNKNOWN", caller=None)
    assert web.call(caller=None).header("www-authenticate") == "Bearer"


def test_the_caller_is_checked_before_the_key(web: Web) -> None:
    assert_refused(web, 401, "IDEMPOTENCY_CALLER_UNKNOWN", caller=None, key="a,b")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "BREW", "PUT"])
def test_an_uncovered_method_passes(web: Web, method: str) -> None:
    assert web.call(method=method, key="a,b").status == 201
    assert web.seen[0].permit is None
    assert web.records() == []


def test_a_path_that_is_not_utf8_matches_no_other_path(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/files/{name}")])
    assert web.call(path="/files/\u20ac").status == 201
    assert web.call(path="/files/\u00e9").code == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


def test_an_application_that_gives_no_answer(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=0))
    with pytest.raises(Exception, match="the application returned without"):
        web.call(caller=ALICE)
    assert web.call().code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
