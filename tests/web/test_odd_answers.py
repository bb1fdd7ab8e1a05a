"""Answers that contradict themselves, or that a server could not send a second time."""

from __future__ import annotations

import itertools
import logging

import pytest

from semel.core.model import Answer, State
from semel.core.record import pack_headers
from semel.http.routing import Operation
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import Reply, Seen


def operations(**options: object) -> dict[str, object]:
    return {"operations": [Operation("/payments", Policy.of(**options))]}


@pytest.mark.parametrize("limit", [1024, 10], ids=["held", "streamed"])
def test_an_answer_shorter_than_its_content_length_is_not_a_success(make_web: MakeWeb, limit: int) -> None:
    def handler(seen: Seen) -> Reply:
        return Reply(headers=[("Content-Length", "50")], chunks=[b"x" * 20])

    web = make_web(handler, **operations(answer_bytes_max=limit))
    with pytest.raises(Exception, match="shorter than its own Content-Length"):
        web.call()
    [record] = web.records()
    assert (State(record.state), record.body) == (State.UNKNOWN, None)
    assert web.call().code == "IDEMPOTENCY_OUTCOME_UNKNOWN"


def test_an_answer_as_long_as_its_content_length_is_streamed_through(make_web: MakeWeb) -> None:
    web = make_web(
        lambda seen: Reply(headers=[("Content-Length", "30")], chunks=[b"x" * 15] * 2),
        **operations(answer_bytes_max=10),
    )
    assert web.call().body == b"x" * 30
    assert web.call().code == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"


@pytest.mark.parametrize(
    ("length", "body"), [(30, [b"ab", b"cd" * 20]), (2, [b"abc"]), (0, [b"abc"]), (1, [b"a", b"b"])]
)
def test_an_answer_longer_than_its_content_length_is_cut_there_as_servers_cut_it(
    make_web: MakeWeb, length: int, body: list[bytes]
) -> None:
    web = make_web(lambda seen: Reply(201, [("Content-Length", str(length))], body))
    first, again = web.call(), web.call()
    assert first.body == again.body == b"".join(body)[:length]
    assert (again.header("idempotency-replayed"), again.header("content-length")) == ("true", str(length))


@pytest.mark.parametrize("status", [204, 205, 304])
def test_an_answer_without_a_body_has_no_content_length(make_web: MakeWeb, status: int) -> None:
    web = make_web(lambda seen: Reply(status, [("Content-Length", "11"), ("ETag", "x")], [b'{"a": "bc"}']))
    first, again = web.call(), web.call()
    for answer in (first, again):
        assert (answer.status, answer.body, answer.header("content-length")) == (status, b"", None)
        assert answer.header("etag") == "x"
    assert again.replayed


def test_header_values_are_stored_without_surrounding_blanks(make_web: MakeWeb) -> None:
    headers = [("ETag", "  v \t"), ("Link", "  "), ("Location", "/a\x7fb"), ("Vary", "a\r\nb")]
    web = make_web(lambda seen: Reply(headers=headers))
    web.call()
    again = web.call()
    assert again.replayed
    assert [again.header(name) for name in ("etag", "location", "vary")] == ["v", None, None]
    assert [value for name, value in again.headers if name == "link"] == ["", f'<{again.link()}>; rel="status"']


def test_an_invalid_stored_header_is_left_out_of_the_replay(make_web: MakeWeb) -> None:
    """Records that were written by an earlier Semel, or by other software."""
    web = make_web(lambda seen: Reply())
    web.call()
    [record] = web.records()
    headers = ((b"etag", b" x "), (b"link", b"a\r\nset-cookie: b=c"), (b"location", b"\x00"))
    answer = Answer(record.status, headers, record.body)
    web.engine.backend.driver._table.put(rewritten(record, answer))
    again = web.call()
    assert again.replayed
    assert (again.header("etag"), again.header("location")) == ("x", None)
    assert [value for name, value in again.headers if name == "link"] == [f'<{again.link()}>; rel="status"']
    assert again.header("set-cookie") is None


def rewritten(record: object, answer: Answer) -> object:
    from semel.core.record import answer_digest

    block = pack_headers(answer.headers)
    digest = answer_digest(answer.status, block, answer.body)
    return record._replace(headers=block, answer_digest=digest)  # type: ignore[attr-defined]


# --- headers that are not stored are logged ---


def test_a_header_that_is_not_stored_is_logged_once_with_the_option(
    make_web: MakeWeb, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [("X-Total", "1"), ("Set-Cookie", "a=b"), ("Date", "now"), ("ETag", "x"), ("Content-Length", "4")]
    web = make_web(lambda seen: Reply(headers=headers))
    with caplog.at_level(logging.WARNING, "semel"):
        for key in ("key-number-1", "key-number-1", "key-number-2"):
            web.call(key=key)
    [line] = caplog.messages
    assert "POST /payments" in line
    assert "replay_headers={'x-total'}" in line


def test_a_stored_header_is_not_logged(make_web: MakeWeb, caplog: pytest.LogCaptureFixture) -> None:
    web = make_web(lambda seen: Reply(headers=[("X-Total", "1")]), **operations(replay_headers=frozenset({"x-total"})))
    web.call()
    assert caplog.messages == []
    assert web.call().header("x-total") == "1"


def test_made_up_header_names_fill_neither_the_log_nor_memory(
    make_web: MakeWeb, caplog: pytest.LogCaptureFixture
) -> None:
    calls = itertools.count()

    def handler(seen: Seen) -> Reply:
        call = next(calls)
        return Reply(headers=[(f"X-{call}-{n}", "1") for n in range(40)])

    web = make_web(handler)
    with caplog.at_level(logging.WARNING, "semel"):
        for n in range(10):
            web.call(key=f"key-number-{n}")
    assert sum(line.partition("replay_headers=")[2].count("'x-") for line in caplog.messages) == 100
    found = web.middleware.surface.routes.find("POST", "/payments")  # type: ignore[attr-defined]
    assert len(found[0].keeping.unmissed) < 200
