"""Stories written once for both engines: coroutines, which run at once if nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(story: Coroutine[Any, Any, T]) -> T:
    """The end of a coroutine that never waits."""
    try:
        story.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waited")


class Member:
    """One process's engine of either kind, and its loop if it has one (None: the library waits)."""

    runner: asyncio.Runner | None
    engine: Any

    def tell(self, story: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this member's loop, or to its end at once if there is none."""
        return at_once(story) if self.runner is None else self.runner.run(story)

    def wait_for(self, reply: Any) -> Any:
        """Return what a sync or async method answers; await it on the loop if there is one."""
        return reply if self.runner is None else self.runner.run(reply)

    def performs(self, verb: str, make: Any) -> Any:
        return self.wait_for(self.engine.perform(verb, make))

    def close(self) -> None:
        self.wait_for(self.engine.close())
        if self.runner is not None:
            self.runner.close()
