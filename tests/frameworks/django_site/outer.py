"""A middleware of the project's own: a bearer token names the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponseRedirect
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


def resumed_user(caller: Any) -> User:
    """The user of a request that is run without its client."""
    return User(caller.id.rpartition(": ")[2])


@sync_and_async_middleware
def Token(get_response: Callable[[Any], Any]) -> Any:
    def begin(request: Any) -> None:
        user = user_of(request)
        if user is not None:
            request.user = user

            async def find_user() -> User:  # as login_required asks in front of a coroutine
                return user

            request.auser = find_user
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


def ReadsForm(get_response: Callable[[Any], Any]) -> Any:
    """A middleware that parses each form before the others."""

    def serve(request: Any) -> Any:
        request.POST  # noqa: B018
        return get_response(request)

    return serve


def ReadsBody(get_response: Callable[[Any], Any]) -> Any:
    """A middleware that reads each body, and leaves it to the others."""

    def serve(request: Any) -> Any:
        request.body  # noqa: B018
        return get_response(request)

    return serve


class ErrorPage:
    """A middleware that answers every exception of a view with its page."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self._get_response(request)

    def process_exception(self, request: Any, error: Exception) -> Any:
        return HttpResponseRedirect("/sorry")


def Envelope(get_response: Callable[[Any], Any]) -> Any:
    """A middleware that puts each answer into an envelope."""

    def serve(request: Any) -> Any:
        response = get_response(request)
        if not response.streaming:
            response.content = b"<" + response.content + b">"
        return response

    return serve
