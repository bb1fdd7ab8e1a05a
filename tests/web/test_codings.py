"""An answer that the application has compressed is given to no client who does not accept that."""

from __future__ import annotations

import gzip
import zlib

import pytest

from semel.http.headers import for_client
from tests.web.conftest import MakeWeb
from tests.web.driving import Reply

PLAIN = b"paid " * 100
CODED = {b"gzip": gzip.compress(PLAIN), b"x-gzip": gzip.compress(PLAIN), b"deflate": zlib.compress(PLAIN)}


@pytest.mark.parametrize("coding", CODED)
def test_a_replay_is_decoded_where_its_client_does_not_accept_its_coding(make_web: MakeWeb, coding: bytes) -> None:
    name, body = coding.decode(), CODED[coding]
    headers = [("Content-Encoding", name), ("ETag", '"1"'), ("Vary", "Accept-Encoding")]
    web = make_web(lambda seen: Reply(headers=headers, chunks=[body]))
    assert web.call().body == body  # the application's own
    for accepted, is_decoded in ((name, False), ("*", False), (f"{name};q=0", True), ("", True), (None, True)):
        sent = [] if accepted is None else [("Accept-Encoding", accepted)]
        answer = web.call(headers=sent)
        assert (answer.body, answer.header("content-encoding"), answer.header("etag")) == (
            (PLAIN, None, 'W/"1"') if is_decoded else (body, name, '"1"')
        )
        assert (answer.header("vary"), answer.header("idempotency-replayed")) == ("Accept-Encoding", "true")
        assert answer.header("content-length") == str(len(answer.body))


GZIP = ((b"content-encoding", b" GZip"),)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((), PLAIN),
        (((b"content-encoding", b"br"),), b"\x0b"),
        (((b"content-encoding", b"gzip, br"),), CODED[b"gzip"]),
        (GZIP * 2, gzip.compress(CODED[b"gzip"])),
        (GZIP, PLAIN),
        (GZIP, b""),
        (GZIP, CODED[b"gzip"][:-1]),
        (GZIP, CODED[b"gzip"] * 2),
        (GZIP, gzip.compress(bytes(16 * 1024 * 1024 + 1))),
    ],
    ids=["none", "brotli", "two codings", "twice", "not gzip", "empty", "cut", "two members", "too much"],
)
def test_what_cannot_be_decoded_stays_as_it_is(headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
    assert for_client(headers, body, b"identity") == (headers, body)


def test_digests_of_the_coded_body_are_left_out() -> None:
    more = ((b"content-type", b"text/plain"), (b"content-digest", b"sha-256=:AA==:"), (b"etag", b'W/"2"'))
    assert for_client((*GZIP, *more), CODED[b"gzip"], b"") == ((more[0], more[2]), PLAIN)
    most = bytes(16 * 1024 * 1024)
    assert for_client(GZIP, gzip.compress(most), b"") == ((), most)
