"""The WSGI middleware: translates between a server's calls and the exchange, on the sync engine. It decides nothing.

The application's answer is held until its iterable has been read to its end and closed, because frameworks commit
there; then the outcome is settled, and only then does the answer leave.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import IO, Final, Unpack

from semel.core.model import Answer
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, InvalidBody, StoreError
from semel.http.body_time import SocketClock
from semel.http.capture import Capture
from semel.http.coverage import OVERRIDES, Coverage
from semel.http.exchange import (
    CUT,
    AnswerTooLarge,
    Exchange,
    IncompleteAnswer,
    Unprotected,
    count_mount,
    open_exchange,
)
from semel.http.outage import UNCLAIMED
from semel.http.routing import Params, Route
from semel.http.settings import HttpSettings, MiddlewareSettings, is_async
from semel.http.spool import CHUNK_BYTES, Spool
from semel.http.status import StatusResource
from semel.http.wsgi.answer import Environ, ExcInfo, StartResponse, Write, headers_of, send_answer, with_mark
from semel.http.wsgi.body import WITHHELD, is_withheld
from semel.http.wsgi.inside import settle_call
from semel.http.wsgi.threads import Accepted, Threads
from semel.policy import Command
from semel.stores.shield import Hold

App = Callable[[Environ, StartResponse], Iterable[bytes]]

_OVERRIDES: Final = tuple(f"HTTP_{name.decode().upper().replace('-', '_')}" for name in sorted(OVERRIDES))


class SemelMiddleware:
    """Protects the commands of a WSGI application.

    Parameters: ``app`` and ``engine``; ``caller``, ``operations``, ``default`` and the other settings of
    :class:`~semel.http.settings.HttpSettings`; ``serve_operations`` serves the status resource where
    ``problems.operations_path`` says: None for requests that name an operation, True for all below that path, False
    where the application serves it; ``waiters_max`` how many threads may wait for running duplicates (None: at most
    half of the most that were busy at once). The handler finds its permit in ``environ["semel.permit"]``.

    Raises ConfigurationError: as HttpSettings does.
    """

    def __init__(
        self,
        app: App,
        engine: Engine,
        *,
        serve_operations: bool | None = None,
        waiters_max: int | None = None,
        **settings: Unpack[MiddlewareSettings],
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigurationError(f"a WSGI application needs a semel.Engine, not {type(engine).__name__}")
        self.app = app
        self.engine = engine
        if "manage_engine" in settings:
            raise ConfigurationError(
                "manage_engine is for ASGI: WSGI has no startup and shutdown events; open the engine where the worker "
                "starts (in gunicorn's post_fork) and run `semel worker` as a separate process"
            )
        self.surface = HttpSettings.of(engine, settings, ("serve_operations", "waiters_max"))
        self._status = StatusResource(self.surface, engine, serve_operations)
        if is_async(self.surface.may):
            raise ConfigurationError("a WSGI application calls may= in its own thread: make it a plain function")
        self._accepted = Accepted()
        self._body_clock = SocketClock(self.surface.body_seconds_max)
        self._threads = Threads(waiters_max)
        engine.core.waiters_limit = self._threads.waiters
        self._coverage = Coverage(self.surface, app)
        self._key_variable = f"HTTP_{self.surface.key_header.upper().replace('-', '_')}"

    def close(self) -> None:
        """Wait for the handlers whose requests were answered with 202 (``Prefer: respond-async``)."""
        self._accepted.close()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request, as the WSGI interface requires."""
        with self._threads:
            return self._serve(environ, start_response)

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method: str = environ["REQUEST_METHOD"]
        # The server decoded the path as latin-1; surrogates keep bytes that are not UTF-8 distinct.
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "surrogateescape")
        found: tuple[Route, Params] | Answer | None = self.surface.routes.find(method, path)
        if found is None:
            found = self._status.answer(method, path, environ)
        if found is None:
            overriding = [environ[name] for name in _OVERRIDES if name in environ]
            found = self._coverage.judge(method, path, lambda: self._key_variable in environ, overriding=overriding)
        if isinstance(found, Answer):
            return send_answer(start_response, found)
        if found is None:
            return self.app(environ, start_response)
        return self._command(found[0], found[1], method, environ, start_response)

    def _command(
        self, route: Route, params: Params, method: str, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        route, params = count_mount(route, params, environ.get("SCRIPT_NAME", ""))
        opened = open_exchange(self.surface, route, params, method, query, headers_of(environ), environ)
        if isinstance(opened, Answer):
            return send_answer(start_response, opened)
        if isinstance(opened, Unprotected):
            return self.app(environ, start_response if opened.mark is None else with_mark(start_response, opened.mark))
        if not self.surface.allows(environ, opened.wanted):
            return send_answer(start_response, self.surface.problems.not_allowed())
        if self.surface.may is not None:
            opened.allowed_at = time.monotonic()
        spool, hold = Spool(), self.engine._hold()
        try:
            pieces = self._spool(opened, environ, start_response, spool, hold)
            hold.end()  # the rest of the command ends with the answer
        except BaseException as error:
            hold.let_go(error)
            spool.close()  # nothing else will: the client or the store failed, or the process was interrupted
            raise
        return pieces

    def _spool(
        self,
        exchange: Exchange,
        environ: Environ,
        start_response: StartResponse,
        spool: Spool,
        hold: Hold[Permit],
    ) -> Iterable[bytes]:
        """Read the body, claim and answer. The answer closes the spool; if this raises, the caller must."""
        command = self._read(exchange, environ, spool)
        if isinstance(command, Answer):
            spool.close()
            return send_answer(start_response, command)
        environ = {**environ, "wsgi.input": spool.open(), "CONTENT_LENGTH": str(spool.size)}
        try:
            permit = self.engine._claim_into(hold, command, exchange.wait_seconds)
        except UNCLAIMED as error:
            refused = exchange.answer_unclaimed(error)
            if isinstance(refused, Unprotected):
                assert refused.mark is not None
                pieces = self.app(environ, with_mark(start_response, refused.mark))
                return Closing(pieces, lambda: close_each(pieces, spool))
            spool.close()
            return send_answer(start_response, refused)
        if not isinstance(permit, Permit):
            spool.close()
            answer = exchange.present(permit)
            if (
                exchange.allowed_at is not None
                and exchange.must_ask_again()
                and not self.surface.allows(environ, exchange.wanted)
            ):
                answer = self.surface.problems.not_allowed()
            return send_answer(start_response, answer)
        environ["semel.permit"] = permit
        call = WsgiCall(self.app, self.engine, exchange, permit, start_response)
        if exchange.wants_async and self._accepted.begin(lambda: call.run_unheard(environ, spool)):
            starts = permit.asked.policy.terms.starts
            return send_answer(start_response, exchange.answer_accepted(permit.execution_id, starts))
        return call.run(environ, spool)

    def _read(self, exchange: Exchange, environ: Environ, spool: Spool) -> Command | Answer:
        """Read the body, within its time."""
        if is_withheld(environ):
            return self.surface.problems.of_error(InvalidBody(WITHHELD))
        if not environ.get("CONTENT_LENGTH") and not environ.get("wsgi.input_terminated"):
            return exchange.finish(spool)
        connection = self._body_clock.begin(environ)
        try:
            command = _read(exchange, environ, spool)
        except BaseException as error:
            if self._body_clock.end(connection) or not isinstance(error, Exception):
                raise
        else:
            if self._body_clock.end(connection):
                return command
        return self.surface.problems.body_too_slow(self.surface.body_seconds_max)


class WsgiCall:
    """One protected call of the application: its ``start_response``, and the collected answer."""

    def __init__(
        self,
        app: App,
        engine: Engine,
        exchange: Exchange,
        permit: Permit,
        start_response: StartResponse,
        capture: Capture | None = None,
    ) -> None:
        self._app = app
        self._engine = engine
        self._exchange = exchange
        self._permit = permit
        self._start_response = start_response
        self._capture = Capture(exchange.route.keeping) if capture is None else capture
        self._fits = True
        self._status_line = ""
        self._iterable: Iterable[bytes] = ()
        self._through = False
        self._server_write: Write = write_nowhere  # the server's own, once the answer flows through
        self._dropped = False

    def run(self, environ: Environ, spool: Spool) -> Iterable[bytes]:
        """Call the application, settle, and return the answer that may leave."""
        self._permit.handler_thread = get_ident()
        return self.read(lambda: self._app(environ, self.start_response), spool.close)

    def read(self, begin: Callable[[], Iterable[bytes]], end: Callable[[], None]) -> Iterable[bytes]:
        """Read the application's whole answer, settle, and return the answer that may leave.

        Parameters: ``begin`` returns the application's iterable, or raises its exception; ``end`` releases the
        request's body once nothing reads it any more.
        """
        error: BaseException | None = None
        try:
            self._iterable = begin()
            pieces = iter(self._iterable)
            for piece in pieces:
                self._take(piece)
                if self._through:
                    return _Through(self, pieces, self._capture.release(), end)
            self._close_iterable()
            if not self._capture.started:
                error = IncompleteAnswer("the application returned without calling start_response")
            else:
                error = self._end()
        except BaseException as raised:  # noqa: BLE001 -- classified and settled, then raised again
            error = raised
            with contextlib.suppress(BaseException):  # only the first exception is reported
                self._close_iterable()
        end()
        return self._finish(error)

    def run_unheard(self, environ: Environ, spool: Spool) -> None:
        """Run after the client got its 202: the answer is for later retries. Raises as :meth:`run`."""
        self._start_response = discard_response
        close_each(self.run(environ, spool))  # closing a streamed answer runs it to its end

    def _finish(self, error: BaseException | None) -> Iterable[bytes]:
        answer = self.settle(error)
        if answer is None or self._through:
            if error is not None:
                raise error
            return ()
        line = self._status_line if answer.status == self._capture.status else None
        pieces = send_answer(self._start_response, answer, line)
        return pieces if error is None else Closing(pieces, lambda: _raise(error))

    def settle(self, error: BaseException | None) -> Answer | None:
        """Settle the outcome of the application; returns the answer that may leave, if any."""
        return settle_call(self._engine, self._exchange, self._permit, self._capture, error)

    # --- what the application gets ------------------------------------------------------------

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None) -> Write:
        """Take the head of the answer; with ``exc_info`` it replaces an earlier head that has not left."""
        capture = self._capture
        if capture.started:
            if exc_info is None or exc_info[1] is None:
                raise RuntimeError("the application called start_response twice")
            if self._through:
                raise exc_info[1].with_traceback(exc_info[2])
            capture.restart()
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._status_line = status
        self._fits = capture.start(int(status[:3]), pairs)
        return self._write

    def _write(self, data: bytes) -> None:
        self._take(data)
        if self._through:
            for chunk in self._capture.release():
                self._server_write(chunk)

    def _take(self, piece: bytes) -> None:
        capture = self._capture
        if not capture.started:
            raise RuntimeError("the application returned a body before it called start_response")
        if self._dropped:
            capture.count(piece)
            return
        if (not capture.add(piece) or not self._fits) and not self._through:
            self._let_go()

    def _let_go(self) -> None:
        """Let an answer flow that cannot be held, after marking it as not kept; never for an ATOMIC command."""
        permit, capture = self._permit, self._capture
        if self._exchange.route.atomic:
            permit.kept = False
            self._dropped = True
            raise AnswerTooLarge("the answer of an ATOMIC command is longer than answer_bytes_max; it is rolled back")
        try:
            marked_so = self._engine.mark_not_kept(permit)
        except StoreError:
            marked_so = False
        if not marked_so:
            self._dropped = True
            capture.release()
            return
        pairs = (*capture.headers, *self._exchange.honours(permit))
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
        self._server_write = self._start_response(self._status_line, headers)
        self._through = True

    # --- the iterable -------------------------------------------------------------------------

    def next_of(self, pieces: Iterator[bytes]) -> bytes | None:
        """Return the next piece that flows through; None at the end."""
        for piece in pieces:
            if piece:
                self._capture.count(piece)
                return piece
        return None

    @property
    def may_drain(self) -> bool:
        """Return whether a handler whose client has disconnected is still run to its end."""
        return not self._capture.endless and time.monotonic() < self._permit.deadline_monotonic

    def end_of_stream(self, error: BaseException | None) -> None:
        """Close a streamed application that has ended, and settle. Raises its exception."""
        try:
            self._close_iterable()
        except BaseException as raised:  # noqa: BLE001 -- classified and settled, then raised again
            error = error or raised
        if error is None:
            error = self._end()
        try:
            self.settle(error)
            if error is not None:
                raise error
        finally:
            error = None  # it holds this frame

    def _end(self) -> IncompleteAnswer | None:
        """Return the error of an ended answer, if any."""
        self._capture.end()
        return None if self._capture.complete else IncompleteAnswer(CUT)

    def _close_iterable(self) -> None:
        iterable, self._iterable = self._iterable, ()
        close_each(iterable)


