"""Who calls over REST framework."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication, exceptions

from tests.frameworks.django_site.outer import user_of


class Bearer(authentication.BaseAuthentication):  # type: ignore[misc]  # it ships no types
    """A token names the user."""

    def authenticate(self, request: Any) -> Any:
        user = user_of(request)
        if request.headers.get("Authorization") == "Bearer refused":
            raise exceptions.AuthenticationFailed("this token has expired")
        return None if user is None else (user, None)

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class BearerInDocuments(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """What a document says of it."""

    target_class = Bearer
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
