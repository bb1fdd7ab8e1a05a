"""The capture of one Django request: keeps its body for the claim, and takes its answer after Django's commit."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import UnreadablePostError
from django.urls import Resolver404, resolve

from semel.core.model import Answer
from semel.errors import ConfigurationError, InvalidBody, RequestTooLarge
from semel.http.exchange import CUT, IncompleteAnswer
from semel.http.routing import Params, Route
from semel.http.wsgi.answer import headers_of
from semel.http.wsgi.body import KeptBody
from semel.http.wsgi.inside import Head, InsideCall, fill_in_time
from semel.integrations.django.answer import in_place_of, lines_of, whole_of, with_lines
from semel.integrations.django.site import names_at, site
from semel.policy import Command
from semel.stores.sql import django as databases

if TYPE_CHECKING:
    from semel.integrations.django.atomic import AtomicRun
    from semel.integrations.django.middleware import SemelMiddleware
    from semel.integrations.django.site import ProjectStore

CALL: Final = "semel_call"


class DjangoCall(InsideCall):
    """The capture of one request; its view claims through it."""

    def __init__(self, request: Any, middleware: SemelMiddleware) -> None:
        super().__init__()
        self._middleware = middleware
        self.atomic: AtomicRun | None = None
        self._body: KeptBody | None = None
        self._request = request
        if not hasattr(request, "_body") and not request._read_started and _may_claim(request):
            self._body = request._stream = KeptBody(
                _source_of(request), _length_of(request), site().body_bytes_max
            )  # readers of the form, such as the CSRF check, leave the bytes for the claim

    def announce_length(self) -> Answer | None:
        """Let Django read a chunked body, which it would take for empty; or return the answer that refuses it.

        Raises UnreadablePostError: the client has gone.
        """
        body, environ = self._body, self._request.META
        if body is None or environ.get("CONTENT_LENGTH") or not environ.get("wsgi.input_terminated"):
            return None
        place = site().place(site().database)
        problems, seconds = place.surface.problems, place.surface.body_seconds_max
        try:
            fits = fill_in_time(body, environ, seconds)
        except InvalidBody as error:
            return problems.of_error(error)
        except OSError as error:
            raise UnreadablePostError(*error.args) from error
        if fits is None:
            return problems.body_too_slow(seconds)
        if not fits:
            text = f"The body is larger than {site().body_bytes_max} bytes; send a smaller one."
            return problems.of_error(RequestTooLarge(text))
        environ["CONTENT_LENGTH"] = str(body.spool.size)
        return None

    def command_of(self, place: ProjectStore, route: Route, params: Params, request: Any) -> Command | Answer | None:
        """Make the view's command; or the answer to send instead, or None to run unprotected.

        Parameters: ``request`` that the caller function reads: Django's, or REST framework's.
        """
        inner = self._request
        self._middleware.limit_waiters(place.engine)
        mount = inner.META.get("SCRIPT_NAME", "")
        head = Head(inner.method, _query_of(inner), headers_of(inner.META), _length_of(inner), mount)
        return self.command(place.engine, place.surface, route, params, request, head, self._keep_body(), inner.META)

    def _keep_body(self) -> KeptBody:
        if self._body is None:
            request = self._request
            if not hasattr(request, "_body") and request._read_started:
                raise ConfigurationError(
                    "the request's body was read before Semel's middleware saw the request; in MIDDLEWARE, write "
                    "'semel.integrations.django.middleware.SemelMiddleware' above the middleware that reads it"
                )
            body = request.body
            self._body = KeptBody(io.BytesIO(body), len(body), site().body_bytes_max)
        return self._body

    def accept(self) -> Answer | None:
        """Run the granted request again behind the other middlewares, in its own thread; return 202 for its client.
        None if no thread is free: then the client waits.
        """
        request = again(self._request, b"".join(self._keep_body().spool.chunks()))
        further = DjangoCall(request, self._middleware)
        self.prepare(further)
        if not self._middleware.accepted.begin(lambda: further.run_unheard(request)):
            further.finish()
            return None
        return self.hand_over()

    def run_unheard(self, request: Any) -> None:
        """Run the request after its client got 202: the answer is for later requests."""
        setattr(request, CALL, self)
        try:
            response = self.conclude(self._middleware.respond(request))
            for _ in response if response.streaming else ():
                pass
            response.close()
            self.check_reached()
            self.finish()
        except BaseException as error:
            self.let_go(error)
            self.finish()
            raise
        finally:
            databases.close_connections()

    # --- the answer -------------------------------------------------------------------------------

    def conclude(self, response: Any) -> Any:
        """Settle by the meaning of Django's response; return the response to send."""
        if self.atomic is not None:
            return self.atomic.conclude(response)
        if self.permit is None:
            return self._answer_unclaimed(response)
        assert self.capture is not None
        fits = self.capture.start(response.status_code, lines_of(response))
        if not response.streaming:
            if self.capture.add(response.content) and fits:
                return self._settle(response)
            is_noted = self.mark_not_kept()  # too long to store: note that before its first byte leaves
            settled = self._settle(response)
            return self._add_honoured(response) if is_noted else settled
        pieces = iter(response)
        held: list[bytes] = []
        try:
            while fits and (piece := next(pieces, None)) is not None:
                held.append(piece)
                fits = self.capture.add(piece)
        except BaseException as error:
            self.settle(error)
            raise
        if fits:
            return self._settle(whole_of(response, b"".join(held)))
        if not self.mark_not_kept():
            for piece in pieces:
                self.capture.count(piece)
            return self._settle(whole_of(response, b"".join(held)))
        self.capture.release()
        response = self._add_honoured(response)
        response.streaming_content = _Through(self, held, pieces)
        return response

    async def conclude_async(self, response: Any) -> Any:
        """As :meth:`conclude`, on an event loop."""
        if self.permit is None or not response.streaming or not response.is_async:
            return await sync_to_async(self.conclude, thread_sensitive=False)(response)
        assert self.capture is not None
        fits = self.capture.start(response.status_code, lines_of(response))
        pieces = aiter(response)
        held: list[bytes] = []
        try:
            while fits:
                piece = await anext(pieces, None)
                if piece is None:
                    break
                held.append(piece)
                fits = self.capture.add(piece)
        except BaseException as error:
            await sync_to_async(self.settle, thread_sensitive=False)(error)
            raise
        if fits:
            whole = whole_of(response, b"".join(held))
            return await sync_to_async(self._settle, thread_sensitive=False)(whole)
        if not await sync_to_async(self.mark_not_kept, thread_sensitive=False)():
            async for piece in pieces:
                self.capture.count(piece)
            return await sync_to_async(self._settle, thread_sensitive=False)(whole_of(response, b"".join(held)))
        self.capture.release()
        response = self._add_honoured(response)
        response.streaming_content = self._through_async(held, pieces)
        return response

    def _add_honoured(self, response: Any) -> Any:
        """Add the headers about the key to an answer that is not stored."""
        assert self.exchange is not None
        assert self.permit is not None
        return with_lines(response, self.exchange.honours(self.permit))

    def _answer_unclaimed(self, response: Any) -> Any:
        if self.instead is None:
            return response if self.mark is None else with_lines(response, (self.mark,))
        assert self.capture is not None
        self.capture.start(response.status_code, lines_of(response))
        return in_place_of(response, self.capture.instead(self.instead))

    def _settle(self, response: Any) -> Any:
        """Settle a response that is whole."""
        assert self.capture is not None
        self.capture.end()
        failure = self._error_behind(response.status_code)
        if not self.capture.complete:
            failure = IncompleteAnswer(CUT)
        answer = self.settle(failure)
        if answer is None:
            if isinstance(failure, IncompleteAnswer):
                raise failure
            return self._add_honoured(response)  # the page of an exception, with a link to the command
        if (answer.status, answer.body) != (response.status_code, response.content):
            return in_place_of(response, self.capture.instead(answer))
        return with_lines(response, (line for line in answer.headers if line not in self.capture.headers))

    def _error_behind(self, status: int) -> BaseException | None:
        """Return the view's exception if its answer proves nothing about the command: any status but 4xx.

        A middleware may answer each exception with its error page, and a page is not proof of success.
        """
        return None if 400 <= status < 500 else self.failure

    def end_of_stream(self, error: BaseException | None) -> None:
        """Note that the streamed response has ended."""
        assert self.capture is not None
        if error is None:
            self.capture.end()
            error = self._error_behind(self.capture.status) if self.capture.complete else IncompleteAnswer(CUT)
        self.settle(error)

    @property
    def may_drain(self) -> bool:
        """Whether a view is still run to its end after its client disconnected."""
        assert self.capture is not None
        assert self.permit is not None
        return not self.capture.endless and time.monotonic() < self.permit.deadline_monotonic

    async def _through_async(self, held: list[bytes], pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        assert self.capture is not None
        error: BaseException | None = None
        try:
            for piece in held:
                yield piece
            async for piece in pieces:
                self.capture.count(piece)
                yield piece
        except BaseException as raised:
            error = raised
            raise
        finally:
            # Also if the client has gone, when nothing can be awaited: then this thread waits for the store.
            self.end_of_stream(error)

    def finish(self, response: Any | None = None) -> None:
        """Release the body's memory: after the answer, or when the answer's stream ends."""
        self.end()
        vars(self._request).pop(CALL, None)
        if self._body is None:
            return
        if response is not None and response.streaming:
            response._resource_closers.append(self._body.end)
        else:
            self._body.end()


class _Through:
    """The pieces of a streamed response. Its end, or its close, settles the command."""

    def __init__(self, call: DjangoCall, held: list[bytes], pieces: Iterator[bytes]) -> None:
        self._call = call
        self._held = held
        self._pieces = pieces
        self._is_over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._held:
            return self._held.pop(0)
        if self._is_over:
            raise StopIteration
        try:
            piece = next(self._pieces)
        except StopIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        self._count(piece)
        return piece

    def close(self) -> None:
        """End the stream: the server has finished, or its client has gone; the view may still run to its end."""
        error: BaseException | None = None
        try:
            while not self._is_over and self._call.may_drain:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._count(piece)
        except BaseException as raised:  # noqa: BLE001 -- it is settled, and its client is gone
            error = raised
        self._end(error)

    def _count(self, piece: bytes) -> None:
        assert self._call.capture is not None
        self._call.capture.count(piece)

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._call.end_of_stream(error)


def again(request: Any, body: bytes) -> Any:
    """Make an unread copy of the request, with the attributes that middlewares have set."""
    environ = getattr(request, "environ", None)
    if environ is not None:
        length = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        made: Any = WSGIRequest({**environ, **length})
    else:
        made = ASGIRequest(request.scope, io.BytesIO(body))
    own = vars(made)
    for name, value in list(vars(request).items()):
        if not name.startswith("_") and name not in own and name != CALL:
            setattr(made, name, value)
    return made


def environ_of(request: Any) -> dict[str, Any]:
    """Make the WSGI environ of a request, also over ASGI, whose body has not been read."""
    if "wsgi.input" not in request.META:
        return {**request.META, "wsgi.input": request, "wsgi.input_terminated": True}  # Django has the whole body
    source = request
    if request.META.get("wsgi.input_terminated") and not request.META.get("CONTENT_LENGTH"):
        source = request.META["wsgi.input"]  # chunked, without a length: Django would take it for empty
    return {**request.META, "wsgi.input": source}


def _may_claim(request: Any) -> bool:
    """Return whether the view of a request is, or may be, a declared one."""
    try:
        view = resolve(request.path_info, getattr(request, "urlconf", None)).func
    except Resolver404:
        return False
    return next(names_at(view), None) is not None


def _length_of(request: Any) -> int | None:
    """Read the announced length of the body; None if it ends with its stream."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if str(length).isdecimal():
        return int(length)
    source = request._stream
    return 0 if getattr(source, "__len__", None) is not None and not len(source) else None


def _source_of(request: Any) -> Any:
    """Return the body's whole stream: Django cuts it off at the announced length, or at 0 without one."""
    environ, source = request.META, request._stream
    if environ.get("CONTENT_LENGTH"):
        return source
    if environ.get("wsgi.input_terminated"):
        return environ["wsgi.input"]
    if getattr(request, "scope", None) is not None and hasattr(source, "seek"):  # over ASGI Django has the whole body
        environ["CONTENT_LENGTH"] = str(source.seek(0, io.SEEK_END))
        source.seek(0)
    return source


def _query_of(request: Any) -> bytes:
    scope = getattr(request, "scope", None)
    if scope is not None:
        query: bytes | str = scope.get("query_string", b"")
        return query if isinstance(query, bytes) else query.encode()  # Django's own test client gives a text
    return str(request.META.get("QUERY_STRING", "")).encode("latin-1")
