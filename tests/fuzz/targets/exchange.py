"""One request with arbitrary head and body through the ASGI middleware: never a 5xx of ours, and once means once."""

from __future__ import annotations

import atexit
import re
from typing import Any, Final

from semel.http.fingerprint.fingerprinter import Members, Recipe
from semel.http.routing import Operation
from semel.policy import Policy
from tests.fuzz.reading import Choices, pieces_of
from tests.web.driving import ALICE, BOB, AsgiWeb, Reply, Response, asgi_call, asgi_scope

KEY_LINE: Final = b"\x01\x07key-one"
NAMES: Final = (
    *(b"idempotency-key", b"content-type", b"content-length", b"prefer", b"content-digest", b"early-data", b"host"),
    *(b"transfer-encoding", b"cookie", b"range", b"expect", b"content-encoding", b"if-match", b"x-other"),
)
METHODS: Final = ("POST", "PATCH", "PUT", "GET", "DELETE", "post", "QUERY")
PATHS: Final = ("/payments", "/payments/", "/notes", "/items/7", "/items/%2f", "/other", "/", "/items/a/b")
BODIES: Final = (b"", b'{"amount":1250}', b"a=1&b=2", b"\xff\x00", b"[" * 70, b"x" * 70_000, b'{"a":1,"a":2}')
TOKENS = (
    *(bytes([index]) for index in range(9)),
    *(KEY_LINE, b"\x00\x07key-one", b'\x00\x09"key-one"', b"\x00\x00", b"\x00\x03a b", b"\x01\x10application/json"),
    *(
        b"\x02\x02-1",
        b"\x02\x131234567890123456789",
        b"\x03\x06wait=0",
        b"\x05\x011",
        b"\x04\x0bsha-256=:x:",
        b"\xff\xfe",
    ),
    *(b"\x01\x1emultipart/form-data;boundary=c", b"\x01\x21application/x-www-form-urlencoded", b"\r\nSet-Cookie: a=b"),
)
_FIELD = re.compile(rb"[\t\x20-\x7e]*").fullmatch
_made: list[AsgiWeb] = []


def one(data: bytes) -> None:
    """A request twice, then with another body and as another caller."""
    web = _web()
    choices = Choices(data)
    method, path, body = choices.pick(METHODS), choices.pick(PATHS), choices.pick(BODIES)
    in_pieces, caller = choices.number() % 2 == 1, choices.pick((ALICE, ALICE, ALICE, None))
    lines = []
    for _ in range(choices.number() % 6):
        index = choices.number()
        lines.append((NAMES[index % len(NAMES)] if index < 240 else choices.piece().lower(), choices.piece()))
    if choices.number() % 4:
        body = choices.rest()

    def call(content: bytes, who: Any = caller) -> Response:
        scope = asgi_scope(method, path, "q=1", [], who)
        scope["headers"] = lines
        pieces = (pieces_of(content) if in_pieces and len(content) < 5000 else [content]) or [b""]
        response = web.runner.run(asgi_call(web.middleware, scope, pieces))
        _check(response)
        return response

    web.seen.clear()
    first, again = call(body), call(body)
    assert 1 <= len(web.seen) <= 2 or first.status >= 400
    assert sum(seen.permit is not None for seen in web.seen) <= 1, "the same request ran twice under its key"
    assert all(seen.body == body for seen in web.seen)
    if not web.seen or web.seen[0].permit is None:
        assert not first.replayed
        assert not again.replayed
    else:
        _check_replay(web, first, again, call(body + b"!"), path)
        if caller is not None:
            assert not call(body, BOB).replayed, "another caller was given the answer"
    table = web.engine.backend.driver._table
    for part in (table.records, table.by_operation, table.seqs):
        part.clear()


def _check_replay(web: AsgiWeb, first: Response, again: Response, other: Response, path: str) -> None:
    assert again.replayed
    assert (again.status, again.body) == (first.status, first.body)
    if path.startswith("/notes"):
        return  # only one member of its bodies counts
    assert not other.replayed
    assert other.status in (400, 413, 422), other.status
    assert sum(seen.permit is not None for seen in web.seen) == 1


def _check(response: Response) -> None:
    assert 200 <= response.status < 500, response.body
    for name, value in response.headers:
        assert _FIELD(name.encode())
        assert _FIELD(value.encode("latin-1")), value
    if response.header("content-type") == "application/problem+json":
        assert response.problem["code"]


def _web() -> AsgiWeb:
    """One application for all inputs; its table is emptied after each."""
    if not _made:
        operations = [
            Operation("/payments", Policy(body_bytes_max=65_536)),
            Operation("/notes", Policy(key="optional", fingerprint=Recipe(body=Members(("text",))))),
            Operation("/items/{id}", Policy(effects="idempotent"), methods=("PUT", "DELETE", "PATCH")),
        ]
        web = AsgiWeb(lambda seen: Reply(), operations=operations, default=Policy())
        atexit.register(web.close)
        _made.append(web)
    return _made[0]
