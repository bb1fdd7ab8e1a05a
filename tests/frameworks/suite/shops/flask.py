"""The shop in Flask, with Flask-SQLAlchemy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, abort, g, jsonify, request
from flask_sqlalchemy import SQLAlchemy

from semel import AsyncEngine, Engine
from semel.integrations.flask import Semel
from tests.frameworks.suite import shop


def check_body(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let in what asks for something."""

    @functools.wraps(view)
    def check() -> Any:
        if not shop.is_valid(request.get_json()):
            abort(400)
        return view()

    return check


def make() -> Flask:
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = shop.store()
    db = SQLAlchemy(app)
    semel = Semel(app, Engine.connect(shop.store()), caller=lambda: g.user, tenant="shop")

    class Effect(db.Model):  # type: ignore[name-defined,misc]
        id = db.Column(db.Integer, primary_key=True)
        what = db.Column(db.String(100), nullable=False)

    @app.before_request
    def authenticate() -> None:
        g.user = shop.user_of(request.headers.get("Authorization"))
        if "semel.resumed" in request.environ:  # a completer runs it
            g.user = request.environ["semel.permit"].command.scope.caller
        if g.user is None or g.user == shop.BARRED:
            abort(401 if g.user is None else 403)

    @app.errorhandler(shop.Swallowed)
    def swallow(error: shop.Swallowed) -> str:
        return shop.PAGE

    @app.post("/pay")
    @check_body
    @semel.command("pay")
    def pay() -> Any:
        asked = request.get_json()
        response = jsonify(shop.pay(asked, semel.permit))
        if asked.get("do") == "refuse":
            abort(409)
        if asked.get("do") == "cookie":
            response.set_cookie("session", "secret")
        return response, 201, {"Location": f"/paid/{asked['what']}"}

    @app.post("/book")
    @check_body
    @semel.command("book", effects="atomic")
    def book() -> Any:
        asked = request.get_json()
        db.session.add(Effect(what=asked["what"]))
        db.session.commit()
        shop.end(asked)
        if asked.get("do") == "refuse":
            abort(409)
        return {"by": type(db.session()).__module__}, 201

    @app.post("/stream")
    @check_body
    @semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
    def stream() -> Any:
        asked = request.get_json()
        shop.note(asked["what"])
        return Response(shop.pieces(asked), 201)

    @app.post("/upload")
    @semel.command("upload")
    def upload() -> Any:
        shop.note(request.form["what"])
        return {"bytes": len(request.files["file"].read())}, 201

    @app.post("/orders/<int:number>/close")
    @semel.command("orders.close", key_from="path:number")
    def close(number: int) -> Any:
        shop.note(f"close {number}")
        return {"number": number}, 201

    @app.put("/orders")
    @check_body
    @semel.command("orders.put", key_from="body:/what")
    def put() -> Any:
        what = request.get_json()["what"]
        shop.note(what)
        return {"what": what}, 201

    @app.post("/ship")
    @check_body
    @semel.command("ship", shop.SHIP)
    def ship() -> Any:
        return shop.ship(request.get_json(), semel.permit), 201

    app.post("/approvals")(semel.bulk("approve", shop.approve).answer)
    stock = shop.stock(AsyncEngine.connect(shop.store()))
    semel.imports(app, stock, path=shop.IMPORTS, supplier="path:supplier", may=shop.may_upload)
    return app
