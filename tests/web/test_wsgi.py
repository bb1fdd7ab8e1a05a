"""What only WSGI has: write(), exc_info, generators, close(), file wrappers, and servers that stop early."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper

import pytest

from semel.core.model import State, Superseded
from semel.engine.sync_engine import Engine
from semel.errors import StoreUnavailable
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware
from semel.policy import Policy
from tests.web.driving import ALICE, BODY, KEY, Response, head, wsgi_call, wsgi_environ

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.connect("memory://") as engine:
        yield engine


def protect(app: App, engine: Engine, policy: Policy | None = None, **settings: Any) -> SemelMiddleware:
    settings.setdefault("caller", lambda environ: ALICE)
    return SemelMiddleware(app, engine, operations=[Operation("/payments", policy or Policy())], **settings)


def environ_of(key: str = KEY, body: bytes = BODY) -> dict[str, Any]:
    return wsgi_environ("POST", "/payments", "", head(key, [], [body]), body, ALICE)


def call(app: App, key: str = KEY) -> Response:
    return wsgi_call(app, environ_of(key))


def no_server(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], None]:
    return lambda data: None


def states(engine: Engine) -> list[State]:
    return [State(row.state) for row in engine.backend.driver._table.rows()]


class Pieces:
    """An iterable with a close, as frameworks return it."""

    def __init__(self, pieces: Iterable[bytes], at_close: Callable[[], None] = lambda: None) -> None:
        self._pieces = pieces
        self._at_close = at_close
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        self.closed += 1
        self._at_close()


def test_the_command_is_settled_when_the_iterable_is_closed(engine: Engine) -> None:
    log: list[str] = []
    pieces = Pieces([b"pa", b"id"], lambda: log.append(f"closed {states(engine)[0].name}"))

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("201 Made", [])
        return pieces

    def start_response(status: str, headers: Any) -> Any:
        log.append(f"{status} {states(engine)[0].name}")

    assert b"".join(protect(app, engine)(environ_of(), start_response)) == b"paid"
    assert log == ["closed PROCESSING", "201 Made SUCCEEDED"]
    assert pieces.closed == 1


def test_a_failing_close_is_not_a_success(engine: Engine) -> None:
    def commit() -> None:
        raise ValueError("the commit failed")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("201 Created", [])
        return Pieces([b"paid"], commit)

    with pytest.raises(ValueError, match="the commit failed"):
        call(protect(app, engine))
    assert states(engine) == [State.UNKNOWN]


def test_the_first_exception_is_the_one_that_is_reported(engine: Engine) -> None:
    def yield_and_fail() -> Iterator[bytes]:
        yield b"pa"
        raise ValueError("first")

    def second() -> None:
        raise ValueError("second")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("201 Created", [])
        return Pieces(yield_and_fail(), second)

    with pytest.raises(ValueError, match="first"):
        call(protect(app, engine))


@pytest.mark.parametrize("more", [[], [b"by", b"e"]])
def test_the_write_callable_of_start_response(engine: Engine, more: list[bytes]) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response("201 Created", [("Content-Type", "text/plain")])
        write(b"good")
        return more

    web = protect(app, engine)
    for replayed in (False, True):
        answer = call(web)
        assert (answer.body, answer.replayed) == (b"good" + b"".join(more), replayed)


@pytest.mark.parametrize("more", [[], [b"y" * 50, b"", b"z" * 50]])
def test_writing_more_than_the_limit_streams_through(engine: Engine, more: list[bytes]) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response("201 Created", [])
        write(b"a" * 80)
        write(b"b" * 80)
        write(b"c" * 80)
        return more

    web = protect(app, engine, Policy(answer_bytes_max=100))
    assert call(web).body == b"a" * 80 + b"b" * 80 + b"c" * 80 + b"".join(more)
    assert call(web).code == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"


def test_a_head_replaced_with_exc_info(engine: Engine) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        write(b"half a page")
        try:
            raise ValueError("rendering")
        except ValueError:
            start_response("500 Oops", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"sorry"]

    answer = call(protect(app, engine))
    assert (answer.status, answer.body) == (500, b"sorry")
    assert answer.link() is not None
    assert states(engine) == [State.UNKNOWN]


def test_a_head_that_was_sent_cannot_be_replaced(engine: Engine) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])(b"x" * 200)
        try:
            raise ValueError("rendering")
        except ValueError:
            start_response("500 Oops", [], sys.exc_info())
        return []

    with pytest.raises(ValueError, match="rendering"):
        call(protect(app, engine, Policy(answer_bytes_max=100)))
    assert states(engine) == [State.UNKNOWN]


def wrong_twice(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    start_response("200 OK", [])
    return []


def wrong_order(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return [b"no head"]


@pytest.mark.parametrize("app", [wrong_twice, wrong_order])
def test_calls_in_the_wrong_order_are_the_applications_error(engine: Engine, app: App) -> None:
    with pytest.raises(RuntimeError):
        call(protect(app, engine))
    assert states(engine) == [State.UNKNOWN]


def test_a_file_wrapper(engine: Engine) -> None:
    file = io.BytesIO(b"x" * 50_000)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "application/pdf")])
        return FileWrapper(file)

    web = protect(app, engine)
    assert call(web).body == b"x" * 50_000
    assert file.closed
    assert call(web).replayed


def streaming(log: list[str], engine: Engine) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", environ.get("test.headers", []))
        try:
            for number in range(5):
                yield b"%d" % number * 60
                log.append(f"{number} {states(engine)[0].name}")
        finally:
            log.append("ended")

    return app


def test_a_server_that_stops_early_does_not_stop_the_handler(engine: Engine) -> None:
    log: list[str] = []
    web = protect(streaming(log, engine), engine, Policy(answer_bytes_max=100))
    pieces: Any = web(environ_of(), no_server)
    assert next(iter(pieces)) == b"0" * 60
    pieces.close()
    assert log == [*[f"{number} PROCESSING" for number in range(5)], "ended"]
    assert states(engine) == [State.SUCCEEDED]
    pieces.close()
    assert list(pieces) == [b"1" * 60]  # what was held; nothing more comes
    assert states(engine) == [State.SUCCEEDED]


def test_an_endless_answer_ends_with_its_client(engine: Engine) -> None:
    log: list[str] = []
    web = protect(streaming(log, engine), engine)
    environ = {**environ_of(), "test.headers": [("Content-Type", "text/event-stream")]}
    pieces: Any = web(environ, no_server)
    next(iter(pieces))
    pieces.close()
    assert log == ["ended"]
    assert states(engine) == [State.SUCCEEDED]


def test_a_handler_that_fails_without_its_client(engine: Engine) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"x" * 200
        raise ValueError("late")

    pieces: Any = protect(app, engine, Policy(answer_bytes_max=100))(environ_of(), no_server)
    with pytest.raises(ValueError, match="late"):
        pieces.close()
    assert states(engine) == [State.UNKNOWN]


def test_a_streamed_answer_whose_close_fails(engine: Engine) -> None:
    def commit() -> None:
        raise ValueError("the commit failed")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return Pieces([b"x" * 200], commit)

    with pytest.raises(ValueError, match="the commit failed"):
        call(protect(app, engine, Policy(answer_bytes_max=100)))
    assert states(engine) == [State.UNKNOWN]


def test_an_exception_propagates_after_the_superseding_outcome(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raise ValueError("seen by the log")

    monkeypatch.setattr(engine, "settle", lambda *_: Superseded(None))
    pieces: Any = protect(app, engine)(environ_of(), no_server)
    assert b"IDEMPOTENCY_OUTCOME_UNKNOWN" in b"".join(pieces)
    with pytest.raises(ValueError, match="seen by the log"):
        pieces.close()


def test_a_truncated_body_claims_nothing(engine: Engine) -> None:
    environ = environ_of(body=BODY)
    environ["CONTENT_LENGTH"] = str(len(BODY) + 1)
    answer = wsgi_call(protect(wrong_order, engine), environ)
    assert (answer.status, answer.code) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    assert states(engine) == []


def test_a_body_without_a_length(engine: Engine) -> None:
    bodies: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        bodies.append(environ["wsgi.input"].read())
        start_response("201 Created", [])
        return []

    web = protect(app, engine)
    chunked = environ_of(body=b"x" * 2_000_000) | {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    assert wsgi_call(web, chunked).status == 201
    unknown = environ_of(key="another-key") | {"CONTENT_LENGTH": ""}
    assert wsgi_call(web, unknown).status == 201
    assert bodies == [b"x" * 2_000_000, b""]


def test_a_body_that_the_server_withholds_is_not_taken_for_an_empty_one(engine: Engine) -> None:
    """uWSGI hands an application nothing of a body in chunks: two different commands would look alike."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("201 Created", [])
        return [b"paid"]

    web = protect(app, engine)
    withheld = environ_of(body=b"") | {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}
    answer = wsgi_call(web, withheld)
    assert (answer.status, answer.code, states(engine)) == (400, "IDEMPOTENCY_REQUEST_INVALID", [])
    assert call(web).status == 201  # with its length, under the same key


