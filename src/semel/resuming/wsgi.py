"""Run a stored request through a WSGI application again, without its client, as a completer's handler.

As over ASGI (``resuming.asgi``), the application that is called is the one *inside* the authentication.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from semel.core.model import Answer
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import NothingHappened
from semel.http.capture import Capture
from semel.http.exchange import CUT, IncompleteAnswer
from semel.http.routing import Route
from semel.http.settings import HttpSettings
from semel.http.wsgi.body import KeptBody
from semel.http.wsgi.inside import Given
from semel.http.wsgi.route import CALL_KEY, RouteCall
from semel.policy import Command
from semel.resuming.request import RESUMED, Asking, KeptRequest, NotReached, resumable_routes, unpack
from semel.resuming.worker import Completer

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_UNPREFIXED = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}


class ResumedApp:
    """The handler of a completer on an :class:`~semel.engine.sync_engine.Engine` that runs a kept request through an
    application, in a thread.

    Parameters: ``app`` a WSGI application; ``route`` of the operation; ``claims`` whether its view claims for itself:
    an answer from elsewhere is then none of the operation's.
    """

    def __init__(self, app: App, route: Route, *, claims: bool = False) -> None:
        self._app = app
        self._route = route
        self._claims = claims

    async def check(self, command: Command, request: bytes) -> None:
        """Check before the claim that this request reaches the view; no view runs.

        Raises NotReached: the execution stays as it is, and loses no attempt.
        """
        if self._claims:
            await asyncio.to_thread(self._check, command, request)

    def _check(self, command: Command, request: bytes) -> None:
        taken, given = _Taken(Capture(self._route.keeping), None), Given(None)
        try:
            self._call(unpack(request), taken, given, Asking(command))
        except Exception as error:
            if not given.is_reached:
                raise self._not_reached(f"raised {type(error).__name__}") from error
        if not given.is_reached:
            raise self._not_reached(f"was answered with {taken.capture.status}")

    def __call__(self, permit: Permit, request: bytes) -> Answer:
        """Run the request. Raises the application's errors, IncompleteAnswer and NotReached."""
        taken, given = _Taken(Capture(self._route.keeping), permit), Given(permit)
        failure = self._call(unpack(request), taken, given, permit)
        if failure is not None and isinstance(failure, (NothingHappened, *permit.command.policy.nothing_happened)):
            raise failure  # the exception proves more than the framework's answer to it
        if not taken.capture.started:
            raise IncompleteAnswer("the application returned without calling start_response")
        if self._claims and not given.is_reached:
            raise self._not_reached(f"was answered with {taken.capture.status}")
        if failure is not None:
            raise failure  # an error page proves nothing
        taken.capture.end()
        if not taken.capture.complete:
            raise IncompleteAnswer(CUT)
        return taken.capture.to_store()

    def _call(self, kept: KeptRequest, taken: _Taken, given: Given, permit: Permit | Asking) -> BaseException | None:
        """Call the application; returns its view's exception, if that is not an answer."""
        environ = _environ(kept, permit)
        call: RouteCall | None = None
        if self._claims:
            body = KeptBody(environ["wsgi.input"], len(kept.body), len(kept.body))
            call = environ[CALL_KEY] = RouteCall(self._app, body, taken.start_response, environ, None)
            call.given = given
        try:
            pieces = self._app(environ, taken.start_response)
            try:
                for piece in pieces:
                    taken.take(piece)
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
            return None if call is None else call.exception_of(taken.capture.status)
        finally:
            environ.pop(CALL_KEY, None)
            if call is not None:
                call.body.end()

    def _not_reached(self, what: str) -> NotReached:
        return NotReached.describe(self._route.name, what, "environ")


class _Taken:
    """The ``start_response`` of a run whose answer goes to the store alone."""

    def __init__(self, capture: Capture, permit: Permit | None) -> None:
        self.capture = capture
        self._permit = permit
        self._keeps = True

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None = None,
    ) -> Callable[[bytes], object]:
        if self.capture.started:
            if exc_info is None:
                raise RuntimeError("the application called start_response twice")
            self.capture.restart()
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if not self.capture.start(int(status[:3]), pairs):
            self._let_go()
        return self.take

    def take(self, piece: bytes) -> None:
        if not self.capture.started:
            raise RuntimeError("the application returned a body before it called start_response")
        if not self._keeps:
            self.capture.count(piece)
        elif not self.capture.add(piece):
            self._let_go()
            self.capture.release()

    def _let_go(self) -> None:
        """Drop the answer, which is too long to be kept."""
        self._keeps = False
        if self._permit is not None:
            self._permit.kept = False


def _environ(kept: KeptRequest, permit: Permit | Asking) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": kept.method,
        "SCRIPT_NAME": kept.root,
        "PATH_INFO": kept.path,
        "QUERY_STRING": kept.query.decode("latin-1"),
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "443" if kept.scheme == "https" else "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": kept.scheme,
        "wsgi.input": io.BytesIO(kept.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "CONTENT_LENGTH": str(len(kept.body)),
        "semel.permit": permit,
        RESUMED: True,
    }
    for name, value in kept.headers:
        plain = f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"
        environ[_UNPREFIXED.get(name, plain)] = value.decode("latin-1")
    return environ


def completer_of(surface: HttpSettings, engine: Engine, app: App) -> Completer | None:
    """Make a completer of the surface's resumable operations; None if there are none.

    Parameters: ``app`` the application *inside* the middleware.
    """
    return completer_for(engine, app, resumable_routes(surface), claims=False)


def completer_for(engine: Engine, app: App, routes: Iterable[Route], *, claims: bool = True) -> Completer | None:
    """Return a completer of these operations that are resumable; None where none is.

    Parameters: ``claims`` whether the views claim, and not the middleware.
    """
    resumable = [route for route in routes if route.policy.resumable]
    if not resumable:
        return None
    completer = Completer(engine)
    for route in resumable:
        completer.register(route.name, route.policy, ResumedApp(app, route, claims=claims))
    return completer
