"""Every path of a WSGI request releases the spool of its body."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from semel.engine.sync_engine import Engine
from semel.errors import StoreUnavailable
from semel.http.routing import Operation
from semel.http.spool import CHUNK_BYTES, SPOOL_BYTES_MAX, Spool
from semel.http.wsgi import middleware as wsgi
from semel.policy import Policy
from tests.web.driving import ALICE, KEY, head, wsgi_call, wsgi_environ

LONG = b"x" * (SPOOL_BYTES_MAX + 1)  # on the disk, where a forgotten file costs most
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Counted(Spool):
    """A spool that is counted while it is open."""

    made = 0
    open_now: set[int] = set()  # noqa: RUF012 -- shared on purpose, emptied by the fixture

    def __init__(self) -> None:
        super().__init__()
        Counted.made += 1
        Counted.open_now.add(id(self))

    def close(self) -> None:
        super().close()
        Counted.open_now.discard(id(self))


class Cut(io.BytesIO):
    """The input of a server whose client goes away in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        raise ConnectionResetError("the client has gone")


class Pieces:
    """An answer that fails at a chosen place."""

    def __init__(self, fails_at: str, pieces: list[bytes]) -> None:
        self._fails_at = fails_at
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._fails_at == "reading":
            raise RuntimeError("while it was read")

    def close(self) -> None:
        if self._fails_at == "closing":
            raise RuntimeError("while it was closed")


def answering(fails_at: str, pieces: list[bytes]) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if fails_at == "calling":
            raise RuntimeError("while it was called")
        if fails_at != "starting":
            start_response("201 Created", [])
        return Pieces(fails_at, pieces)

    return app


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(wsgi, "Spool", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    Counted.open_now.clear()
    with Engine.connect("memory://") as engine:
        yield engine


def ask(app: App, engine: Engine, policy: Policy, **changed: Any) -> None:
    """Send one request, which may end in any way."""
    web = wsgi.SemelMiddleware(app, engine, caller=lambda environ: ALICE, operations=[Operation("/payments", policy)])
    environ = wsgi_environ("POST", "/payments", "", head(KEY, [], [LONG]), LONG, ALICE) | changed
    with contextlib.suppress(RuntimeError, OSError, IndexError):  # each in its own way; IndexError: no answer came
        wsgi_call(web, environ)
    assert (Counted.made, Counted.open_now) == (1, set())


FAILS_AT = pytest.mark.parametrize("fails_at", ["nowhere", "calling", "starting", "reading", "closing"])
PIECES = pytest.mark.parametrize("pieces", [[b"paid"], [b"y" * 80] * 3], ids=["held", "streamed"])


@FAILS_AT
@PIECES
def test_a_protected_call_releases_the_spool(engine: Engine, fails_at: str, pieces: list[bytes]) -> None:
    ask(answering(fails_at, pieces), engine, Policy(answer_bytes_max=100))


@FAILS_AT
@PIECES
def test_an_unprotected_call_releases_the_spool(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fails_at: str, pieces: list[bytes]
) -> None:
    monkeypatch.setattr(engine, "_claim_into", failing(StoreUnavailable("down")))
    ask(answering(fails_at, pieces), engine, Policy(answer_bytes_max=100, on_unprotected="mark"))


@pytest.mark.parametrize("error", [StoreUnavailable("down"), RuntimeError("a bug")])
def test_a_failed_claim_releases_the_spool(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(engine, "_claim_into", failing(error))
    ask(answering("nowhere", [b"paid"]), engine, Policy())


def test_a_replay_releases_the_spool(engine: Engine) -> None:
    policy = Policy()
    ask(answering("nowhere", [b"paid"]), engine, policy)
    Counted.made = 0
    ask(answering("nowhere", [b"paid"]), engine, policy)


@pytest.mark.parametrize(
    "changed",
    [{"wsgi.input": Cut()}, {"wsgi.input": io.BytesIO(b"short")}, {"HTTP_CONTENT_DIGEST": "sha-256=:AAAA:"}],
    ids=["cut", "short", "wrong digest"],
)
def test_a_body_that_is_no_command(engine: Engine, changed: dict[str, Any]) -> None:
    ask(answering("nowhere", [b"paid"]), engine, Policy(), **changed)


def test_a_body_that_is_too_large(engine: Engine) -> None:
    chunked = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    ask(answering("nowhere", [b"paid"]), engine, Policy(body_bytes_max=SPOOL_BYTES_MAX // 2), **chunked)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_a_file_that_is_made_while_the_spool_is_closed_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread writes a piece to the disk while the request that waits for it is cancelled."""
    made: list[Any] = []
    make = tempfile.TemporaryFile

    def make_late(**options: Any) -> Any:
        made.append(make(**options))
        spool.close()
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", make_late)
    spool = Spool()
    spool.write(bytes(CHUNK_BYTES))
    with pytest.raises(ValueError, match="closed"):
        spool.write(bytes(SPOOL_BYTES_MAX))
    assert [file.closed for file in made] == [True]
    assert spool.closed
