"""The application that everything is compared with: Starlette, and nothing around it."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """The handlers, unprotected."""
    return application(handlers)


def application(handlers: Handlers, *more: Route, **settings: Any) -> Starlette:
    """A Starlette application of these handlers; ``more`` routes and ``settings`` go to Starlette."""
    return Starlette(
        routes=[*(Route(path, run, methods=["POST"]) for path, run in handlers.items()), *more], **settings
    )
