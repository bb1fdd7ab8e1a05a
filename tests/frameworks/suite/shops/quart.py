"""The shop in Quart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from quart import Quart, Response, abort, g, jsonify, request
from sqlalchemy import text
from sqlalchemy.orm import Session

from semel import AsyncBulk, AsyncEngine, Permit
from semel.integrations.quart import Semel
from tests.frameworks.suite import shop


def check_body(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let in what asks for something."""

    @functools.wraps(view)
    async def check() -> Any:
        if not shop.is_valid(await request.get_json()):
            abort(400)
        return await view()

    return check


def make() -> Quart:
    app = Quart("shop")
    engine = AsyncEngine.connect(shop.store())
    semel = Semel(app, engine, caller=lambda: g.user, tenant="shop")

    @app.before_request
    async def authenticate() -> None:
        g.user = shop.user_of(request.headers.get("Authorization"))
        if g.user is None or g.user == shop.BARRED:
            abort(401 if g.user is None else 403)

    @app.errorhandler(shop.Swallowed)
    async def swallow(error: shop.Swallowed) -> str:
        return shop.PAGE

    @app.post("/pay")
    @check_body
    @semel.command("pay")
    async def pay(permit: Permit = semel.permit) -> Any:
        asked = await request.get_json()
        response = jsonify(shop.pay(asked, permit))
        if asked.get("do") == "refuse":
            abort(409)
        if asked.get("do") == "cookie":
            response.set_cookie("session", "secret")
        return response, 201, {"Location": f"/paid/{asked['what']}"}

    @app.post("/book")
    @check_body
    @semel.command("book", effects="atomic")
    async def book(session: Session = semel.atomic_session) -> Any:
        asked = await request.get_json()
        session.execute(text("INSERT INTO effect (what) VALUES (:what)"), {"what": asked["what"]})
        shop.end(asked)
        if asked.get("do") == "refuse":
            abort(409)
        return {"by": type(session).__module__}, 201

    @app.post("/stream")
    @check_body
    @semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
    async def stream() -> Any:
        asked = await request.get_json()
        shop.note(asked["what"])
        return Response(shop.pieces(asked), 201)

    @app.post("/upload")
    @semel.command("upload")
    async def upload() -> Any:
        shop.note((await request.form)["what"])
        return {"bytes": len((await request.files)["file"].read())}, 201

    @app.post("/orders/<int:number>/close")
    @semel.command("orders.close", key_from="path:number")
    async def close(number: int) -> Any:
        shop.note(f"close {number}")
        return {"number": number}, 201

    @app.put("/orders")
    @check_body
    @semel.command("orders.put", key_from="body:/what")
    async def put() -> Any:
        what = (await request.get_json())["what"]
        shop.note(what)
        return {"what": what}, 201

    @app.post("/ship")
    @check_body
    @semel.command("ship", shop.SHIP)
    async def ship(permit: Permit = semel.permit) -> Any:
        return await shop.ship_async(await request.get_json(), permit), 201

    approvals = semel.bulk(AsyncBulk(engine, operation="approve"), shop.approve_async)
    app.post("/approvals")(approvals.answer)
    semel.imports(app, shop.stock(engine), path=shop.IMPORTS, supplier="path:supplier", may=shop.may_upload)
    return app
