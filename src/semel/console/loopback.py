"""The console for one operator on this machine: a link with a token that works once, then a cookie."""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

from semel.console.app import Console, Receive, Scope, Send

_WELCOME: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/"><title>Semel</title>
<p><a href="/">To the console</a></p></html>
"""


class Loopback:
    """Admits one browser by a link, and refuses requests under any other host name.

    Parameters: ``user`` the operator's name; ``hosts`` as browsers write them, such as ``127.0.0.1:8085``. Its
    ``console`` is set afterwards, with :meth:`operator` as its ``authorise``.
    """

    def __init__(self, user: str, hosts: tuple[str, ...]) -> None:
        self.token: str | None = secrets.token_urlsafe(24)
        self.console: Console | None = None
        self._user = user
        self._hosts = hosts
        self._session = secrets.token_urlsafe(24)
        self._cookie = f"semel_console_{hosts[0].rpartition(':')[2]}"  # browsers share cookies between ports

    def operator(self, request: Request) -> str | None:
        """Return the operator's name if the request has the cookie."""
        try:
            cookie = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        given = "" if cookie is None else cookie.value
        return self._user if hmac.compare_digest(given.encode(), self._session.encode()) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert self.console is not None
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if request.headers.get("host", "") not in self._hosts:  # a different host name means an attack (DNS rebinding)
            await PlainTextResponse("unknown host\n", 421)(scope, receive, send)
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not given or request.method != "GET":
            await self.console(scope, receive, send)
            return
        if self.token is None or not hmac.compare_digest(given.encode(), self.token.encode()):
            text = "This link has been used, or is not from this console: start semel console again.\n"
            await PlainTextResponse(text, 403)(scope, receive, send)
            return
        self.token = None
        # No redirect: after a link from another site, browsers do not send a Strict cookie with the redirect.
        response = HTMLResponse(_WELCOME, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        await response(scope, receive, send)
