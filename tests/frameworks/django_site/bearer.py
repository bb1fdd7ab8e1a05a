"""Who calls over REST framework."""

from __future__ import annotations

from typing import Any

from rest_framework import authentication

from tests.frameworks.django_site.outer import user_of


class Bearer(authentication.BaseAuthentication):  # type: ignore[misc]  # it ships no types
    """A token names the user."""

    def authenticate(self, request: Any) -> Any:
        user = user_of(request)
        return None if user is None else (user, None)

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"
