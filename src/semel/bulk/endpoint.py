"""Bulk commands as endpoints of ASGI frameworks: the body is the list, the answer has every item.

The endpoint is the application's own, with its own authentication; it passes its request to ``BulkEndpoint.answer``.
The bulk runs in its own task, so that it continues if the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from semel.bulk.declaration import BulkResult
from semel.bulk.http import (
    BulkRequest,
    ListForm,
    Telling,
    accept,
    check_size,
    describe_bulk,
    headers_of,
    items_pointer,
    parse_request,
    refuse,
    status_of,
)
from semel.bulk.run_async import AsyncBulk, AsyncHandler
from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError, InProgressError
from semel.http.asgi.disconnects import KeptAlive
from semel.http.asgi.request import AsgiRequest, mount_of, path_of
from semel.http.settings import HttpSettings
from semel.recipe import check_headers

R = TypeVar("R")
BODY_BYTES_MAX: Final = 64 * 1024 * 1024


class AsyncTold(NamedTuple):
    """A whole answer, whose items are read while it is sent."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    pieces: AsyncIterator[bytes]


class BulkEndpoint(Generic[R]):
    """One bulk command over HTTP; made by ``semel.bulk(...)``. ``answer`` is the endpoint, in the framework's terms.

    A list is a JSON array (``application/json``) or JSON lines (``application/jsonl``, ``application/x-ndjson``), read
    piece by piece; the key is in the header. 200 where every item succeeded, 207 where they ended differently; with
    ``Prefer: respond-async`` 202 and the status resource, which has the progress. Besides the list, the fingerprint
    covers path parameters, query, media type parameters and the declared headers.
    """

    answer: Callable[..., Coroutine[Any, Any, R]]
    counts_path = False  # whether the application takes the list at several paths, each a separate command

    def __init__(
        self, surface: HttpSettings, kept_alive: KeptAlive, bulk: AsyncBulk, handler: AsyncHandler, taken: ListForm
    ) -> None:
        self.bulk = bulk
        self.taken = taken
        self._surface = surface
        self._kept_alive = kept_alive
        self._handler = handler

    def describe(self, operation: dict[str, Any]) -> None:
        """Complete the operation object of this endpoint in an OpenAPI document."""
        describe_bulk(operation, self.bulk.policy, self.taken, self._surface.key_header)

    async def respond(self, request: AsgiRequest) -> Answer | AsyncTold:
        """Run the list of a request, continue it, or replay its answer. Raises errors that concern all items."""
        how = parse_request(
            self._surface,
            request.headers,
            request.asked,
            self.taken,
            params=tuple(sorted((name, str(value)) for name, value in request.params.items())),
            query=request.query,
            path=path_of(request.asked) if self.counts_path else None,
            mount=mount_of(request.asked),
        )
        if isinstance(how, Answer):
            return how
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        size = 0

        async def items() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in request.pieces():
                size += len(piece)
                check_size(size, self.taken.read_max)
                how.check.feed(piece)
                for raw in how.reader.feed(piece):
                    yield raw
            how.check.finish()  # a list that was cut in transit is refused as such, even if its last item looks valid
            for raw in how.reader.end():
                yield raw

        work = self._kept_alive.begin(
            self.bulk.run(
                items(),
                self._handler,
                key=how.key,
                caller=how.caller.id,
                tenant=how.caller.tenant,
                wait_seconds=0 if how.wants_async and how.wait_seconds is None else how.wait_seconds,
                begun=lambda id: None if begun.done() else begun.set_result(id),
                counts=how.counts,
                limit=lambda: self.taken.refuse_size(size),
            )
        )
        try:
            if how.wants_async:
                await asyncio.wait((work, begun), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    self._kept_alive.leave(work)
                    return accept(self._surface, begun.result(), how)
            result = await asyncio.shield(work)
            return AsyncTold(status_of(result), headers_of(self._surface, result, how), self._body(result, how))
        except asyncio.CancelledError:
            self._kept_alive.leave(work)
            raise
        except Exception as error:
            if how.wants_async and isinstance(error, InProgressError) and error.operation_id is not None:
                return accept(self._surface, error.operation_id, how)
            answer = refuse(self._surface, error, how)
            if answer is None:
                raise
            return answer

    async def _body(self, result: BulkResult, how: BulkRequest) -> AsyncIterator[bytes]:
        telling, after = Telling(result, how), -1
        yield telling.begin()
        while page := await self.bulk.page(result.operation_id, after=after):
            yield telling.page(page)
            after = page[-1].place
        yield telling.end()


def bulk_endpoint(
    engine: AsyncEngine,
    surface: HttpSettings,
    kept_alive: KeptAlive,
    bulk: Any,
    handler: Any,
    *,
    body_bytes_max: int,
    items_at: str | None,
    counts: Sequence[str] | None,
) -> BulkEndpoint[Any]:
    """Build ``semel.bulk``. Raises ConfigurationError, when the application is built."""
    if not isinstance(bulk, AsyncBulk) or bulk._engine is not engine:
        raise ConfigurationError(
            "semel.bulk takes an AsyncBulk on the engine of this Semel: AsyncBulk(semel.engine, operation=...)"
        )
    if not asyncio.iscoroutinefunction(handler) and not asyncio.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether an object's call is awaited
    ):
        raise ConfigurationError("a bulk's handler here must be a coroutine function: async def approve(item): ...")
    if type(body_bytes_max) is not int or body_bytes_max < 1:
        raise ConfigurationError(f"body_bytes_max must be a whole number of bytes; it is {body_bytes_max!r}")
    headers = tuple(name.encode() for name in check_headers(surface.counts if counts is None else counts))
    if surface.key_name in headers:
        raise ConfigurationError(f"counts must not name {surface.key_header}: the key never counts")
    honoured = surface.honour_headers(bulk.policy.answer_seconds)
    taken = ListForm(body_bytes_max, bulk.policy.item_bytes_max, items_pointer(items_at), headers, honoured)
    return BulkEndpoint(surface, kept_alive, bulk, handler, taken)
