"""Django: ``INSTALLED_APPS = ["semel.integrations.django"]``, a middleware, and ``@semel.command`` on views.

The view claims when authentication, permissions and CSRF have let it be called; the answer is captured by the
middleware. With ``effects="atomic"`` the record is written in Django's own transaction.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.integrations.django.site import engine as engine
    from semel.integrations.django.view import bulk as bulk
    from semel.integrations.django.view import command as command
    from semel.integrations.django.view import imports as imports

_HOMES = {
    "bulk": "semel.integrations.django.view",
    "command": "semel.integrations.django.view",
    "engine": "semel.integrations.django.site",
    "imports": "semel.integrations.django.view",
}

__all__ = [
    "bulk",
    "command",
    "engine",
    "imports",
]


if not TYPE_CHECKING:  # a name that does not exist is found by type checkers

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'semel.integrations.django' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value
