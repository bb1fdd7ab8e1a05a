"""The shop as a bare ASGI application behind the middleware."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from semel import AsyncEngine, Policy
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import Caller
from semel.http.routing import Operation
from tests.frameworks.suite import shop

OPERATIONS = (
    Operation("/pay", name="pay"),
    Operation("/book", Policy(effects="atomic"), name="book"),
    Operation("/stream", Policy(answer_bytes_max=shop.STREAM_BYTES_MAX), name="stream"),
    Operation("/upload", name="upload"),
    Operation("/orders/{number:int}/close", Policy(key_from="path:number"), name="orders.close"),
    Operation("/orders", Policy(key_from="body:/what"), ("PUT",), name="orders.put"),
    Operation("/ship", shop.SHIP, name="ship"),
)
JSON = ("Content-Type", "application/json")
Answered = tuple[int, list[tuple[str, str]], Iterable[bytes]]


def answer_json(status: int, value: Any, *headers: tuple[str, str]) -> Answered:
    return status, [JSON, *headers], [json.dumps(value).encode()]


def answer(path: str, body: bytes, content_type: str, permit: Any) -> Answered:
    """The shop without its steps: what a request is answered with, over either gateway."""
    if path == "/upload":
        form = shop.read_form(content_type, body)
        shop.note(form["what"].decode())
        return answer_json(201, {"bytes": len(form["file"])})
    if path.endswith("/close"):
        number = int(path.split("/")[2])
        shop.note(f"close {number}")
        return answer_json(201, {"number": number})
    asked = json.loads(body)
    what, refused = asked["what"], asked.get("do") == "refuse"
    if path == "/pay":
        headers = [("Location", f"/paid/{what}")]
        if asked.get("do") == "cookie":
            headers.append(("Set-Cookie", "session=secret"))
        return answer_json(409 if refused else 201, shop.pay(asked, permit), *headers)
    if path == "/book":
        permit.connection.execute("INSERT INTO effect (what) VALUES (?)", (what,))
        shop.end(asked)
        return answer_json(409 if refused else 201, {"by": type(permit.connection).__module__})
    shop.note(what)
    return (201, [("Content-Type", "text/plain")], shop.pieces(asked)) if path == "/stream" else answer_json(201, asked)


async def read(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def serve(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        return await live(receive, send)
    content_type = dict(scope["headers"]).get(b"content-type", b"").decode()
    body, permit = await read(receive), scope.get("semel.permit")
    if permit is None:
        answered = answer_json(404, "nothing here")
    elif scope["path"] == "/ship":
        answered = answer_json(201, await shop.ship_async(json.loads(body), permit))
    else:
        answered = answer(scope["path"], body, content_type, permit)
    await leave(send, answered)
    return None


async def live(receive: Any, send: Any) -> None:
    for end in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{end}.complete"})


async def leave(send: Any, answered: Answered) -> None:
    status, headers, pieces = answered
    lines = [(name.lower().encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def caller(scope: Any) -> Caller | None:
    user = shop.user_of(dict(scope["headers"]).get(b"authorization", b"").decode())
    return None if user is None else Caller("shop", user)


def make() -> Any:
    return SemelMiddleware(
        serve,
        AsyncEngine.connect(shop.store()),
        caller=caller,
        operations=OPERATIONS,
        serve_operations=True,
        manage_engine=True,
    )
