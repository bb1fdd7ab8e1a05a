"""The proxy as one ASGI application: the checks of a request's form, Semel's middleware, and the upstream."""

from __future__ import annotations

from typing import Any

from semel.engine.async_engine import AsyncEngine
from semel.http.asgi.call import Message, Receive, Scope, Send
from semel.http.asgi.middleware import SemelMiddleware
from semel.proxy.configuration import GRACE_SECONDS, Origin, Proxied
from semel.proxy.upstream import Cut, NotSent, Pairs, Upstream, failure


class Front:
    """What every reverse proxy of Semel's does around ``app``: refuses requests that two servers could read in two
    ways, and leaves an answer without its end where the upstream's broke off.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI says."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1011})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = _refusal(scope)
        if refused is not None:
            await _answer(send, *refused)
            return
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except NotSent:
            pass  # it has been answered and the key is free
        except Cut:
            # An answer that has begun is left without its end: the server closes the connection, which says so.
            if not started:
                text = "The upstream's answer broke off. Keep the key; query the operation."
                await _answer(send, *failure(502, text))


class ProxyApplication(Front):
    """Serves the operations of ``configuration`` in front of ``origin``; everything else passes through."""

    def __init__(self, engine: AsyncEngine, origin: Origin, configuration: Proxied) -> None:
        super().__init__(
            SemelMiddleware(
                Upstream(origin, configuration.timeouts),
                engine,
                caller=configuration.caller,
                operations=configuration.operations,
                manage_engine=True,
                serve_operations=None,
            )
        )


def serve(app: Front, host: str, port: int) -> None:
    """Serve with uvicorn until SIGTERM or SIGINT; requests on their way may end, for ``GRACE_SECONDS`` at most."""
    import uvicorn

    uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http="h11",
            ws="none",
            lifespan="on",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    ).run()


def _refusal(scope: Scope) -> tuple[int, Pairs, bytes] | None:
    """Why a request is not passed on by its form: two servers could read it in two ways."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    names = [name for name, _ in headers]
    if (
        names.count(b"content-length") > 1
        or names.count(b"transfer-encoding") > 1
        or (b"content-length" in names and b"transfer-encoding" in names)
    ):
        return failure(400, "The length of the body is given twice. Send one Content-Length or one Transfer-Encoding.")
    if names.count(b"host") > 1:
        return failure(400, "Host is given twice. Send one.")
    if not (scope.get("raw_path") or b"/").startswith(b"/"):
        return failure(400, "The path must start with a slash.")
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        return failure(501, "This proxy does not pass on WebSockets.")
    return None


async def _answer(send: Send, status: int, headers: Pairs, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def describe(configuration: Proxied) -> list[dict[str, Any]]:
    """The operations of a configuration, for people and programs."""
    return [
        {
            "operation": each.name,
            "method": each.methods[0],
            "path": each.template,
            "effects": str(getattr(each.policy.effects, "name", each.policy.effects)).lower(),
            "key": each.policy.key_from or each.policy.key,
            "answers": each.policy.answers,
            "answerSeconds": each.policy.answer_seconds,
            "timeoutSeconds": configuration.timeouts[str(each.name)],
        }
        for each in configuration.operations
    ]
