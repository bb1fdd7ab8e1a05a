"""What the simulator's tests share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def untraced() -> Iterator[None]:
    """No coverage tool meanwhile, neither here nor in threads that begin: the same lines, at a third of their speed.

    What is measured by ``sys.monitoring`` (coverage's way from Python 3.14 on) goes on; it costs a line only once.
    """
    tracing, in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    threading.settrace(in_threads)
    sys.settrace(tracing)
