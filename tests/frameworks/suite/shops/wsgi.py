"""The shop as a bare WSGI application behind the middleware."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from semel import Engine
from semel.http.caller import Caller
from semel.http.wsgi.middleware import SemelMiddleware
from tests.frameworks.suite import shop
from tests.frameworks.suite.shops.asgi import OPERATIONS, answer, answer_json


def serve(environ: Any, start_response: Any) -> Iterable[bytes]:
    path, permit = environ["PATH_INFO"], environ.get("semel.permit")
    if permit is None:
        answered = answer_json(404, "nothing here")
    elif path == "/ship":
        answered = answer_json(201, shop.ship(json.loads(environ["wsgi.input"].read()), permit))
    else:
        answered = answer(path, environ["wsgi.input"].read(), environ.get("CONTENT_TYPE", ""), permit)
    status, headers, pieces = answered
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return pieces


def caller(environ: Any) -> Caller | None:
    user = shop.user_of(environ.get("HTTP_AUTHORIZATION"))
    return None if user is None else Caller("shop", user)


def make() -> Any:
    engine = Engine.connect(shop.store())
    return SemelMiddleware(serve, engine, caller=caller, operations=OPERATIONS, serve_operations=True)
