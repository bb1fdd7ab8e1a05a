"""The surroundings of the shop's views in REST framework: authentication, and the handling of exceptions."""

from __future__ import annotations

from typing import Any

from rest_framework import authentication, permissions
from rest_framework.response import Response

from tests.frameworks.suite import shop
from tests.frameworks.suite.shops.django_outer import User


class Bearer(authentication.BaseAuthentication):  # type: ignore[misc]  # it ships no types
    """A token names the user. A request of a completer has its user already."""

    def authenticate(self, request: Any) -> Any:
        name = shop.user_of(request.headers.get("Authorization"))
        user = getattr(request._request, "user", None) if name is None else User(name)
        return None if user is None else (user, None)

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class IsWelcome(permissions.IsAuthenticated):  # type: ignore[misc]
    """Permit every caller but one."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return bool(super().has_permission(request, view)) and request.user.pk != shop.BARRED


def swallow(error: Exception, context: Any) -> Any:
    from rest_framework.views import exception_handler  # which imports this module

    return Response(shop.PAGE) if isinstance(error, shop.Swallowed) else exception_handler(error, context)
