"""A subject that refuses its settings, as a good package does with impossible ones."""

from __future__ import annotations

from bench.bare import application
from bench.setup import App, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """Refuses to guess who is calling."""
    if not setup.callers:
        raise ValueError("who is calling?")
    return application(handlers)
