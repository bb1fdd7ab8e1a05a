"""Many callers, one round trip: what queues up while a batch is out is the next batch.

Never by a timer: a caller that is alone is sent at the end of the loop's tick. A batch that the server
refuses, or that cannot even be written down, is taken apart, so that one bad request does not fail its
neighbours; one that was lost is lost for all of them, and each reads back by its own nonce.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from semel.core.flow import Flow, MakeFlow
from semel.errors import SemelError, StatementRefused, StoreUnavailable

BATCH_MAX: Final = 200
QUEUE_MAX: Final = 10_000

_OVERFULL = "too many calls are waiting for the store; retry with the same key"
_OVERDUE = "the store was busy for too long, and this call was not sent; retry with the same key"

Verb = Callable[[Sequence[Any]], Flow[list[Any]]]
Run = Callable[[MakeFlow[list[Any]], float], Awaitable[list[Any]]]
_Waiting = tuple[Any, asyncio.Future[Any], float]  # a request, its reply, and since when


class Coalescer:
    """The calls of one verb on one event loop, in batches of at most ``BATCH_MAX``, one at a time.

    Parameters: ``verb`` of the store; ``run`` performs a flow that has waited for so many seconds, and is never
    cancelled; ``patience_seconds`` how long a request may wait here and in ``run`` together; ``keeps`` whether a
    request goes out although its caller has been cancelled (a settlement must, a claim must not).
    """

    def __init__(self, verb: Verb, run: Run, *, patience_seconds: float, keeps: bool) -> None:
        self._verb = verb
        self._run = run
        self._patience = patience_seconds
        self._keeps = keeps
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """A future of this request's reply.

        Raises:
            StoreUnavailable: ``QUEUE_MAX`` requests are waiting already.
        """
        if len(self._queue) >= QUEUE_MAX:
            raise StoreUnavailable(_OVERFULL)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((request, future, self._loop.time()))
        if self._task is None:
            self._task = self._loop.create_task(self._serve())  # begins at the end of this tick
        return future

    async def _serve(self) -> None:
        try:
            while self._queue:
                batch = self._next_batch()
                if batch:
                    await self._send(batch)
        finally:
            self._task = None
            for _, future, _ in self._queue:  # only where this task was torn down with its loop
                future.cancel()
            self._queue.clear()

    def _next_batch(self) -> list[_Waiting]:
        queue = self._queue
        oldest = self._loop.time() - self._patience
        while queue and queue[0][2] < oldest:
            _fail(queue.popleft()[1], StoreUnavailable(_OVERDUE))
        if len(queue) <= BATCH_MAX:
            batch = list(queue)
            queue.clear()
        else:
            batch = [queue.popleft() for _ in range(BATCH_MAX)]
        return batch if self._keeps else [waiting for waiting in batch if not waiting[1].cancelled()]

    async def _send(self, batch: list[_Waiting]) -> None:
        requests, futures, since = zip(*batch, strict=True)
        waited = self._loop.time() - since[0]
        if waited >= self._patience:  # the batch that it was in was refused, and taken apart for too long
            for future in futures:
                _fail(future, StoreUnavailable(_OVERDUE))
            return
        try:
            replies = await self._run(lambda: self._verb(requests), waited)
        except BaseException as error:
            if len(batch) > 1 and _is_of_one(error):
                for one in batch:
                    await self._send([one])
                return
            for future in futures:
                _fail(future, error)
            if not isinstance(error, Exception):
                raise
        else:
            for future, reply in zip(futures, replies, strict=True):
                if not future.done():
                    future.set_result(reply)


class Coalescers:
    """The coalescers of one engine: one for each verb and lane, on each event loop that it is used on.

    Parameters: ``run`` and ``patience_seconds`` as :class:`Coalescer`'s; ``lane`` says, by record id, which requests
    may share a round trip (None: all).
    """

    def __init__(self, run: Run, patience_seconds: float, lane: Callable[[bytes], str] | None) -> None:
        self._run = run
        self._patience = patience_seconds
        self._lane = lane
        self._known: dict[tuple[asyncio.AbstractEventLoop, str, str], Coalescer] = {}

    def ask(self, name: str, verb: Verb, request: Any) -> asyncio.Future[Any]:
        """A future of the reply to one request of a verb, in the next batch of its lane.

        Raises StoreUnavailable: too many requests are waiting already.
        """
        loop = asyncio.get_running_loop()
        lane = "" if self._lane is None else self._lane(request.id)
        coalescer = self._known.get((loop, name, lane))
        if coalescer is None:
            for over in [known for known in list(self._known) if known[0].is_closed()]:  # they would be kept for ever
                self._known.pop(over, None)
            coalescer = self._known[loop, name, lane] = Coalescer(
                verb, self._run, patience_seconds=self._patience, keeps=name == "settle"
            )
        return coalescer.ask(request)


def _is_of_one(error: BaseException) -> bool:
    """Whether one request may be to blame: refused by the server, or with a value that no driver can write down."""
    return isinstance(error, StatementRefused) or (isinstance(error, Exception) and not isinstance(error, SemelError))


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
