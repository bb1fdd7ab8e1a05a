"""Applications that serve ``semel.js`` and its types, and no other file; mount one at a path such as ``/semel``."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from semel.core.model import Answer

SOURCE: Final = Path(__file__).parent
"""The folder with ``semel.js`` and ``semel.d.ts``, for bundlers and servers of static files."""

_TYPES: Final = {"semel.js": b"text/javascript; charset=utf-8", "semel.d.ts": b"text/plain; charset=utf-8"}
_REASONS: Final = {200: "OK", 304: "Not Modified", 404: "Not Found", 405: "Method Not Allowed"}
_EMPTY: Final = ((b"content-length", b"0"),)


@cache
def _file(name: str) -> tuple[bytes, bytes]:
    """Return a file's content and its entity tag."""
    content = (SOURCE / name).read_bytes()
    return content, b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()


def _answer(method: str, path: str, known: bytes) -> Answer:
    """Return the answer to a request for the file that a path ends with. Parameters: ``known`` its If-None-Match."""
    name = path.rsplit("/", 1)[-1]
    if name not in _TYPES:
        return Answer(404, _EMPTY, b"")
    if method not in ("GET", "HEAD"):
        return Answer(405, ((b"allow", b"GET, HEAD"), *_EMPTY), b"")
    content, tag = _file(name)
    headers = (
        (b"content-type", _TYPES[name]),
        (b"etag", tag),
        (b"cache-control", b"no-cache"),  # revalidated each time: an upgrade takes effect at once
        (b"x-content-type-options", b"nosniff"),
    )
    if tag in known or known.strip() == b"*":
        return Answer(304, headers, b"")
    return Answer(200, (*headers, (b"content-length", b"%d" % len(content))), content if method == "GET" else b"")


class StaticApp:
    """Serves the browser module over ASGI.

    >>> from starlette.applications import Starlette
    >>> from starlette.routing import Mount
    >>> app = Starlette(routes=[Mount("/semel", StaticApp())])  # <script type="module"> imports /semel/semel.js
    """

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"StaticApp answers HTTP requests, not {scope['type']}; mount it below an application")
        known = b", ".join(value for name, value in scope["headers"] if name == b"if-none-match")
        answer = _answer(scope["method"], scope["path"], known)
        await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})


class StaticWsgiApp:
    """Serves the browser module over WSGI: mount it with your framework, or with ``DispatcherMiddleware``.

    >>> from werkzeug.middleware.dispatcher import DispatcherMiddleware
    >>> from wsgiref.simple_server import demo_app
    >>> app = DispatcherMiddleware(demo_app, {"/semel": StaticWsgiApp()})
    """

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]
    ) -> Iterable[bytes]:
        """Answer one request."""
        known = environ.get("HTTP_IF_NONE_MATCH", "").encode("latin-1")
        answer = _answer(environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""), known)
        headers = [(name.decode(), value.decode()) for name, value in answer.headers]
        start_response(f"{answer.status} {_REASONS[answer.status or 200]}", headers)
        return [answer.body]
