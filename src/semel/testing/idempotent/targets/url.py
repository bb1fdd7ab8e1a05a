"""A running server as a target: plain HTTP with the standard library. Its store and its clock are out of reach."""

from __future__ import annotations

import http.client
from typing import Final

from semel.addresses import split_http_url
from semel.check.discovery import CheckedOperation
from semel.errors import ConfigurationError
from semel.testing.idempotent.case import Request
from semel.testing.idempotent.reply import Reply
from semel.testing.idempotent.report import CannotRun
from semel.testing.idempotent.targets.target import ATTEMPT_SECONDS, Fate, encode_headers
from semel.testing.idempotent.targets.threads import Threads

_CONNECTIONS: Final = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class UrlTarget:
    """The base URL of a running server, such as ``http://127.0.0.1:8000`` or ``https://staging.example/api``.

    Raises ConfigurationError for any other URL.
    """

    found = None

    def __init__(
        self, url: str, *, key_header: str = "Idempotency-Key", replayed_header: str = "Idempotency-Replayed"
    ) -> None:
        try:
            parts = split_http_url(url)
        except ValueError as error:
            raise ConfigurationError(
                f"a server is given by its base URL, such as http://127.0.0.1:8000: {error}"
            ) from None
        if parts.query or parts.fragment:
            raise ConfigurationError(f"a server is given by its base URL, such as http://127.0.0.1:8000; not {url!r}")
        self.name = url.rstrip("/")
        self.key_header = key_header
        self.replayed_header = replayed_header
        self._parts = parts
        self._threads = Threads()

    def operation(self, request: Request) -> CheckedOperation | None:
        """Return None: a server's declarations cannot be read."""
        return None

    async def open(self) -> None:
        """Start the threads."""
        self._threads.open()

    async def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def attempt(self, request: Request, key: str | None, fate: Fate) -> Reply:
        """Send one request on a new connection."""
        return await self._threads.run(lambda: self._send(request, key, fate))

    def _send(self, request: Request, key: str | None, fate: Fate) -> Reply:
        parts = self._parts
        connection = _CONNECTIONS[parts.scheme](parts.hostname or "", parts.port, timeout=ATTEMPT_SECONDS)
        headers = dict(encode_headers(request.headers, key, self.key_header))
        try:
            connection.request(request.method, parts.path.rstrip("/") + request.path, request.body, headers)
            if fate is Fate.LEAVES:
                return Reply(lost=True)
            answer = connection.getresponse()
            body = answer.read()
        except ConnectionRefusedError:
            raise CannotRun(f"nothing listens at {self.name}", "start the server first, or correct the URL") from None
        except (OSError, http.client.HTTPException) as error:
            return Reply(error=error)
        finally:
            connection.close()
        pairs = tuple(answer.getheaders())
        replay = any(n.lower() == self.replayed_header.lower() and v == "true" for n, v in pairs)
        return Reply(answer.status, pairs, body, replay=replay)
