"""The views of the shop in Django."""

from __future__ import annotations

import functools
import json
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from semel import AsyncEngine
from semel.integrations import django as semel
from tests.frameworks.suite import shop
from tests.frameworks.suite.shops.django_outer import Effect


def guard(view: Any) -> Any:
    """Let in whom the middleware knows."""

    @functools.wraps(view)
    def check(request: Any, **named: Any) -> Any:
        if request.user is None:
            return HttpResponse(status=401)
        if request.user.pk == shop.BARRED:
            raise PermissionDenied
        return view(request, **named)

    return check


def check_body(view: Any) -> Any:
    """Let in what asks for something."""

    @functools.wraps(view)
    def check(request: Any) -> Any:
        try:
            asked = json.loads(request.body)
        except ValueError:
            asked = None
        return view(request) if shop.is_valid(asked) else HttpResponse(status=400)

    return guard(check)


@check_body
@semel.command("pay")
def pay(request: Any) -> Any:
    asked = json.loads(request.body)
    paid = shop.pay(asked, request.semel_permit)
    if asked.get("do") == "refuse":
        return JsonResponse({"error": "sold out"}, status=409)
    response = JsonResponse(paid, status=201, headers={"Location": f"/paid/{asked['what']}"})
    if asked.get("do") == "cookie":
        response.set_cookie("session", "secret")
    return response


@check_body
@semel.command("book", effects="atomic")
def book(request: Any) -> Any:
    asked = json.loads(request.body)
    Effect.objects.create(what=asked["what"])
    shop.end(asked)
    if asked.get("do") == "refuse":
        return JsonResponse({"error": "sold out"}, status=409)
    return JsonResponse({"by": type(connections["default"]).__module__}, status=201)


@check_body
@semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
def stream(request: Any) -> Any:
    asked = json.loads(request.body)
    shop.note(asked["what"])
    return StreamingHttpResponse(shop.pieces(asked), status=201)


@guard
@semel.command("upload")
def upload(request: Any) -> Any:
    shop.note(request.POST["what"])
    return JsonResponse({"bytes": len(request.FILES["file"].read())}, status=201)


@guard
@semel.command("orders.close", key_from="path:number")
def close(request: Any, number: int) -> Any:
    shop.note(f"close {number}")
    return JsonResponse({"number": number}, status=201)


@require_http_methods(["PUT"])
@check_body
@semel.command("orders.put", key_from="body:/what")
def put(request: Any) -> Any:
    what = json.loads(request.body)["what"]
    shop.note(what)
    return JsonResponse({"what": what}, status=201)


@check_body
@semel.command("ship", shop.SHIP)
def ship(request: Any) -> Any:
    return HttpResponse(shop.ship(json.loads(request.body), request.semel_permit), status=201)


urlpatterns = [
    path("pay", pay),
    path("book", book),
    path("stream", stream),
    path("upload", upload),
    path("orders/<int:number>/close", close),
    path("orders", put),
    path("ship", ship),
    path("approvals", semel.bulk("approve", shop.approve).answer),
    path("operations/", include("semel.integrations.django.urls")),
    *semel.imports(
        shop.stock(AsyncEngine.connect(shop.store())),
        path="suppliers/{supplier}/imports",
        supplier="path:supplier",
        may=shop.may_upload,
        decorate=csrf_exempt,
    ),
]