def test_an_unprotected_call_keeps_its_body_until_it_is_closed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("201 Created", [])
        yield environ["wsgi.input"].read()

    def down(*_: object, **__: object) -> None:
        raise StoreUnavailable("down")

    monkeypatch.setattr(engine, "_claim_into", down)
    answer = call(protect(app, engine, Policy(on_unprotected="mark")))
    assert (answer.body, answer.header("semel-unprotected")) == (BODY, "store-unavailable")


def test_parallel_duplicates_have_one_effect_and_one_answer(engine: Engine) -> None:
    effects: list[int] = []
    answers: list[Response] = []
    entered, finish = threading.Event(), threading.Event()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        effects.append(1)
        entered.set()
        assert finish.wait(10)
        start_response("201 Created", [])
        return [b"paid"]

    web = protect(app, engine, Policy(wait_seconds=10), waiters_max=10)
    threads = [threading.Thread(target=lambda: answers.append(call(web))) for _ in range(10)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    finish.set()
    for thread in threads:
        thread.join(10)
    assert len(effects) == 1
    assert [(answer.status, answer.body) for answer in answers] == [(201, b"paid")] * 10


def test_a_nonstandard_status_is_replayed(engine: Engine) -> None:
    lines: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("299 Peculiar", [])
        return []

    def noting(status: str, headers: Any) -> Any:
        lines.append(status)

    web = protect(app, engine)
    for _ in range(2):
        list(web(environ_of(), noting))
    assert lines == ["299 Peculiar", "299 Unknown"]
