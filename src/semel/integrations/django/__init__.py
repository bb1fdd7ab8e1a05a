"""Django: ``INSTALLED_APPS = ["semel.integrations.django"]``, a middleware, and ``@semel.command`` on views.

The view claims after authentication, permissions and CSRF; the middleware captures the answer. With
``effects="atomic"`` Django's own transaction also writes the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.lazy import load_from as _load_from

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


if not TYPE_CHECKING:  # type checkers report a name that does not exist
    __getattr__ = _load_from(__name__, _HOMES)
