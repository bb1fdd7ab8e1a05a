"""fastapi-idempotency-key: its ASGI middleware around the whole application, as its README shows.

It has neither a lease nor a scope, so the setup's are not used: one lifetime covers lock and answer.
"""

from __future__ import annotations

from fastapi_idempotency_key import IdempotencyMiddleware, MemoryBackend, RedisBackend, SQLiteBackend

from bench.bare import application
from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """``app.add_middleware`` with a backend."""
    assert setup.store is not None
    if setup.store == "memory://":
        backend = MemoryBackend()
    elif setup.store.startswith("redis://"):
        backend = RedisBackend(redis_url=setup.store)
    else:
        backend = SQLiteBackend(database_path=setup.path)
    app = application(handlers)
    app.add_middleware(IdempotencyMiddleware, backend=backend)
    return app
