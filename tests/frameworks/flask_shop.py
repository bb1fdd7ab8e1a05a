"""A Flask shop of many small views, which do what their body asks for: ``{"what": ..., "do": ...}``."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

from flask import Blueprint, Flask, Response, abort, g, jsonify, redirect, request, send_file
from flask import stream_with_context as in_context
from flask.views import MethodView
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.exc import IntegrityError
from werkzeug.routing import BaseConverter

from semel import Engine, NothingHappened
from semel.integrations.flask import Semel

db = SQLAlchemy()
semel = Semel(caller=lambda: g.get("user"), tenant="shop")
SHARED = Response("shared", 201)  # one object for all answers
OUTER: list[str] = []  # what after_request and teardown_request have seen


class Effect(db.Model):  # type: ignore[name-defined,misc]
    """One effect of a command."""

    id = db.Column(db.Integer, primary_key=True)
    what = db.Column(db.String(100), nullable=False)


class Unique(db.Model):  # type: ignore[name-defined,misc]
    """Something that there is once."""

    what = db.Column(db.String(100), primary_key=True)


class Elsewhere(db.Model):  # type: ignore[name-defined,misc]
    """A row of another database."""

    __bind_key__ = "other"
    id = db.Column(db.Integer, primary_key=True)


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def guard(*args: Any, **kwargs: Any) -> Any:
        if g.user is None:
            abort(401)
        return view(*args, **kwargs)

    return guard


def hides(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not say what it decorates, and may fail when the view has ended."""

    def serve(*args: Any, **kwargs: Any) -> Any:
        response = view(*args, **kwargs)
        if read_field("do") == "fail above":
            raise KeyError
        return response

    return serve


def read_field(name: str) -> str:
    """A member of the body, or a field of the form."""
    found = request.get_json(silent=True) or request.form
    return str(found.get(name, ""))


def write_effect(what: str | None = None) -> Any:
    """Write one effect, then end as the body says."""
    do = read_field("do")
    effect = Effect(what=what or read_field("what") or "x")
    db.session.add(effect)
    if do == "no commit":
        return "made", 201
    db.session.commit()
    if do == "raise":
        raise ZeroDivisionError
    if do == "nothing":
        raise NothingHappened("it was out of stock")
    if do == "none":
        return None
    if do == "value":
        raise ValueError("which an error handler makes a page of")
    if do == "taken":
        db.session.add_all([Unique(what="a"), Unique(what="a")])
        return "never", 201
    if do == "elsewhere":
        db.session.add(Elsewhere())
        db.session.commit()
    if do == "abort away":
        abort(redirect("/effects", 303))
    if do == "abort made":
        abort(Response("made", 201))
    if do in ("refuse", "busy", "missing"):
        abort({"refuse": 409, "busy": 429, "missing": 404}[do])
    if do == "rollback":
        db.session.add(Effect(what="rolled back"))
        db.session.flush()
        db.session.rollback()
    return answer(do, effect)


def answer(do: str, effect: Effect) -> Any:
    """The answer that the body asks for."""
    if do == "stream":
        return Response(in_context(rows()), 201)
    if do == "long":
        return Response((b"x" * 100_000 for _ in range(20)), 201)
    if do == "cut":
        return Response((b"x" for _ in range(20)), 201, {"Content-Length": "50"})
    if do == "breaks":
        return Response(breaks(), 201)
    if do == "file":
        return send_file(io.BytesIO(b"a file's bytes"), "text/plain")
    if do == "generator":
        return in_context(rows()), 201
    if do == "status":
        db.session.add(Effect())  # which the database would refuse
        return {"error": "sold out"}, "409 CONFLICT"
    if do == "shared":
        return SHARED
    if do == "redirect":
        return redirect("/effects", 303)
    if do == "cookie":
        response = jsonify(n=effect.id)
        response.set_cookie("session", f"secret {g.user}")
        return response, 201
    key = None if semel.permit is None else semel.permit.key_for("charge")
    return {"n": effect.id, "key": key, "user": g.user}, 201


def rows() -> Iterator[str]:
    """The rows so far, the command's own too."""
    for each in db.session.scalars(db.select(Effect).order_by(Effect.id)):
        yield f"{each.what} "


def breaks() -> Iterator[bytes]:
    yield b"some"
    raise ZeroDivisionError


shop = Blueprint("shop", __name__)


@shop.post("/atomic")
@semel.command("atomic", effects="atomic")
def atomic() -> Any:
    return write_effect()


@shop.post("/external")
@login_required
@semel.command("external", effects="external", body_bytes_max=1_000_000)
def external() -> Any:
    return write_effect()


@shop.post("/idempotent")
@semel.command("idempotent", effects="idempotent", key="optional")
def idempotent() -> Any:
    return write_effect()


