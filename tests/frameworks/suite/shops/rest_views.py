"""The views of the shop in Django REST framework."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import StreamingHttpResponse
from django.urls import include, path
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from semel.integrations import django as semel
from tests.frameworks.suite import shop
from tests.frameworks.suite.shops.django_outer import Effect


class Asked(serializers.Serializer):  # type: ignore[misc]  # it ships no types
    """What is asked for."""

    what = serializers.CharField()
    do = serializers.CharField(required=False)


class SoldOut(exceptions.APIException):  # type: ignore[misc]
    """The application's refusal."""

    status_code = 409


class Checked:
    """Validates what is asked for before the method is called, hence before it claims."""

    serializer_class = Asked

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        if request.method in ("POST", "PUT"):
            Asked(data=request.data).is_valid(raise_exception=True)


class Payments(Checked, ViewSet):  # type: ignore[misc]
    """A view set."""

    @semel.command("pay")
    def create(self, request: Any) -> Response:
        paid = shop.pay(request.data, request.semel_permit)
        if request.data.get("do") == "refuse":
            raise SoldOut
        response = Response(paid, 201, headers={"Location": f"/paid/{request.data['what']}"})
        if request.data.get("do") == "cookie":
            response.set_cookie("session", "secret")
        return response


class Bookings(Checked, APIView):  # type: ignore[misc]
    """A view."""

    @semel.command("book", effects="atomic")
    def post(self, request: Any) -> Response:
        Effect.objects.create(what=request.data["what"])
        shop.end(request.data)
        if request.data.get("do") == "refuse":
            return Response({"error": "sold out"}, 409)
        return Response({"by": type(connections["default"]).__module__}, 201)


class Streams(Checked, APIView):  # type: ignore[misc]
    """A view that streams."""

    @semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
    def post(self, request: Any) -> Any:
        shop.note(request.data["what"])
        over_asgi = isinstance(request._request, ASGIRequest)
        return StreamingHttpResponse((shop.pieces_async if over_asgi else shop.pieces)(request.data), status=201)


@extend_schema(request=Asked, responses={201: Asked})
@api_view(["POST"])
@semel.command("upload")
def upload(request: Any) -> Response:
    shop.note(request.data["what"])
    return Response({"bytes": len(request.data["file"].read())}, 201)


@extend_schema(request=None, responses={201: Asked})
@api_view(["POST"])
@semel.command("orders.close", key_from="path:number")
def close(request: Any, number: int) -> Response:
    shop.note(f"close {number}")
    return Response({"number": number}, 201)


class Orders(Checked, APIView):  # type: ignore[misc]
    """A view with another method."""

    @semel.command("orders.put", key_from="body:/what")
    def put(self, request: Any) -> Response:
        shop.note(request.data["what"])
        return Response({"what": request.data["what"]}, 201)


class Shipments(Checked, APIView):  # type: ignore[misc]
    """A resumable view."""

    @semel.command("ship", shop.SHIP)
    def post(self, request: Any) -> Response:
        return Response(shop.ship(request.data, request.semel_permit), 201)


approvals = semel.bulk("approve", shop.approve)


@extend_schema(exclude=True)
@api_view(["POST"])
def approve(request: Any) -> Any:
    return approvals.answer(request)


urlpatterns = [
    path("pay", Payments.as_view({"post": "create"})),
    path("book", Bookings.as_view()),
    path("stream", Streams.as_view()),
    path("upload", upload),
    path("orders/<int:number>/close", close),
    path("orders", Orders.as_view()),
    path("ship", Shipments.as_view()),
    path("approvals", approve),
    path("operations/", include("semel.integrations.django.urls")),
]
