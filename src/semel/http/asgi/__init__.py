"""The ASGI middleware, for every application without an integration of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.lazy import load_from as _load_from

if TYPE_CHECKING:
    from semel.http.asgi.middleware import SemelMiddleware as SemelMiddleware

_HOMES = {
    "SemelMiddleware": "semel.http.asgi.middleware",
}

__all__ = [
    "SemelMiddleware",
]


if not TYPE_CHECKING:  # type checkers report a name that does not exist
    __getattr__ = _load_from(__name__, _HOMES)
