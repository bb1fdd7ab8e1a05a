"""Opening an engine, or leaving nothing behind: a store that was refused was asked, so its connections are open."""

from __future__ import annotations

from typing import Any, TypeVar

E = TypeVar("E", bound=Any)


def opened(engine: E) -> E:
    """The engine, open. Where that raises, it is closed first."""
    try:
        engine.open()
    except BaseException:
        engine.close()
        raise
    return engine


async def opened_async(engine: E) -> E:
    """The same for an engine of an event loop."""
    try:
        await engine.open()
    except BaseException:
        await engine.close()
        raise
    return engine
