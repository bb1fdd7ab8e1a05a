"""The shop in Starlette."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from semel import AsyncBulk, AsyncEngine, Permit
from semel.http.caller import Caller
from semel.integrations.starlette import Semel
from tests.frameworks.suite import shop


def caller(request: Request) -> Caller | None:
    user = shop.user_of(request.headers.get("authorization"))
    return None if user is None else Caller("shop", user)


def guard(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Let in whom the token names."""

    @functools.wraps(endpoint)
    async def check(request: Request) -> Any:
        user = shop.user_of(request.headers.get("authorization"))
        if user is None or user == shop.BARRED:
            raise HTTPException(401 if user is None else 403)
        return await endpoint(request)

    return check


def check_body(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Let in what asks for something."""

    @functools.wraps(endpoint)
    async def check(request: Request) -> Any:
        try:
            asked = await request.json()
        except ValueError:
            raise HTTPException(400) from None
        if not shop.is_valid(asked):
            raise HTTPException(400)
        return await endpoint(request)

    return guard(check)


async def swallow(request: Request, error: Exception) -> Response:
    return PlainTextResponse(shop.PAGE)


def make() -> Starlette:
    engine = AsyncEngine.connect(shop.store())
    semel = Semel(engine, caller=caller)

    @check_body
    @semel.command("pay")
    async def pay(request: Request, permit: Permit = semel.permit) -> Response:
        asked = await request.json()
        paid = shop.pay(asked, permit)
        if asked.get("do") == "refuse":
            raise HTTPException(409, "sold out")
        response = JSONResponse(paid, 201, {"Location": f"/paid/{asked['what']}"})
        if asked.get("do") == "cookie":
            response.set_cookie("session", "secret")
        return response

    @check_body
    @semel.command("book", effects="atomic")
    async def book(request: Request, session: Session = semel.atomic_session) -> Response:
        asked = await request.json()
        session.execute(text("INSERT INTO effect (what) VALUES (:what)"), {"what": asked["what"]})
        shop.end(asked)
        if asked.get("do") == "refuse":
            raise HTTPException(409, "sold out")
        return JSONResponse({"by": type(session).__module__}, 201)

    @check_body
    @semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
    async def stream(request: Request) -> Response:
        asked = await request.json()
        shop.note(asked["what"])
        return StreamingResponse(shop.pieces(asked), 201)

    @guard
    @semel.command("upload")
    async def upload(request: Request) -> Response:
        async with request.form() as form:
            shop.note(str(form["what"]))
            return JSONResponse({"bytes": len(await form["file"].read())}, 201)  # type: ignore[union-attr]

    @guard
    @semel.command("orders.close", key_from="path:number")
    async def close(request: Request) -> Response:
        shop.note(f"close {request.path_params['number']}")
        return JSONResponse({"number": request.path_params["number"]}, 201)

    @check_body
    @semel.command("orders.put", key_from="body:/what")
    async def put(request: Request) -> Response:
        asked = await request.json()
        shop.note(asked["what"])
        return JSONResponse({"what": asked["what"]}, 201)

    @check_body
    @semel.command("ship", shop.SHIP)
    async def ship(request: Request, permit: Permit = semel.permit) -> Response:
        return PlainTextResponse(await shop.ship_async(await request.json(), permit), 201)

    approvals = semel.bulk(AsyncBulk(engine, operation="approve"), shop.approve_async)
    commands = {
        **{"/pay": pay, "/book": book, "/stream": stream, "/upload": upload, "/ship": ship},
        **{"/orders/{number:int}/close": close, "/approvals": approvals.answer},
    }
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in commands.items()]
    app = Starlette(
        routes=[*routes, Route("/orders", put, methods=["PUT"])], exception_handlers={shop.Swallowed: swallow}
    )
    semel.imports(app, shop.stock(engine), path=shop.IMPORTS, supplier="path:supplier", may=shop.may_upload)
    semel.install(app)
    return app
