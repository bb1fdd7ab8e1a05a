"""Applications for `semel openapi`: named on its command line, imported, looked at."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel import AsyncEngine, Engine, Policy
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.problems import Problems
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.starlette import Semel

engine = AsyncEngine.connect("memory://")
DECLARED = [
    Operation("/orders/{number:int}/pay", Policy(effects="external"), name="orders.pay"),
    Operation("/notes", Policy(effects="idempotent"), methods=("POST", "PUT"), also=("/notes/",)),
]

fastapi = FastAPI(title="Shop")
semel = FastApiSemel(engine, caller=single_caller)


@fastapi.post("/payments", status_code=201)
@semel.command("payments.create", effects="external")
async def create(body: dict[str, Any]) -> dict[str, Any]:
    return body


semel.install(fastapi)

plain_fastapi = FastAPI(title="Behind")


@plain_fastapi.post("/orders/{number}/pay")
async def pay(number: int) -> int:
    return number


behind = SemelMiddleware(plain_fastapi, engine, caller=single_caller, operations=DECLARED, key_header="X-Key")

other = Semel(engine, caller=single_caller)


@other.command("carts.order", effects="external")
async def order(request: Request) -> Response:
    return Response()


starlette = Starlette(routes=[Route("/carts/{id:uuid}/order", order, methods=["POST"])])
other.install(starlette)

flask = Flask("flask-shop")
flask.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
    flask.wsgi_app,
    Engine.connect("memory://"),
    caller=single_caller,
    operations=DECLARED,
    default=Policy(),
    problems=Problems(operations_path="/status/{id}"),
)

nothing = Flask("nothing")
number = 7
