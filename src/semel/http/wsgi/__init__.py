"""The WSGI middleware, for applications without a dedicated integration."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.http.wsgi.middleware import SemelMiddleware as SemelMiddleware

_HOMES = {
    "SemelMiddleware": "semel.http.wsgi.middleware",
}

__all__ = [
    "SemelMiddleware",
]


if not TYPE_CHECKING:  # a name that does not exist is found by type checkers

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'semel.http.wsgi' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value
