"""A WSGI application as a target: called by hand, in threads."""

from __future__ import annotations

import io
import sys
from typing import Any

from semel.check.discovery import CheckedOperation, discover
from semel.errors import SemelError
from semel.testing.idempotent.case import Request
from semel.testing.idempotent.reply import Reply
from semel.testing.idempotent.targets.target import Fate, encode_headers, name_of
from semel.testing.idempotent.targets.threads import Threads


class WsgiTarget:
    """A WSGI application, such as a Flask application or one wrapped in middlewares.

    Parameters: as :class:`~semel.testing.idempotent.targets.asgi.AsgiTarget`. The application opens its own engine.
    """

    def __init__(self, app: Any, *, key_header: str = "", replayed_header: str = "") -> None:
        self.app = app
        self.name = name_of(app)
        self.found = discover(app)
        surface = next((each.surface for each in self.found.operations if each.surface is not None), None)
        self.key_header = key_header or (surface.key_header if surface else "Idempotency-Key")
        self.replayed_header = replayed_header or (surface.replayed_header if surface else "Idempotency-Replayed")
        self._threads = Threads()

    def operation(self, request: Request) -> CheckedOperation | None:
        """Return the declared operation of a request."""
        return self.found.find(request.method, request.path.partition("?")[0])

    async def open(self) -> None:
        """Start the threads; a WSGI application has no lifespan."""
        self._threads.open()

    async def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def attempt(self, request: Request, key: str | None, fate: Fate) -> Reply:
        """Send one request, in a thread."""
        return await self._threads.run(lambda: self._call(request, key, fate))

    def _call(self, request: Request, key: str | None, fate: Fate) -> Reply:
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        written: list[bytes] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            heads.append((status, headers))
            return written.append

        try:
            pieces = self.app(self._environ(request, key), start_response)
            try:
                if fate is Fate.ANSWERED:
                    written.extend(pieces)
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # noqa: BLE001 -- whatever the application raises is what came
            if fate is Fate.LEAVES:
                return Reply(lost=True)
            if not heads or isinstance(error, SemelError):
                return Reply(error=error)
        if fate is Fate.LEAVES:
            return Reply(lost=True)
        if not heads:
            return Reply(error=RuntimeError("the application returned without calling start_response"))
        status, headers = heads[-1]
        replay = any(n.lower() == self.replayed_header.lower() and v == "true" for n, v in headers)
        return Reply(int(status[:3]), tuple(headers), b"".join(written), replay=replay)

    def _environ(self, request: Request, key: str | None) -> dict[str, Any]:
        path, _, query = request.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": query,
            "SERVER_NAME": "testserver",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_LENGTH": str(len(request.body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(request.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in encode_headers(request.headers, key, self.key_header):
            variable = name.upper().replace("-", "_")
            environ[variable if variable == "CONTENT_TYPE" else f"HTTP_{variable}"] = value
        environ.setdefault("HTTP_HOST", "testserver")
        return environ
