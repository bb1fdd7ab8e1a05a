"""The wire as a client sees it: a WSGI application behind the real middleware, and what a retry must get."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from semel.engine.sync_engine import Engine
from semel.http.caller import Caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware
from semel.policy import Policy

_BODY: Final = b'{"amount": 5, "note": "' + b"x" * 200 + b'", "to": "bob"}'


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Counter:
    """An application that counts its effects, and gives the answers of a script."""

    def __init__(self) -> None:
        self.runs = 0
        self.status = 201

    def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["wsgi.input"].read()
        self.runs += 1
        headers = [("Content-Type", "text/plain"), ("Set-Cookie", "session=secret"), ("Location", "/payments/1")]
        start_response(f"{self.status} Whatever", headers)
        return [b"run %d" % self.runs]


class Wire:
    """One application with one protected operation."""

    def __init__(self) -> None:
        self.app = Counter()
        self.engine = Engine.connect("memory://")
        self.engine.open()
        operations = [Operation("/payments", Policy())]
        self.middleware = SemelMiddleware(
            self.app, self.engine, caller=lambda environ: environ["who"], operations=operations
        )

    def post(self, *, key: str | None = '"key-0123456789"', body: bytes = _BODY, who: str = "alice") -> Reply:
        """Send one request."""
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/payments",
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            "who": Caller("acme", who),
        }
        if key is not None:
            environ["HTTP_IDEMPOTENCY_KEY"] = key
        heads: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], None]:
            heads.append((status, headers))
            return lambda data: None

        pieces = self.middleware(environ, start_response)
        body_out = b"".join(pieces)
        getattr(pieces, "close", lambda: None)()
        status, headers = heads[-1]
        return Reply(int(status[:3]), {name.lower(): value for name, value in headers}, body_out)


def a_retry_gets_the_first_answer(wire: Wire) -> None:
    first, again = wire.post(), wire.post()
    assert wire.app.runs == 1, "the handler ran for a retry"
    assert (again.status, again.body, again.headers.get("location")) == (first.status, first.body, "/payments/1"), (
        "a replay is not the first answer"
    )
    assert "idempotency-replayed" in again.headers
    assert "idempotency-replayed" not in first.headers


def a_cookie_is_not_given_again(wire: Wire) -> None:
    wire.post()
    assert "set-cookie" not in wire.post().headers, "a replay carries Set-Cookie"


def callers_do_not_meet(wire: Wire) -> None:
    wire.post()
    assert wire.post(who="bob").body == b"run 2", "one caller was given another's answer"


def another_payload_is_refused(wire: Wire) -> None:
    wire.post()
    other = wire.post(body=_BODY.replace(b'"bob"', b'"eve"'))
    assert other.status == 422, "another payload under the same key was not refused"
    assert wire.app.runs == 1
    assert b"key-0123456789" not in other.body, "a refusal repeats the key"


def the_same_payload_in_other_spelling_is_the_same(wire: Wire) -> None:
    wire.post(body=b'{"amount": 5, "to": "bob"}')
    assert wire.post(body=b'{ "to":"bob","amount":5 }').body == b"run 1", "a retry was taken for another request"


def an_amount_is_not_rounded(wire: Wire) -> None:
    wire.post(body=b'{"amount": 9007199254740993}')
    assert wire.post(body=b'{"amount": 9007199254740992}').status == 422, "two amounts were taken for one"


def a_key_is_required(wire: Wire) -> None:
    assert wire.post(key=None).status == 400, "a request without a key went through"
    assert wire.app.runs == 0


def both_forms_of_a_key_are_one(wire: Wire) -> None:
    wire.post(key='"key-0123456789"')
    assert wire.post(key="key-0123456789").body == b"run 1", "the bare form of a key is another key"


def a_refusal_of_the_moment_is_not_kept(wire: Wire) -> None:
    for status in (401, 403, 408, 425, 429):
        one = Wire()
        one.app.status = status
        one.post()
        one.app.status = 201
        # An EXTERNAL handler that answered so says that nothing happened: the key is free.
        assert one.post().status == 201, f"a {status} was stored"


def a_definite_refusal_is_kept(wire: Wire) -> None:
    wire.app.status = 409
    wire.post()
    wire.app.status = 201
    assert (wire.post().status, wire.app.runs) == (409, 1), "a definite refusal was not stable"


def a_server_error_is_unknown(wire: Wire) -> None:
    wire.app.status = 500
    wire.post()
    wire.app.status = 201
    again = wire.post()
    assert wire.app.runs == 1, "an EXTERNAL handler ran again after a 500"
    assert b"IDEMPOTENCY_OUTCOME_UNKNOWN" in again.body, "a 500 was stored as the final answer"


CHECKS: Final = (
    a_retry_gets_the_first_answer,
    a_cookie_is_not_given_again,
    callers_do_not_meet,
    another_payload_is_refused,
    the_same_payload_in_other_spelling_is_the_same,
    an_amount_is_not_rounded,
    a_key_is_required,
    both_forms_of_a_key_are_one,
    a_refusal_of_the_moment_is_not_kept,
    a_definite_refusal_is_kept,
    a_server_error_is_unknown,
)


def checks() -> Iterator[tuple[str, int]]:
    """Make all of them; yields the name and the number of each that held. Raises AssertionError."""
    for number, check in enumerate(CHECKS, start=1):
        try:
            check(Wire())
        except Exception as error:
            error.add_note(f"check {number}: {check.__name__}")
            raise
        yield check.__name__, number
