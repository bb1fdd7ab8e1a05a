"""fastapi-idempotency: its Starlette middleware, with the memory store or the Tortoise store on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi_idempotency import IdempotencyMiddleware, MemoryStore
from starlette.applications import Starlette
from starlette.requests import Request

from bench.bare import application
from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """``app.add_middleware`` with a store, and ``scope`` if callers are distinguished."""
    settings: dict[str, Any] = {}
    if setup.callers:
        settings["scope"] = _caller
    if setup.lease_seconds is not None:
        # A third, as with the defaults of 60 and 20.
        settings |= {"lease_seconds": setup.lease_seconds, "heartbeat_seconds": setup.lease_seconds / 3}
    if setup.store == "memory://":
        app = application(handlers)
        app.add_middleware(IdempotencyMiddleware, store=MemoryStore(), **settings)
        return app
    from fastapi_idempotency.stores.tortoise import TortoiseStore
    from tortoise.contrib.fastapi import RegisterTortoise

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with RegisterTortoise(
            app,
            config={
                "connections": {"default": f"sqlite://{setup.path}"},
                "apps": {"models": {"models": ["fastapi_idempotency.stores.tortoise"]}},
            },
            generate_schemas=True,
        ):
            yield

    app = application(handlers, lifespan=lifespan)
    app.add_middleware(IdempotencyMiddleware, store=TortoiseStore(), **settings)
    return app


def _caller(request: Request) -> str:
    return f"user:{request.headers.get('x-user', 'anonymous')}"
