"""A worker's health over HTTP, for its supervisor: whether its event loop is alive and it reaches its store."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

LIVE: Final = "/livez"
READY: Final = "/readyz"
ANSWER_SECONDS: Final = 10.0  # a probe may treat the worker as dead after so long without an answer

Check = Callable[[], Awaitable[Mapping[str, Any]]]


class _Listening6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class HealthServer:
    """Answers ``GET /livez`` and ``GET /readyz`` from a separate thread, as a context manager on a running loop.

    Parameters: ``host`` and ``port`` to listen on (0: a free one, see ``address``); ``check`` queries the store, and
    returns the details for a probe; ``answer_seconds`` that the loop and the store may take.

    ``/livez`` is 200 while the event loop runs: restart the worker if it is not. ``/readyz`` is 200 while the store
    answers too. Both are 503 otherwise. They need no credentials and reveal no names: listen where only probes connect.

    Raises OSError if it cannot listen on the address.

    >>> import asyncio, urllib.request
    >>> async def sound():
    ...     return {"working": ["reaper"]}
    >>> async def main():
    ...     with HealthServer("127.0.0.1", 0, sound) as health:
    ...         return await asyncio.to_thread(urllib.request.urlopen, f"http://{health.address}/readyz")
    >>> asyncio.run(main()).read()
    b'{"status": "ok", "working": ["reaper"]}\\n'
    """

    def __init__(self, host: str, port: int, check: Check, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._check = check
        self._answer_seconds = answer_seconds
        self._server = (_Listening6 if ":" in host else ThreadingHTTPServer)((host, port), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="semel-health", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """The server's address, as HOST:PORT."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def __enter__(self) -> HealthServer:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Probed(BaseHTTPRequestHandler):
            timeout = 10  # the limit for a client that sends nothing

            def do_GET(self) -> None:
                status, document = answer(self.path.partition("?")[0])
                body = f"{json.dumps(document)}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: probes come every few seconds."""

        return Probed

    def _answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        if path not in (LIVE, READY):
            return HTTPStatus.NOT_FOUND, {"status": "not found", "paths": [LIVE, READY]}
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(self._look(path), self._loop)
        try:
            return HTTPStatus.OK, {"status": "ok", **asked.result(self._answer_seconds)}
        except TimeoutError:
            asked.cancel()
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "no answer", "seconds": self._answer_seconds}
        except CancelledError:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "ending"}
        except Exception as error:  # noqa: BLE001 - with any error the worker does not reach its store
            # Its own text may name hosts and files: it is for the log.
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "store", "error": type(error).__name__}

    async def _look(self, path: str) -> Mapping[str, Any]:
        return await self._check() if path == READY else {}
