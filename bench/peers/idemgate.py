"""idemgate: FastAPI's routes under its own route class, on Redis, as its README shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from idemgate import IdempotencyConfig, IdempotencyRoute, idempotent
from idemgate.redis_store import RedisAcquirer
from redis.asyncio import Redis
from starlette.requests import Request

from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """Each handler is an endpoint that takes the request and returns a response."""
    assert setup.store is not None
    url = setup.store

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = Redis.from_url(url, decode_responses=False)
        app.state.idempotency_store = RedisAcquirer(redis)
        try:
            yield
        finally:
            await redis.aclose()

    settings: dict[str, Any] = {}
    if setup.callers:
        settings["namespace"] = _caller
    if setup.lease_seconds is not None:
        lease = int(setup.lease_seconds)
        settings["config"] = IdempotencyConfig(processing_lease_seconds=lease, renew_interval_seconds=lease // 3)
    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.router.route_class = IdempotencyRoute
    for path, run in handlers.items():
        app.post(path, response_model=None)(idempotent(**settings)(run))
    return app


def _caller(request: Request) -> str:
    return request.headers.get("x-user", "anonymous")
