"""The same application in FastAPI: what those are compared with that work in FastAPI alone."""

from __future__ import annotations

from fastapi import FastAPI

from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """The handlers as FastAPI endpoints that take the request and return a response, unprotected."""
    app = FastAPI(openapi_url=None)
    for path, run in handlers.items():
        app.post(path, response_model=None)(run)
    return app
