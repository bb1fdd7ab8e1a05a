"""Who calls."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication


class Bearer(BaseAuthentication):  # type: ignore[misc]  # it ships no types
    """The token is the name: replace this by your authentication."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if name not in ("alice", "bob"):
            return None
        user, _ = User.objects.get_or_create(username=name)
        return user, None

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"
