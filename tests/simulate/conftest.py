"""What the simulator's tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def untraced() -> Iterator[None]:
    """No coverage tool meanwhile: a hundred thousand schedules run the same lines, at a third of their speed."""
    tracing = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracing)
