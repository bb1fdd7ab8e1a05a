"""The same application in FastAPI under Semel, as the documents show it first: a decorator and ``install``."""

from __future__ import annotations

from fastapi import FastAPI

from bench.protected import engine_of
from bench.setup import App, Handlers, Setup
from semel.http import single_caller
from semel.integrations.fastapi import Semel


def build(setup: Setup, handlers: Handlers) -> App:
    """Every handler is a declared operation; settings are the defaults."""
    return install(setup, handlers, declared=True)


def install(setup: Setup, handlers: Handlers, *, declared: bool) -> App:
    """A FastAPI application with Semel installed, and its endpoints ``declared`` as operations or not."""
    engine, counts = engine_of(setup)
    semel = Semel(engine, caller=single_caller)
    app = FastAPI(openapi_url=None)
    app.router.routes.extend(counts)
    for path, run in handlers.items():
        app.post(path, response_model=None)(semel.command(path.strip("/") + ".create")(run) if declared else run)
    semel.install(app)
    return app
