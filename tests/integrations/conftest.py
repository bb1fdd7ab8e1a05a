"""Applications with a memory store, closed at the end of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.engine.async_engine import AsyncEngine
from tests.integrations.driving import Web, Webs

Serve = Callable[[Any, AsyncEngine], Web]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves an application, from the begin of its lifespan to its end."""
    webs = Webs()
    yield webs.serve
    webs.close()


@pytest.fixture
def engine() -> AsyncEngine:
    """An engine on a store that lives and dies with the test."""
    return AsyncEngine.connect("memory://")
