"""The surroundings of the views of the shops in Django and REST framework: the users, and the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import models
from django.http import HttpResponse

from tests.frameworks.suite import shop


class Effect(models.Model):  # type: ignore[misc]  # Django ships no types
    """One effect of an ATOMIC command."""

    what = models.TextField()

    class Meta:
        app_label, db_table, managed = "shop", "effect", False


class User:
    """Who a token names; known without a database."""

    is_authenticated = is_active = True

    def __init__(self, name: str) -> None:
        self.pk = name


def resumed_user(caller: Any) -> User:
    return User(caller.id.rpartition(": ")[2])


class Token:
    """A middleware of the project's own: a bearer token names the user."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        name = shop.user_of(request.headers.get("Authorization"))
        request.user = None if name is None else User(name)
        request._dont_enforce_csrf_checks = True  # a browser sends no token automatically
        return self._get_response(request)

    def process_exception(self, request: Any, error: Exception) -> Any:
        return HttpResponse(shop.PAGE) if isinstance(error, shop.Swallowed) else None
