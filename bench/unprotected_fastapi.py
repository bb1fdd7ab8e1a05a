"""The same application in FastAPI with Semel installed and no operation declared: what the others of its routes pay."""

from __future__ import annotations

from bench.protected_fastapi import install
from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """No handler is declared."""
    return install(setup, handlers, declared=False)
