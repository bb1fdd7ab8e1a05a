"""Lenient applications behind both middlewares, one for each Host, on real servers: `python -m tests.web.spelled`.

Each serves ``POST /pay`` and ``POST /invoices/<number>/pay`` as leniently as its framework can; the host `effects` says
how often each ran.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from semel import AsyncEngine, Engine, Policy
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware

EFFECTS: Counter[str] = Counter()
DECLARED = [
    Operation("/pay", Policy(effects="external"), name="pay"),
    Operation("/invoices/{number:int}/pay", Policy(effects="external", key_from="path:number"), name="invoices.pay"),
]


def effect(name: str, key: str) -> None:
    """What a view does: once for each application and key."""
    EFFECTS[f"{name} {key}"] += 1


# --- WSGI ---------------------------------------------------------------------------------------


def flask_app(name: str, *, strict: bool) -> Any:
    from flask import Flask, request

    app = Flask(name)
    app.url_map.strict_slashes = strict

    @app.post("/pay")
    def pay() -> tuple[str, int]:
        effect(name, request.headers["Idempotency-Key"])
        return "paid", 201

    @app.post("/invoices/<int:number>/pay")
    def pay_invoice(number: int) -> tuple[str, int]:
        effect(name, f"invoice-{number}")
        return "paid", 201

    app.add_url_rule("/v2/pay", view_func=pay, methods=["POST"])
    return app.wsgi_app


def django_urls(name: str) -> None:
    """Django has one configuration in a process: it serves WSGI and ASGI, and tells them apart by the host."""
    import django
    from django.conf import settings
    from django.http import HttpRequest, HttpResponse
    from django.urls import re_path

    def pay(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(status=405)
        effect(request.headers["Host"], request.headers["Idempotency-Key"])
        return HttpResponse("paid", status=201)

    def pay_invoice(request: HttpRequest, number: str) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(status=405)
        effect(request.headers["Host"], f"invoice-{int(number)}")
        return HttpResponse("paid", status=201)

    if not settings.configured:
        urls = type(sys)("spelled_urls")
        urls.urlpatterns = [  # type: ignore[attr-defined]
            re_path(r"^pay/?$", pay),
            re_path(r"^invoices/(?P<number>[0-9]+)/pay/?$", pay_invoice),
            re_path(r"^odd-way-to-pay$", pay),
        ]
        sys.modules["spelled_urls"] = urls
        settings.configure(ROOT_URLCONF="spelled_urls", ALLOWED_HOSTS=["*"], SECRET_KEY="spelled", MIDDLEWARE=[])
        django.setup()


def django_wsgi(name: str) -> Any:
    from django.core.wsgi import get_wsgi_application

    django_urls(name)
    return get_wsgi_application()


def falcon_app(name: str) -> Any:
    import falcon

    class Pay:
        def on_post(self, request: Any, response: Any) -> None:
            effect(name, request.get_header("Idempotency-Key"))
            response.status = "201 Created"

    class PayInvoice:
        def on_post(self, request: Any, response: Any, number: int) -> None:
            effect(name, f"invoice-{number}")
            response.status = "201 Created"

    app = falcon.App()
    app.req_options.strip_url_path_trailing_slash = True
    app.add_route("/pay", Pay())
    app.add_route("/invoices/{number:int}/pay", PayInvoice())
    return app


def bottle_app(name: str) -> Any:
    import bottle

    app = bottle.Bottle()

    @app.post("/pay")  # type: ignore[untyped-decorator]
    def pay() -> Any:
        effect(name, bottle.request.headers["Idempotency-Key"])
        return bottle.HTTPResponse("paid", status=201)

    @app.post("/invoices/<number:int>/pay")  # type: ignore[untyped-decorator]
    def pay_invoice(number: int) -> Any:
        effect(name, f"invoice-{number}")
        return bottle.HTTPResponse("paid", status=201)

    return app


def flask_inside(name: str, *, strict: bool) -> Any:
    """Flask with Semel's own decorator: the views claim for themselves."""
    from flask import Flask, request

    from semel.integrations.flask import Semel

    app = Flask(name)
    app.url_map.strict_slashes = app.url_map.merge_slashes = strict
    semel = Semel(app, Engine.connect("memory://"), caller=single_caller)

    @app.post("/pay")
    @semel.command("pay", effects="external")
    def pay() -> tuple[str, int]:
        effect(name, request.headers["Idempotency-Key"])
        return "paid", 201

    @app.post("/invoices/<int:number>/pay")
    @semel.command("invoices.pay", effects="external", key_from="path:number")
    def pay_invoice(number: int) -> tuple[str, int]:
        effect(name, f"invoice-{number}")
        return "paid", 201

    return app


INSIDE: dict[str, Callable[[str], Any]] = {
    "flask-inside": lambda name: flask_inside(name, strict=True),
    "flask-inside-lenient": lambda name: flask_inside(name, strict=False),
}
WSGI_APPS: dict[str, Callable[[str], Any]] = {
    **INSIDE,
    "flask": lambda name: flask_app(name, strict=True),
    "flask-lenient": lambda name: flask_app(name, strict=False),
    "django": django_wsgi,
    "falcon": falcon_app,
    "bottle": bottle_app,
}


