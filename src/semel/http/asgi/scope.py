"""The scope that an application gets while its answer is captured."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]

# Ways to answer that leave no bytes to capture; the application's scope omits them.
_UNCAPTURED: Final = frozenset(
    f"http.response.{name}" for name in ("pathsend", "zerocopysend", "trailers", "push", "early_hint")
)


def capture_scope(scope: Scope) -> Scope:
    """Return the scope without the extensions for answers that leave no bytes to capture."""
    extensions = scope.get("extensions")
    if not extensions or _UNCAPTURED.isdisjoint(extensions):
        return scope
    return {**scope, "extensions": {name: value for name, value in extensions.items() if name not in _UNCAPTURED}}
