"""The application that real servers run in these tests: three protected operations, as ASGI and as WSGI.

Its engines are made when the module is imported, so before the fork where a server preloads it; with ``SHOP_USED`` in
the environment they are even used then. ``SHOP_FOLDER`` says where the store and the evidence lie.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

from semel import Answer, Permit, Policy
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from tests.crash.processes import pause
from tests.crash.work import Folder, command

KINDS = ("external", "idempotent", "atomic")
LEASE_SECONDS = 1.5
PRELOADED = Answer(200, (), b"before the fork")
BUSY_SECONDS = 0.01  # what a handler takes: long enough to be met in the middle

folder = Folder(os.environ["SHOP_FOLDER"])
OPERATIONS = [
    Operation(f"/{kind}", Policy.of(effects=kind, lease_seconds=LEASE_SECONDS, deadline_seconds=20)) for kind in KINDS
]


def act(permit: Permit) -> bytes:
    key = permit.command.key
    answer = folder.perform_effect(permit, key)
    return answer.body + f":{os.getpid()}".encode()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """The protected application, and a page that says that it is there."""
    status, body = 200, b"here"
    permit = scope.get("semel.permit")
    if permit is not None:
        while (await receive()).get("more_body"):
            pass
        if permit.effects.name != "ATOMIC":  # the file's writer waits for no provider
            await asyncio.to_thread(pause, BUSY_SECONDS)
        status, body = 201, act(permit)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def wsgi_app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The same for WSGI."""
    permit = environ.get("semel.permit")
    line, body = "200 OK", b"here"
    if permit is not None:
        if permit.effects.name != "ATOMIC":
            pause(BUSY_SECONDS)
        line, body = "201 Created", act(permit)
    start_response(line, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


async_engine = folder.async_engine()
sync_engine = folder.engine()
if "SHOP_USED" in os.environ:
    sync_engine.run(command("preloaded", "external"), lambda permit: PRELOADED)
    asyncio.run(async_engine.claim(command("preloaded", "external")))

app = AsgiMiddleware(asgi, async_engine, manage_engine=True, caller=single_caller, operations=OPERATIONS)
wsgi = WsgiMiddleware(wsgi_app, sync_engine, caller=single_caller, operations=OPERATIONS)
