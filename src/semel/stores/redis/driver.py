"""The Redis driver: flows in threads and on event loops, on one server or a cluster, through redis-py's connections.

If an answer is lost, its outcome is not known yet: the engine reads it back by the claim's nonce, and this driver does
not retry. ``routes`` decides which calls certainly did not run and may be retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from semel.core.flow import MakeFlow
from semel.stores.deadline import Deadline
from semel.stores.loops import Loops
from semel.stores.process import begin_in_children
from semel.stores.redis.connections import RedisLoop, RedisServer, RedisThreads
from semel.stores.redis.remedies import refusal
from semel.stores.redis.routes import KeyRoutes, RedisRefused, Replies, perform
from semel.stores.redis.scripts import Calls, RedisCall

T = TypeVar("T")


class RedisDriver:
    """Runs the Redis store's flows. Connects when first used; safe after a fork, and on any event loop."""

    coalesces = True

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._inherited: list[object] = []
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._threads = RedisThreads(self.server)
        self._loops = Loops(lambda: RedisLoop(self.server), RedisLoop.drop_idle)
        self.routes: KeyRoutes = self.server.routes()

    def begin_process(self) -> None:
        """Start without connections in a forked child."""
        self._inherited += [self._threads, self._loops]  # never closed here: the parent uses them
        self._begin()

    def lane(self, key: bytes) -> str:
        """Calls on keys of one lane share their round trips: one lane for each node of a cluster, as far as known."""
        return self.routes.lane(key)

    @property
    def patience_seconds(self) -> float:
        """The seconds that a call may take."""
        return self.server.patience_seconds

    # --- threads ----------------------------------------------------------------------------

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread.

        Raises:
            StoreUnavailable: the server cannot be reached or refuses; nothing was written by that call.
            StoreTimeout: the answer was lost; whether it took effect is not known yet.
        """
        flow, deadline = make(), Deadline(self.server.patience_seconds)
        try:
            needed = next(flow)
            while True:
                assert type(needed) is Calls
                replies = self._answer(needed.calls, deadline)
                deadline.note_answer()
                needed = flow.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _answer(self, calls: Sequence[RedisCall], deadline: Deadline) -> list[Any]:
        performing = perform(self.routes, self.server.terms, calls)
        try:
            wanted = next(performing)
            while True:
                if len(wanted) == 1:
                    answers: list[Replies] = [self._threads.exchange(wanted[0], deadline)]
                else:  # one node after the other (the reaper, a purge): one that hangs takes no time from the next
                    answers = [self._threads.exchange(each, Deadline(self.server.patience_seconds)) for each in wanted]
                wanted = performing.send(answers)
        except StopIteration as stop:
            return _sound(stop.value)

    def close(self) -> None:
        """Close idle connections. The driver may be used again."""
        self._threads.close()

    # --- event loops ------------------------------------------------------------------------

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop, in a separate task that survives a cancelled caller. Raises as ``run``."""
        loop = self._loop()
        task = asyncio.get_running_loop().create_task(self.run_uncut(make))
        loop.tasks.add(task)
        task.add_done_callback(loop.tasks.discard)
        result: T = await asyncio.shield(task)
        return result

    async def run_uncut(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        """As ``run_async``, for a task of the engine that is never cancelled and has waited ``waited`` seconds."""
        loop = self._loops.here()
        flow, deadline = make(), Deadline(self.server.patience_seconds, waited)
        try:
            needed = next(flow)
            while True:
                assert type(needed) is Calls
                replies = await self._answer_async(loop, needed.calls, deadline)
                deadline.note_answer()
                needed = flow.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _answer_async(self, loop: RedisLoop, calls: Sequence[RedisCall], deadline: Deadline) -> list[Any]:
        performing = perform(self.routes, self.server.terms, calls)
        try:
            wanted = next(performing)
            while True:
                if len(wanted) == 1:
                    answers: list[Replies] = [await loop.exchange(wanted[0], deadline)]
                else:
                    answers = await asyncio.gather(*(loop.exchange(each, deadline) for each in wanted))
                wanted = performing.send(answers)
        except StopIteration as stop:
            return _sound(stop.value)

    def _loop(self) -> RedisLoop:
        return self._loops.here()

    async def close_async(self) -> None:
        """Wait for running calls, then close the connections of this loop and of the threads."""
        await self._loop().close()
        self.close()


def _sound(replies: list[Any]) -> list[Any]:
    if RedisRefused in map(type, replies):
        raise next(refusal(reply.code, reply.text) for reply in replies if type(reply) is RedisRefused)
    return replies


__all__ = ["RedisDriver", "RedisServer"]
