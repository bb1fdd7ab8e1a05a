"""A Django project in one file: a client gets 202, its command fails, a completer finishes it; prints what happened."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from semel import Engine, Policy
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware
from semel.resuming.wsgi import completer_of
from tests.web.driving import wsgi_call, wsgi_environ

SHIP = Policy(steps=True, resumable=True, wait_seconds=0)
HEADERS = [
    *(("Idempotency-Key", "order-number-1"), ("Content-Type", "text/plain"), ("Content-Length", "6")),
    ("Host", "shop.example"),
]


def ship(request: HttpRequest, number: int) -> HttpResponse:
    permit = request.environ["semel.permit"]
    permit.step("note", lambda: None, repeat=True)
    if permit.attempt == 1:
        raise ConnectionError("away")
    return HttpResponse(b"shipped %d: %s" % (number, request.body), status=201, content_type="text/plain")


urlpatterns = [path("ship/<int:number>", ship)]


def main(url: str) -> None:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["shop.example"],
        SECURE_SSL_REDIRECT=True,
        MIDDLEWARE=["django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware"],
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()
    engine = Engine.connect(url)
    declared = [Operation("/ship/{number}", SHIP, name="ship")]
    app = SemelMiddleware(get_wsgi_application(), engine, caller=single_caller, operations=declared)

    def ask(*more: tuple[str, str]) -> Any:
        environ = wsgi_environ("POST", "/ship/7", "", [*HEADERS, *more], b"parcel", None)
        return wsgi_call(app, {**environ, "wsgi.url_scheme": "https"})

    accepted = ask(("Prefer", "respond-async"))
    app.close()
    completer = completer_of(app.surface, engine, app.app)
    assert completer is not None
    completed = asyncio.run(completer.run_once())
    ended = ask()
    engine.close()
    print(json.dumps([accepted.status, completed, ended.status, ended.body.decode(), ended.replayed]))


if __name__ == "__main__":
    main(sys.argv[1])
