"""A kept request, run through a WSGI application once more without its client: what a completer gives to a handler.

As over ASGI (``asgi_resumed``), the application that is called is the one *inside* whatever authenticates.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from semel.core.model import Answer
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.http.capture import Capture
from semel.http.exchange import CUT, IncompleteAnswer
from semel.http.routing import Route
from semel.http.settings import HttpSettings
from semel.resuming.request import KeptRequest, resumable_routes, unpack
from semel.resuming.worker import Completer

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_UNPREFIXED = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}


class ResumedApp:
    """The handler of a completer on an :class:`~semel.engine.sync_engine.Engine` that runs a kept request through an
    application, in a thread.

    Parameters: ``app`` a WSGI application; ``route`` of the operation.
    """

    def __init__(self, app: App, route: Route) -> None:
        self._app = app
        self._route = route

    def __call__(self, permit: Permit, request: bytes) -> Answer:
        """Run it. Raises what the application raises, and IncompleteAnswer."""
        taken = _Taken(Capture(self._route.keeping), permit)
        pieces = self._app(_environ(unpack(request), permit), taken.start_response)
        try:
            for piece in pieces:
                taken.take(piece)
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        if not taken.capture.started:
            raise IncompleteAnswer("the application returned without calling start_response")
        taken.capture.end()
        if not taken.capture.complete:
            raise IncompleteAnswer(CUT)
        return taken.capture.stored()


class _Taken:
    """The ``start_response`` of a run whose answer goes to the store alone."""

    def __init__(self, capture: Capture, permit: Permit) -> None:
        self.capture = capture
        self._permit = permit

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
            self._permit.kept = False
        return self.take

    def take(self, piece: bytes) -> None:
        if not self.capture.started:
            raise RuntimeError("the application gave a body before it called start_response")
        if not self._permit.kept:
            self.capture.count(piece)
        elif not self.capture.add(piece):
            self._permit.kept = False
            self.capture.release()


def _environ(kept: KeptRequest, permit: Permit) -> dict[str, Any]:
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
    }
    for name, value in kept.headers:
        plain = f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"
        environ[_UNPREFIXED.get(name, plain)] = value.decode("latin-1")
    return environ


def completer_of(surface: HttpSettings, engine: Engine, app: App) -> Completer | None:
    """A completer of the surface's resumable operations; None where there are none.

    Parameters: ``app`` the application *inside* the middleware.
    """
    routes = resumable_routes(surface)
    if not routes:
        return None
    completer = Completer(engine)
    for route in routes:
        completer.register(route.name, route.policy, ResumedApp(app, route))
    return completer
