"""Batches the calls of many callers: those that queue up while a batch is out are the next batch.

There is no timer: a single call is sent at the end of the loop's tick. A batch that the server refuses, or that cannot
be encoded, is split, so that one bad request does not fail its neighbours. A lost batch is lost for all its callers,
and each reads back by its own nonce.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter, call, itemgetter, methodcaller
from typing import Any, Final

from semel.core.flow import Flow, MakeFlow
from semel.errors import SchemaError, SemelError, StatementRefused, StoreUnavailable

BATCH_MAX: Final = 200
QUEUE_MAX: Final = 10_000

_OVERFULL = "too many calls are waiting for the store; retry with the same key"
_OVERDUE = "the store was busy for too long, and this call was not sent; retry with the same key"

Verb = Callable[[Sequence[Any]], Flow[list[Any]]]
Run = Callable[[MakeFlow[list[Any]], float], Awaitable[list[Any]]]
_Waiting = tuple[Any, asyncio.Future[Any], float]  # a request, its reply, and since when
# Steps for each request of a batch, done in C.
_future_of: Final = itemgetter(1)
_id_of: Final = itemgetter(0)  # of any request about one record: a claim, a settlement, a look
_is_cancelled: Final = methodcaller("cancelled")
_is_done: Final = methodcaller("done")
_setter_of: Final = attrgetter("set_result")
_running_loop: Final = asyncio.get_running_loop


class Coalescer:
    """The calls of one verb on one event loop, in batches of at most ``BATCH_MAX``, one at a time.

    Parameters: ``verb`` of the store; ``run`` performs a flow, given the seconds that it has waited, and is never
    cancelled; ``patience_seconds`` how long a request may wait here and in ``run`` together; ``keeps`` whether a
    request goes out although its caller has been cancelled (a settlement must, a claim must not); ``locate`` names the
    store in a SchemaError.
    """

    def __init__(
        self,
        verb: Verb,
        run: Run,
        *,
        patience_seconds: float,
        keeps: bool,
        locate: Callable[[SchemaError], None] = lambda error: None,
    ) -> None:
        self._verb = verb
        self._run = run
        self._patience = patience_seconds
        self._keeps = keeps
        self._locate = locate
        self.loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self._serving = False
        self._task: asyncio.Task[None] | None = None  # the loop itself keeps no task alive

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """Queue a request, and return the future of its reply.

        Raises:
            StoreUnavailable: ``QUEUE_MAX`` requests are waiting already.
        """
        queue, loop = self._queue, self.loop
        if len(queue) >= QUEUE_MAX:
            raise StoreUnavailable(_OVERFULL)
        future: asyncio.Future[Any] = loop.create_future()
        queue.append((request, future, loop.time()))
        if not self._serving:
            self._serving = True
            # The task begins at the end of this tick; with eager tasks it begins at once, and may even end here.
            self._task = loop.create_task(self._serve())
        return future

    async def _serve(self) -> None:
        try:
            while self._queue:
                batch = self._next_batch()
                if batch:
                    await self._send(batch)
        finally:
            self._serving = False
            for _, future, _ in self._queue:  # only if this task ended with its loop
                future.cancel()
            self._queue.clear()

    def _next_batch(self) -> list[_Waiting]:
        queue = self._queue
        oldest = self.loop.time() - self._patience
        while queue and queue[0][2] < oldest:
            _fail(queue.popleft()[1], StoreUnavailable(_OVERDUE))
        if len(queue) <= BATCH_MAX:
            batch = list(queue)
            queue.clear()
        else:
            batch = [queue.popleft() for _ in range(BATCH_MAX)]
        if self._keeps or True not in map(_is_cancelled, map(_future_of, batch)):
            return batch
        return [waiting for waiting in batch if not waiting[1].cancelled()]

    async def _send(self, batch: list[_Waiting]) -> None:
        requests, futures, since = zip(*batch, strict=True)
        waited = self.loop.time() - since[0]
        if waited >= self._patience:  # its batch was refused, and splitting it took too long
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
            if isinstance(error, SchemaError):
                self._locate(error)
            for future in futures:
                _fail(future, error)
            if not isinstance(error, Exception):
                raise
        else:
            if len(replies) != len(futures):
                for future in futures:  # it is unknown which request each reply belongs to
                    _fail(future, AssertionError(f"{len(replies)} replies to {len(futures)} requests"))
            elif True in map(_is_done, futures):  # a caller was cancelled meanwhile
                for future, reply in zip(futures, replies, strict=True):
                    if not future.done():
                        future.set_result(reply)
            else:
                _ = list(map(call, map(_setter_of, futures), replies))


class Coalescers:
    """The coalescers of one engine: one for each verb and lane, on each event loop that it is used on.

    Parameters: ``run``, ``patience_seconds`` and ``locate`` as :class:`Coalescer`'s; ``lane`` says, by record id,
    which requests may share a round trip (None: all).
    """

    def __init__(
        self,
        run: Run,
        patience_seconds: float,
        lane: Callable[[bytes], str] | None,
        locate: Callable[[SchemaError], None],
    ) -> None:
        self._run = run
        self._patience = patience_seconds
        self._lane = lane
        self._locate = locate
        self._known: dict[tuple[asyncio.AbstractEventLoop, str, str], Coalescer] = {}
        self._only: dict[str, Coalescer] = {}  # by verb, if all requests have one lane; for the loop that asked last

    def ask(self, name: str, verb: Verb, request: Any) -> asyncio.Future[Any]:
        """Queue a request of a verb for the next batch of its lane; return the future of its reply.

        Raises StoreUnavailable: too many requests are waiting already.
        """
        coalescer = self._only.get(name)
        if coalescer is None or coalescer.loop is not _running_loop():
            coalescer = self._find(name, verb, request)
        return coalescer.ask(request)

    def _find(self, name: str, verb: Verb, request: Any) -> Coalescer:
        lane = "" if self._lane is None else self._lane(_id_of(request))
        found = self._known.get((_running_loop(), name, lane)) or self._begin(name, verb, lane)
        if self._lane is None:
            self._only[name] = found
        return found

    def _begin(self, name: str, verb: Verb, lane: str) -> Coalescer:
        for over in [known for known in list(self._known) if known[0].is_closed()]:  # they would be kept for ever
            self._known.pop(over, None)
        made = self._known[_running_loop(), name, lane] = Coalescer(
            verb, self._run, patience_seconds=self._patience, keeps=name == "settle", locate=self._locate
        )
        return made


def _is_of_one(error: BaseException) -> bool:
    """Whether one request may be to blame: the server refused it, or no driver can encode a value of it."""
    return isinstance(error, StatementRefused) or (isinstance(error, Exception) and not isinstance(error, SemelError))


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