def wsgi() -> Any:
    """All WSGI applications as one; a factory for gunicorn."""
    engine = Engine.connect("memory://")
    engine.open()
    apps = {
        name: make(name)
        if name in INSIDE
        else WsgiMiddleware(make(name), engine, caller=single_caller, operations=_declare(name))
        for name, make in WSGI_APPS.items()
    }

    def dispatch(environ: dict[str, Any], start_response: Any) -> Any:
        host = environ["HTTP_HOST"]
        if host == "effects":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(EFFECTS).encode()]
        return apps[host](environ, start_response)

    return dispatch


def _declare(name: str) -> list[Operation]:
    """The operations of one application: under names of its own, since all share one store."""
    return [Operation(each.template, each.policy, each.methods, f"{name} {each.name}") for each in DECLARED]


# --- ASGI ---------------------------------------------------------------------------------------


def quart_app(name: str) -> Any:
    from quart import Quart, request

    app = Quart(name)

    @app.post("/pay")
    async def pay() -> tuple[str, int]:
        effect(name, request.headers["Idempotency-Key"])
        return "paid", 201

    @app.post("/invoices/<int:number>/pay")
    async def pay_invoice(number: int) -> tuple[str, int]:
        effect(name, f"invoice-{number}")
        return "paid", 201

    return app.asgi_app


def starlette_app(name: str) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def pay(request: Request) -> Response:
        effect(name, request.headers["Idempotency-Key"])
        return Response(status_code=201)

    async def pay_invoice(request: Request) -> Response:
        effect(name, f"invoice-{request.path_params['number']}")
        return Response(status_code=201)

    return Starlette(
        routes=[
            Route("/pay", pay, methods=["POST"]),
            Route("/invoices/{number:int}/pay", pay_invoice, methods=["POST"]),
        ]
    )


def django_asgi(name: str) -> Any:
    from django.core.asgi import get_asgi_application

    django_urls(name)
    return get_asgi_application()


ASGI_APPS: dict[str, Callable[[str], Any]] = {
    "quart": quart_app,
    "starlette": starlette_app,
    "django-asgi": django_asgi,
}


def asgi() -> Any:
    """All ASGI applications as one."""
    engine = AsyncEngine.connect("memory://")
    apps = {
        name: AsgiMiddleware(make(name), engine, caller=single_caller, operations=_declare(name))
        for name, make in ASGI_APPS.items()
    }

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        host = dict(scope["headers"])[b"host"].decode()
        if host == "effects":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(EFFECTS).encode()})
        else:
            await apps[host](scope, receive, send)

    return dispatch


# --- servers ------------------------------------------------------------------------------------


Serve = Callable[[int], object]


def _wsgiref() -> Serve:
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    app, quiet = wsgi(), type("Quiet", (WSGIRequestHandler,), {"log_message": lambda *_: None})
    return lambda port: make_server("127.0.0.1", port, app, handler_class=quiet).serve_forever()


def _werkzeug() -> Serve:
    from werkzeug.serving import WSGIRequestHandler, make_server

    app, quiet = wsgi(), type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
    return lambda port: make_server("127.0.0.1", port, app, threaded=True, request_handler=quiet).serve_forever()


def _waitress() -> Serve:
    import waitress

    app = wsgi()
    return lambda port: waitress.serve(app, host="127.0.0.1", port=port, threads=4, _quiet=True)


def _uvicorn(http: Any) -> Serve:
    import uvicorn

    config = uvicorn.Config(asgi(), http=http, lifespan="off", log_level="critical")
    config.load()

    def serve(port: int) -> None:
        config.port = port
        asyncio.run(uvicorn.Server(config)._serve())  # without the signals, which belong to the main thread

    return serve


def _hypercorn() -> Serve:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    app, config = asgi(), Config()
    config.loglevel = "critical"

    async def never() -> None:
        await asyncio.Event().wait()

    def serve_on(port: int) -> None:
        config.bind = [f"127.0.0.1:{port}"]
        asyncio.run(serve(app, config, shutdown_trigger=never))

    return serve_on


SERVERS: dict[str, tuple[Callable[[], Serve], dict[str, Callable[[str], Any]]]] = {
    "wsgiref": (_wsgiref, WSGI_APPS),
    "werkzeug": (_werkzeug, WSGI_APPS),
    "waitress": (_waitress, WSGI_APPS),
    "uvicorn-h11": (lambda: _uvicorn("h11"), ASGI_APPS),
    "uvicorn-httptools": (lambda: _uvicorn("httptools"), ASGI_APPS),
    "hypercorn": (_hypercorn, ASGI_APPS),
}


def main(arguments: list[str]) -> None:
    """Serve on each of the ports, in the order of SERVERS, until standard input ends."""
    made = [make() for make, _ in SERVERS.values()]
    for serve, port in zip(made, arguments, strict=True):
        threading.Thread(target=serve, args=(int(port),), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
