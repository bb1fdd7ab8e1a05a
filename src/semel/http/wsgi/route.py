"""The WSGI wrapper around an application whose views claim for themselves: claim inside, capture outside.

As in ``asgi.route`` on event loops, it does nothing until a view claims. From then on the application's answer is
held until its iterable has been read and closed; then it is settled and sent. If the claim ends in Semel's own answer,
such as a replay, that answer leaves from here, and the application's version of it is dropped.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from semel.core.model import Answer
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.routing import UNSAFE_METHODS, Params, Route
from semel.http.settings import HttpSettings
from semel.http.wsgi.answer import Environ, ExcInfo, StartResponse, Write, headers_of, send_answer, with_mark
from semel.http.wsgi.body import KeptBody, length_of
from semel.http.wsgi.inside import Head, InsideCall, settle_call
from semel.http.wsgi.middleware import App, Closing, WsgiCall, close_each, discard_response, write_nowhere
from semel.http.wsgi.threads import Accepted, Threads
from semel.policy import Command

CALL_KEY: Final = "semel.call"


class RouteCall(InsideCall):
    """One request of an application whose views claim for themselves.

    The functions ``before_settling`` are called once before the outcome is settled, in this order: they close what a
    view has left open on the command's transaction.
    """

    def __init__(
        self, app: App, body: KeptBody, start_response: StartResponse, environ: Environ, accepted: Accepted | None
    ) -> None:
        super().__init__()
        self.body = body
        self._environ = environ
        self._accepted = accepted
        self.before_settling: list[Callable[[], None]] = []
        self._app = app
        self._start_response = start_response
        self._is_started = False
        self._held: _HeldAnswer | None = None

    def run(self, environ: Environ) -> Iterable[bytes]:
        """Call the application; settle and answer if a view was granted a permit on the way."""
        pieces: Iterable[bytes] = ()
        error: BaseException | None = None
        try:
            pieces = self._call(environ)
        except BaseException as raised:
            if not self.has_claimed or not isinstance(raised, Exception):
                raise
            error = raised
        try:
            if self.permit is not None:
                return self._answer().read(lambda: _give(pieces, error), self.body.end)
            if self.instead is not None:
                return self._answer_instead(self.instead, pieces, error)
            self.is_over = True
            if self.body.pass_on():
                return pieces
            return Closing(pieces, lambda: close_each(pieces, Closing((), self.body.end)))
        finally:
            error = None  # it holds this frame

    def _call(self, environ: Environ) -> Iterable[bytes]:
        pieces = self._app(environ, self.start_response)
        if self._is_started:
            return pieces
        rest = iter(pieces)  # an application that calls start_response with its first piece
        first = next(rest, b"")
        return Closing(chain((first,), rest), lambda: close_each(pieces))

    def _answer_instead(self, answer: Answer, pieces: Iterable[bytes], error: BaseException | None) -> Iterable[bytes]:
        """Send Semel's own answer in place of the application's; then raise the application's exception."""
        assert self.capture is not None
        try:
            close_each(pieces)
        except Exception as raised:  # noqa: BLE001 -- nothing was granted; it is raised behind the answer
            error = error or raised
        self.body.end()
        sent = send_answer(self._start_response, self.capture.instead(answer))
        return sent if error is None else Closing(sent, _raising(error))

    def run_unheard(self) -> None:
        """Run the request after its client got its 202: the answer is for later retries."""
        environ = {**self._environ, "wsgi.input": self.body, CALL_KEY: self}
        environ.pop("werkzeug.debug.preserve_context", None)  # a test client's, in its own thread
        try:
            close_each(self.run(environ))  # closing a streamed answer runs it to its end
            self.check_reached()
            self.end()
        except BaseException as error:
            with suppress(Exception):
                self.leave()
            self.let_go(error)
            self.body.end()
            self.failure = None
            raise
        finally:
            environ.pop(CALL_KEY, None)

    # --- for the view's wrapper -----------------------------------------------------------------

    def accept(self) -> Answer | None:
        """Run the granted request again from the outside, in a separate thread; answer the client with 202.

        None if no thread is free: then the client waits.
        """
        whole = b"".join(self.body.spool.chunks())  # a copy: layers after the view may still read this request's
        body = KeptBody(io.BytesIO(whole), len(whole), len(whole))
        further = RouteCall(self._app, body, discard_response, self._environ, None)
        self.prepare(further)
        if self._accepted is None or not self._accepted.begin(further.run_unheard):
            body.end()
            return None
        return self.hand_over()

    def command_of(
        self, engine: Engine, surface: HttpSettings, route: Route, params: Params, environ: Environ
    ) -> Command | Answer | None:
        """The view's command; or the answer that leaves instead, or None to run unprotected."""
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        mount = environ.get("SCRIPT_NAME", "")
        head = Head(environ["REQUEST_METHOD"].upper(), query, headers_of(environ), length_of(environ), mount)
        return self.command(engine, surface, route, params, environ, head, self.body, environ)

    def note(self, error: BaseException) -> None:
        """Note an exception that the framework caught after the claim; the view's own exception has priority."""
        if self.has_claimed and self.failure is None:
            self.note_failure(error)

    def exception_of(self, status: int) -> BaseException | None:
        """Return the exception that the application turned into an answer that says nothing about the command, if any.

        Only a 4xx, or the status of the exception itself, says something: an error page with another status proves no
        success.
        """
        return None if 400 <= status < 500 or status == self.own_status else self.failure

    def end_answer(self) -> None:
        """Drop references after the answer is settled: they would hold the whole request in a cycle."""
        self.failure = self._held = None

    def leave(self) -> None:
        """Close what the view has left open, once."""
        leaving, self.before_settling = self.before_settling, []
        for each in leaving:
            each()

    # --- what the application gets --------------------------------------------------------------

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None) -> Write:
        """Hold the head of a granted command's answer; drop one that Semel's own replaces; let every other through."""
        self._is_started = True
        if self.permit is not None:
            return self._answer().start_response(status, headers, exc_info)
        if self.instead is not None:
            assert self.capture is not None
            pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
            self.capture.start(int(status[:3]), pairs)
            return write_nowhere
        self.is_over = True
        start = self._start_response if self.mark is None else with_mark(self._start_response, self.mark)
        return start(status, headers) if exc_info is None else start(status, headers, exc_info)

    def _answer(self) -> _HeldAnswer:
        if self._held is None:
            self._held = _HeldAnswer(self, self._app, self._start_response)
        return self._held