@shop.post("/numbered/<int:number>")
@semel.command("numbered", effects="atomic", key_from="path:number")
def post_numbered(number: int) -> Any:
    return write_effect(f"number {number}")


@shop.post("/approve")
@shop.post("/reject")
@semel.command("decide", effects="external")
def decide() -> Any:
    return {"path": request.path}, 201


@shop.post("/here")
@shop.post("/there")
@semel.command("anywhere", effects="external", paths="one")
def anywhere() -> Any:
    return {"path": request.path}, 201


def dumps(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that makes the response of what the view returns, as schemas do."""

    @functools.wraps(view)
    def dump(*args: Any, **kwargs: Any) -> Any:
        effect = view(*args, **kwargs)
        return (effect if isinstance(effect, Response) else {"what": effect.what}), 201

    return dump


@shop.post("/dumped")
@dumps
@semel.command("dumped", effects="atomic")
def post_dumped() -> Any:
    effect = Effect(what=read_field("what"))
    db.session.add(effect)
    return effect


@shop.post("/hidden")
@hides
@semel.command("hidden", effects="external")
def post_hidden() -> Any:
    return write_effect()


@shop.post("/things/<thing:thing>")
@semel.command("things", effects="external")
def thing(thing: Thing) -> Any:
    return {"number": thing.number}, 201


@shop.post("/<word:language>/greet")
@semel.command("greet", effects="external")
def greet() -> Any:
    return {"language": g.language}, 201


@shop.post("/form")
@semel.command("form", effects="atomic")
def form() -> Any:
    return write_effect(f"{request.form['note']} {len(request.files['file'].read())}")


@shop.post("/late")
@semel.command("late", effects="external")
async def late() -> Any:
    return write_effect()


@shop.post("/plain")
def plain() -> Any:
    return {"length": len(request.get_data())}, 201


class Orders(MethodView):
    """A class-based view."""

    def get(self) -> Any:
        return "orders"

    @semel.command("orders.create", effects="atomic")
    def post(self) -> Any:
        return write_effect()

    @semel.command("orders.clear", effects="external", key="optional")
    def delete(self) -> Any:
        return "", 204


shop.add_url_rule("/orders", view_func=Orders.as_view("orders"))


@shop.get("/effects")
def effects() -> Any:
    return jsonify(list(db.session.scalars(db.select(Effect.what).order_by(Effect.id))))


class Thing:
    """What a URL converter makes: it has no text of its own."""

    def __init__(self, number: str) -> None:
        self.number = number


class ThingConverter(BaseConverter):
    """A number in a path, as an object."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> Thing:
        return Thing(value)


class WordConverter(BaseConverter):
    """A language."""

    regex = "[a-z][a-z]"


def make_app(uri: str, engine: Engine, other: str = "sqlite://") -> Flask:
    """The shop on one database."""
    app = Flask("shop")
    app.config.update(SQLALCHEMY_DATABASE_URI=uri, SQLALCHEMY_BINDS={"other": other}, SECRET_KEY="not a secret")
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.url_map.converters.update(thing=ThingConverter, word=WordConverter)
    db.init_app(app)

    @app.url_value_preprocessor
    def take_language(endpoint: str | None, values: dict[str, Any] | None) -> None:
        if values and "language" in values:
            g.language = values.pop("language")

    @app.before_request
    def authenticate() -> Any:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        g.user = token if scheme == "Bearer" and token else None
        if g.user and request.headers.get("X-Reads"):
            db.session.scalars(db.select(Effect)).all()  # as Flask-Login does
        if request.headers.get("X-Writes"):
            db.session.add(Effect(what="before the command"))
            if request.headers["X-Writes"] == "flush":
                db.session.flush()
        if request.headers.get("X-Csrf") == "bad":
            abort(400)
        request.form  # noqa: B018 -- as a CSRF check does

    @app.after_request
    def mark(response: Response) -> Response:
        OUTER.append("after")
        if request.headers.get("X-Outer") == "fail":
            raise RuntimeError("after_request fails")
        if not response.is_streamed:
            response.data = b"<" + response.data + b">"
        response.headers["X-Marked"] = "yes"
        return response

    @app.teardown_request
    def note_end(error: BaseException | None) -> None:
        OUTER.append("teardown")

    @app.errorhandler(ValueError)
    def sorry(error: ValueError) -> Any:
        db.session.rollback()
        return redirect("/sorry")

    @app.errorhandler(KeyError)
    def fine(error: KeyError) -> Any:
        return "fine", 200

    @app.errorhandler(IntegrityError)
    def answer_conflict(error: IntegrityError) -> Any:
        return "taken", 409

    app.register_blueprint(shop)
    with app.app_context():
        db.create_all()
    semel.init_app(app, engine)
    return app
