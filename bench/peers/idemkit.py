"""idemkit: its ASGI middleware around the whole application, as its README shows under HTTP."""

from __future__ import annotations

from typing import Any

from idemkit import HttpConfig, IdempotencyMiddleware, InMemoryBackend, RedisBackend

from bench.bare import application
from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """Without callers it is the README's first snippet, with them the one "for production"."""
    assert setup.store is not None
    backend = InMemoryBackend() if setup.store == "memory://" else RedisBackend.from_url(setup.store)
    settings: dict[str, Any] = {}
    if setup.callers:
        settings["scope"] = lambda request: request.headers.get("x-user", "anonymous")
    if setup.lease_seconds is not None:
        settings["lease_ttl_seconds"] = setup.lease_seconds
    app = application(handlers)
    if settings:
        app.add_middleware(IdempotencyMiddleware, backend=backend, config=HttpConfig(**settings))
    else:
        app.add_middleware(IdempotencyMiddleware, backend=backend)
    return app
