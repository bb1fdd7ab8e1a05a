"""A middleware of the project's own: a bearer token names the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import sync_and_async_middleware


class User:
    """Who a token names; known without a database."""

    is_authenticated = True
    is_active = True

    def __init__(self, name: str) -> None:
        self.pk = name


def user_of(request: Any) -> User | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return User(token) if scheme == "Bearer" and token else None


@sync_and_async_middleware
def Token(get_response: Callable[[Any], Any]) -> Any:
    def begin(request: Any) -> None:
        user = user_of(request)
        if user is not None:
            request.user = user
            request._dont_enforce_csrf_checks = True

    def end(request: Any, response: Any) -> Any:
        if "boom" in request.headers.get("X-Outer", ""):
            raise RuntimeError("the outer middleware fails")
        response.headers["X-Outer"] = "seen"
        return response

    if iscoroutinefunction(get_response):

        async def serve_async(request: Any) -> Any:
            begin(request)
            return end(request, await get_response(request))

        return serve_async

    def serve(request: Any) -> Any:
        begin(request)
        return end(request, get_response(request))

    return serve
