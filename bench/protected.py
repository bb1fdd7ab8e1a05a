"""The same application under Semel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.bare import application
from bench.setup import App, Handlers, Setup
from bench.stores import for_semel
from bench.subjects import COUNTS_PATH
from semel import AsyncEngine, Engine, Policy
from semel.http import Caller, Operation, single_caller
from semel.http.asgi import SemelMiddleware
from semel.telemetry import Counting


def build(setup: Setup, handlers: Handlers) -> App:
    """Every handler is a declared operation; settings are the defaults but for what the setup says."""
    return protect(
        setup, handlers, Policy() if setup.lease_seconds is None else Policy(lease_seconds=setup.lease_seconds)
    )


def protect(setup: Setup, handlers: Handlers, policy: Policy) -> App:
    """These handlers under Semel, all with one policy."""
    engine, counts = engine_of(setup)
    app = application(handlers, *counts)
    operations = [Operation(path, policy) for path in handlers]
    settings: dict[str, Any] = {}
    if setup.book is None:
        settings["caller"] = single_caller
    elif setup.callers:
        settings["caller"] = caller_of
    # Without either, Semel is asked to guess, as a newcomer might.
    return SemelMiddleware(app, engine, operations=operations, manage_engine=True, **settings)


def engine_of(setup: Setup) -> tuple[AsyncEngine, list[Route]]:
    """An engine on the setup's store, made ready, and the route that gives its counts where they are wanted."""
    assert setup.store is not None
    url = for_semel(setup.store)
    migrate(url)
    if not setup.counted:
        return AsyncEngine.connect(url), []
    counting = Counting()
    engine = AsyncEngine.connect(url, observer=counting)

    async def counts(request: Request) -> JSONResponse:
        # Those of requests: the reaper looks at the store by the clock, independently of requests.
        calls = sum(counting.counts["store_call_seconds", (verb,)] for verb in ("claim", "settle"))
        commits: int | None = getattr(engine.backend.driver, "commits", None)
        return JSONResponse({"store_calls": calls, "commits": commits})

    return engine, [Route(COUNTS_PATH, counts)]


def caller_of(scope: Mapping[str, Any]) -> Caller | None:
    """The caller that the request names; a real application would verify it first."""
    name = Headers(raw=list(scope["headers"])).get("x-user")
    return None if name is None else Caller("shop", name)


def migrate(url: str) -> None:
    """Make the store ready, as an operator would have before."""
    engine = Engine.connect(url)
    engine.migrate()
    engine.close()