class _HeldAnswer(WsgiCall):
    """The answer of a view that was granted a permit."""

    def __init__(self, call: RouteCall, app: App, start_response: StartResponse) -> None:
        assert call._engine is not None
        assert call.exchange is not None
        assert call.permit is not None
        super().__init__(app, call._engine, call.exchange, call.permit, start_response, call.capture)
        self._call = call

    def settle(self, error: BaseException | None) -> Answer | None:
        """Settle the outcome of the application; return the answer that may leave, if any."""
        call, capture = self._call, self._capture
        left: BaseException | None = None
        try:
            call.leave()
        except Exception as ended:  # noqa: BLE001 -- as if the application had raised it
            left = ended
        failure = error or left or call.exception_of(capture.status)
        try:
            raised = None if capture.status == call.own_status else call.failure
            answer = settle_call(self._engine, self._exchange, self._permit, capture, failure, raised)
            if answer is not None or error is not None:
                return answer
            if left is not None:
                raise left
            # The page of the application's exception, with a link to the command.
            return capture.first(() if self._exchange.route.atomic else self._exchange.honours(self._permit))
        finally:
            call.end_answer()
            failure = left = raised = None


class CaptureMiddleware:
    """Wraps a WSGI application whose views claim for themselves.

    Parameters: ``app`` and ``engine``; ``bytes_max`` how much of a body is kept for a claim; ``waiters_max`` as for
    :class:`~semel.http.wsgi.middleware.SemelMiddleware`; ``check`` is called before each request and raises if the
    application is built wrongly.
    """

    def __init__(
        self,
        app: App,
        engine: Engine,
        *,
        bytes_max: Callable[[], int],
        check: Callable[[], None] = lambda: None,
        waiters_max: int | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigurationError(f"a WSGI application needs a semel.Engine, not {type(engine).__name__}")
        self.app = app
        self.engine = engine
        self._bytes_max = bytes_max
        self._check = check
        self._threads = Threads(waiters_max)
        self._accepted = Accepted()
        engine.core.waiters_limit = self._threads.waiters

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request, per the WSGI specification."""
        self._check()
        if environ["REQUEST_METHOD"].upper() not in UNSAFE_METHODS or CALL_KEY in environ:
            return self.app(environ, start_response)
        with self._threads:
            return self._serve(environ, start_response)

    def close(self) -> None:
        """Wait for the views whose clients got a 202 (``Prefer: respond-async``)."""
        self._accepted.close()

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        source: Any = environ.get("wsgi.input") or io.BytesIO()
        body = KeptBody(source, length_of(environ), self._bytes_max())
        call = RouteCall(self.app, body, start_response, environ, self._accepted)
        environ = {**environ, "wsgi.input": call.body, CALL_KEY: call}
        try:
            pieces = call.run(environ)
            call.end()
        except BaseException as error:
            with suppress(Exception):  # only the first exception is reported
                call.leave()
            call.let_go(error)  # settles a grant with this exception's outcome
            call.body.end()
            call.failure = None  # the exception's frames hold the call
            raise
        finally:
            environ.pop(CALL_KEY, None)
        return pieces


def _give(pieces: Iterable[bytes], error: BaseException | None) -> Iterable[bytes]:
    if error is not None:
        raise error
    return pieces


def _raising(error: BaseException) -> Callable[[], None]:
    def raise_error() -> None:
        raise error

    return raise_error