class _Through:
    """The iterable of a streamed answer. Its end, or its close, settles the command."""

    def __init__(self, call: WsgiCall, pieces: Iterator[bytes], held: list[bytes], end: Callable[[], None]) -> None:
        self._call = call
        self._pieces = pieces
        self._held = held
        self._end_body = end
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._held:
            return self._held.pop(0)
        if self._over:
            raise StopIteration
        try:
            piece = self._call.next_of(self._pieces)
        except BaseException as error:
            self._end(error)
            raise
        if piece is None:
            self._end(None)
            raise StopIteration
        return piece

    def close(self) -> None:
        """Close after the server has finished or its client has disconnected; a handler still runs to its end."""
        error: BaseException | None = None
        try:
            while not self._over and self._call.may_drain:
                if self._call.next_of(self._pieces) is None:
                    break
        except BaseException as raised:  # noqa: BLE001 -- classified and settled, then raised again
            error = raised
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if not self._over:
            self._over = True
            self._end_body()
            self._call.end_of_stream(error)


class Closing:
    """An iterable with an action at its close, whose errors reach the server after the answer."""

    def __init__(self, pieces: Iterable[bytes], act: Callable[[], None]) -> None:
        self._pieces = pieces
        self.close = act

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


def close_each(*things: object) -> None:
    """Close each object that can be closed, in order, even if one of them raises."""
    with contextlib.ExitStack() as closing:
        for thing in reversed(things):
            close = getattr(thing, "close", None)
            if close is not None:
                closing.callback(close)


def write_nowhere(data: bytes) -> None:
    """Drop a write that must not reach the server."""


def discard_response(status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None) -> Write:
    """Act as the start_response of a client that already has its answer."""
    return write_nowhere


def _raise(error: BaseException) -> None:
    raise error


def _read(exchange: Exchange, environ: Environ, spool: Spool) -> Command | Answer:
    """Read the body up to the length that the server gives."""
    source: IO[bytes] = environ.get("wsgi.input") or io.BytesIO()
    length: str = environ.get("CONTENT_LENGTH") or ""
    endless = bool(environ.get("wsgi.input_terminated"))
    left = int(length) if length.isdigit() else None
    while endless or left:
        chunk = source.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
        if not chunk:
            break
        if left is not None:
            left -= len(chunk)
        refusal = exchange.feed(chunk)
        if refusal is not None:
            return refusal
        spool.write(chunk)
    # The body of a client that disconnected is incomplete.
    return exchange.cut_short() if left else exchange.finish(spool)
