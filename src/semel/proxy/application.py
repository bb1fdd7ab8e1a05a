"""The proxy as one ASGI application: the checks of a request's form, Semel's middleware, and the upstream."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Any, Final

import uvicorn

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.http.asgi.call import Message, Receive, Scope, Send, send_answer
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.coverage import OVERRIDES
from semel.http.problems import INVALID_BODY, MISSPELLED, NOT_PASSED, Problems
from semel.http.routing import UNSAFE_METHODS
from semel.http.spelling import normal_segments, without_formats
from semel.proxy.configuration import GRACE_SECONDS, Proxied, UpstreamOrigin
from semel.proxy.upstream import HOP_BY_HOP, Cut, NotForwarded, Pairs, Upstream, connection_headers
from semel.workers.health import READY, Check, HealthServer

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_NOMINATED: Final = HOP_BY_HOP | {b"close", b"http2-settings", b""}
_ENDS_SECONDS: Final = 15  # after the commands' own time, the process ends in any case


class Front:
    """The outer layer of Semel's reverse proxies around ``app``: refuses requests that two servers could parse
    differently, and cuts off an answer if the upstream's broke off.

    Parameters: ``upstream`` innermost in ``app``; ``command_seconds`` the longest time of a command there.
    """

    def __init__(self, app: Any, upstream: Upstream, command_seconds: float = 0.0) -> None:
        self.upstream = upstream
        self.command_seconds = command_seconds
        self._app = app
        self._problems = Problems()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI requires."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1011})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is not None:
            await send_answer(send, refused)
            return
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except NotForwarded:
            pass  # it has been answered and the key is free
        except Cut as cut:
            # Do not end an answer that has begun: the server closes the connection, which tells the client.
            if not started:
                await send_answer(send, cut.answer)
            elif scope.get("http_version") == "1.0":
                _reset(send)

    def declares(self, method: str, path: str) -> bool:
        """Return whether a request is a declared operation, or a spelling that a lenient service could accept."""
        raise NotImplementedError

    def _refusal(self, scope: Scope) -> Answer | None:
        """Return the reason to refuse a malformed request: two servers could parse it differently."""
        headers: Pairs = scope["headers"]
        names = [name for name, _ in headers]
        method, path = scope["method"].upper(), scope.get("raw_path") or b"/"
        if (
            names.count(b"content-length") > 1
            or names.count(b"transfer-encoding") > 1
            or (b"content-length" in names and b"transfer-encoding" in names)
        ):
            return self._invalid("The length of the body is given twice. Send one Content-Length or Transfer-Encoding.")
        if names.count(b"host") > 1:
            return self._invalid("Host is given twice. Send one.")
        if method == "CONNECT":
            return self._problems.answer(NOT_PASSED, "This proxy makes no tunnels.")
        if not path.startswith(b"/"):
            return self._problems.answer(MISSPELLED, "The path must start with a slash.")
        if b"connection" in names and (connection_headers(headers) - _NOMINATED) & set(names):
            return self._invalid("Connection names a header that the service needs. Leave it out of Connection.")
        if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
            return self._problems.answer(NOT_PASSED, "This proxy does not pass on WebSockets.")
        overriding = [value for name, value in headers if name.replace(b"_", b"-") in OVERRIDES]
        if overriding and self._is_overridden(method, scope["path"], overriding):
            text = "A command is sent with its own method. Leave out the header that gives another one."
            return self._problems.answer(MISSPELLED, text)
        if method in _SAFE:
            return None
        if _names_a_host(scope["path"]):
            text = "The path must not start with two slashes: a service may read what follows as a host."
            return self._problems.answer(MISSPELLED, text)
        if any(name == b"early-data" and b"1" in value for name, value in headers):
            return self._problems.too_early()
        return None

    def _is_overridden(self, method: str, path: str, overriding: list[bytes]) -> bool:
        given = {value.decode("latin-1").strip().upper() for value in overriding} - {method}
        return bool(given) and any(self.declares(each, path) for each in (method, *given))

    def _invalid(self, text: str) -> Answer:
        return self._problems.answer(INVALID_BODY, text)

    # --- the end ------------------------------------------------------------------------------

    @property
    def drain_seconds(self) -> int:
        """The longest time that the process may take to end."""
        return GRACE_SECONDS + int(self.command_seconds) + _ENDS_SECONDS

    async def drain(self) -> None:
        """Log what shutdown waits for; after ``GRACE_SECONDS`` end everything except commands."""
        running = self.upstream.commands
        commands = ", ".join(f"{count} {name}" for name, count in sorted(running.items()) if count)
        others = len(self.upstream.passing)
        waits = [f"commands ({commands})"] * bool(commands) + [f"{others} other requests"] * bool(others)
        logging.getLogger("semel").warning(
            "ending; waiting for %s: commands have up to %g s, other requests %d s",
            " and ".join(waits) or "nothing",
            self.command_seconds,
            GRACE_SECONDS,
        )
        await asyncio.sleep(GRACE_SECONDS)
        for task in list(self.upstream.passing):
            task.cancel()


class ProxyApplication(Front):
    """Serves the operations of ``configuration`` in front of ``origin``; everything else passes through."""

    def __init__(self, engine: AsyncEngine, origin: UpstreamOrigin, configuration: Proxied) -> None:
        upstream = Upstream(origin, configuration.timeouts)
        middleware = SemelMiddleware(
            upstream,
            engine,
            caller=configuration.caller,
            operations=configuration.operations,
            manage_engine=True,
            serve_operations=None,
        )
        super().__init__(middleware, upstream, max(configuration.timeouts.values()))
        self._routes = middleware.surface.routes

    def declares(self, method: str, path: str) -> bool:
        """Return whether the middleware protects a request, or refuses it for its spelling."""
        if method not in UNSAFE_METHODS:
            return False
        return (
            self._routes.find(method, path) is not None
            or self._routes.find_misspelled(method, normal_segments(path)) is not None
            or self._with_format(method, path) is not None
        )

    def _with_format(self, method: str, path: str) -> str | None:
        """Return the template of the operation to which a service may route ``/payments.json``."""
        if method not in UNSAFE_METHODS or self._routes.find(method, path) is not None:
            return None
        shorter = without_formats(normal_segments(path))
        return next(filter(None, (self._routes.find_misspelled(method, segments) for segments in shorter)), None)

    def _refusal(self, scope: Scope) -> Answer | None:
        refused = super()._refusal(scope)
        if refused is None and (template := self._with_format(scope["method"].upper(), scope["path"])) is not None:
            text = f"Send it as {template}, without what follows the dot: a service may take both for one operation."
            return self._problems.answer(MISSPELLED, text)
        if refused is None and ";" in scope["path"]:
            found = self._routes.find(scope["method"], scope["path"])
            if found is not None and found[0].key_from is not None:
                text = "Leave out what follows the semicolon: a service may ignore it, and it would be part of the key."
                return self._problems.answer(MISSPELLED, text)
        return refused


class _Server(uvicorn.Server):
    """A uvicorn server that logs what it waits for at shutdown, and keeps answering probes."""

    def __init__(self, config: uvicorn.Config, front: Front, health: HealthServer | None) -> None:
        super().__init__(config)
        self._front = front
        self._health = health
        self._probed = ExitStack()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self._health is not None and self.started:
            self._probed.enter_context(self._health)

    async def shutdown(self, sockets: Any = None) -> None:
        draining = asyncio.create_task(self._front.drain())
        try:
            await super().shutdown(sockets)
        finally:
            draining.cancel()
            await asyncio.to_thread(self._probed.close)


def serve(app: Front, host: str, port: int, health: tuple[str, int] | None = None, check: Check | None = None) -> None:
    """Serve with uvicorn until SIGTERM or SIGINT; then let running commands finish.

    Parameters: ``health`` the address for probes; ``check`` an extra check for them, such as whether the store answers.
    Raises ConfigurationError if ``health`` cannot be bound, or the upstream is this address.
    """
    app.upstream.origin.check_is_another(host, port)
    try:
        probes = None if health is None else HealthServer(*health, lambda: _readiness(app.upstream, check))
    except OSError as error:
        assert health is not None
        where = f"{health[0]}:{health[1]}"
        raise ConfigurationError(f"--health {where}: {error.strerror or error}; name another port") from None
    if probes is not None:
        logging.getLogger("semel").warning("health: http://%s%s", probes.address, READY)
    config = uvicorn.Config(
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
        timeout_graceful_shutdown=app.drain_seconds,
    )
    with suppress(KeyboardInterrupt):  # it only ends so
        _Server(config, app, probes).run()


async def _readiness(upstream: Upstream, check: Check | None) -> dict[str, Any]:
    """Answer a probe. An unavailable service does not make the proxy unready: replays still work."""
    told = {} if check is None else dict(await check())
    return {**told, "upstream": "reachable" if await upstream.reach() else "unreachable"}


def _reset(send: Send) -> None:
    """Reset a client's connection under uvicorn: in HTTP/1.0 an ordinary close would mean a complete answer."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None and (connection := transport.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def _names_a_host(path: str) -> bool:
    return path[:1] == "/" and path[1:2] in ("/", "\\")


def describe(configuration: Proxied) -> list[dict[str, Any]]:
    """Describe the operations of a configuration, for people and programs."""
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
