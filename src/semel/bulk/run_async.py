"""Bulk commands on event loops: a thin shell over one flow (``bulk/flow``)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import closing, suppress
from itertools import islice
from os import PathLike
from typing import Any, Final, TypeVar, Unpack

from semel.articles import name_type
from semel.atomic.own_transaction import in_own_transaction
from semel.bulk.declaration import (
    NO_FILE,
    PAGE,
    BulkItem,
    BulkOptions,
    BulkPolicy,
    BulkResult,
    Counts,
    Looking,
    Source,
    answer_of,
    check_counts,
    check_same,
    check_source,
    fill,
    instead,
    no_rollback,
    operation_bytes,
    replay_result,
    with_details,
)
from semel.bulk.flow import BulkRun, HandleInside, HandleOutside, KnownItems, Read
from semel.bulk.handling import CallHandler, Handling, Pipelined
from semel.bulk.rules import ItemOutcome, ItemState, ListedItem, Tally, item_value
from semel.bulk.spool import ItemSpool
from semel.bulk.store import Items
from semel.core.flow import Flow, ask
from semel.core.model import Superseded
from semel.core.requests import AsyncUnit, Begin, Perform
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import BulkRefused, HandlerError, PolicyError, SemelError
from semel.sealing.rules import check_sealer
from semel.stores.process import FORKED
from semel.stores.shield import whole

T = TypeVar("T")
AsyncHandler = Callable[[BulkItem], Awaitable[object]]
BATCH: Final = 500  # items read from their source per call of a thread


class AsyncBulk:
    """As :class:`Bulk`, on an :class:`~semel.AsyncEngine`, with handlers that are awaited.

    Up to ``at_once`` items with external effects run together; atomic ones share a connection and run one by one.
    """

    def __init__(self, engine: AsyncEngine, *, operation: str, **options: Unpack[BulkOptions]) -> None:
        self.policy = BulkPolicy(operation=operation, **options)
        self._engine = engine
        if self.policy.effects == "atomic":
            engine.backend.check_atomic()
        self._items = Items(engine.store)
        check_sealer(self.policy.operation, self.policy.policy, engine.core.sealer)
        self._looking = Looking(engine.store, self._items, self.policy.operation, engine.core.id_secret)

    async def run(
        self,
        items: Source | AsyncIterable[Any],
        handler: AsyncHandler,
        *,
        key: str,
        caller: str,
        tenant: str = "default",
        wait_seconds: float | None = None,
        begun: Callable[[str], object] | None = None,
        counts: Counts | None = None,
        content_digest: str | None = None,
        limit: Callable[[], BulkRefused | None] | None = None,
        known: KnownItems | None = None,
        describe: Callable[[int], bytes] | None = None,
    ) -> BulkResult:
        """As :meth:`Bulk.run`; ``items`` may be an async iterable. A cancelled run gives its lease back.

        Parameters: ``describe`` returns, by place from 0, the detail of a failed or UNKNOWN item whose handler gave
        none.
        """
        with closing(ItemSpool(self.policy.list_terms)) as spool:
            await fill_async(spool, items, content_digest)
            listed, further = spool.fingerprint(), check_counts(counts)
            refusal = (limit() if limit is not None else None) or spool.refusal
            command = self.policy.command((tenant, caller), key, listed, further, refusal)
            permit = await self._engine.claim(command, wait_seconds=wait_seconds)
            if not isinstance(permit, Permit):
                return replay_result(permit)
            work = _AsyncWork(self._engine, self.policy, spool, handler, permit, known, describe)
            return await self._settle(permit, await work.whole(begun))

    async def _settle(self, permit: Permit, tally: Tally) -> BulkResult:
        reply = await self._engine.settle(permit, answer_of(tally))
        if isinstance(reply, Superseded):
            return instead(await self._engine.reread(permit))
        return BulkResult(permit.operation_id, tally, False)

    async def operation_id(self, *, key: str, caller: str, tenant: str = "default") -> str | None:
        """Return the operation's id of the bulk with this key, also while it runs; None if there is none."""
        return await self._engine.perform("bulk", lambda: self._looking.id(key, caller, tenant))

    async def progress(
        self,
        operation_id: str | None = None,
        *,
        key: str | None = None,
        caller: str | None = None,
        tenant: str = "default",
    ) -> Tally | None:
        """Return the progress of a bulk, even while another process runs it; None if there is none.

        Parameters: its ``operation_id``, or the ``key``, ``caller`` and ``tenant`` that it was given to :meth:`run`.

        Raises PolicyError if no bulk is identified; StoreError.
        """
        look = self._looking.progress
        return await self._engine.perform("bulk", lambda: look(operation_id, key, caller, tenant))

    async def page(
        self,
        operation_id: str,
        *,
        after: int = -1,
        limit: int = PAGE,
        state: ItemState | None = None,
        retryable: bool = False,
    ) -> list[ItemOutcome]:
        """Outcomes in the order of the list: at most ``limit``, those after a place."""
        id = operation_bytes(operation_id)
        page = await self._engine.perform("bulk", lambda: self._items.page(id, after, limit, state, retryable))
        return with_details(page, id, self._engine.core.sealer)

    async def outcomes(
        self, operation_id: str, *, state: ItemState | None = None, retryable: bool = False
    ) -> AsyncIterator[ItemOutcome]:
        """All outcomes, a page at a time."""
        after = -1
        while page := await self.page(operation_id, after=after, state=state, retryable=retryable):
            for outcome in page:
                yield outcome
            after = page[-1].place

    async def retryable(self, operation_id: str, items: Source | AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Return those of the bulk's ``items`` that failed and may be retried, for a new bulk under a new key.

        They are Python values, or JSON (bytes) if a whole number has too many digits for an int. Raises BulkRefused if
        ``items`` is not the bulk's list.
        """
        id = operation_bytes(operation_id)
        with closing(ItemSpool(self.policy.list_terms)) as spool:
            await fill_async(spool, items)
            [record] = await self._engine.perform("read_operations", lambda: self._engine.store.read_operations((id,)))
            check_same(record, spool)
            async for outcome in self.outcomes(operation_id, state=ItemState.FAILED, retryable=True):
                for listed in spool.page(outcome.place, 1):
                    yield item_value(listed.raw)


class _AsyncWork:
    """One run on an event loop, in its caller's task; cancellation never cuts a store call in half."""

    def __init__(
        self,
        engine: AsyncEngine,
        policy: BulkPolicy,
        spool: ItemSpool,
        handler: AsyncHandler,
        permit: Permit,
        known: KnownItems | None,
        describe: Callable[[int], bytes] | None,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._spool = spool
        self._handler = handler
        self._permit = permit
        self._known = known
        self._handling = Handling(policy, engine.backend, permit.command.scope, permit.grant, engine.core.sealer)
        self._describe = None if describe is None else self._handling.describe_by(describe)
        self._unit: AsyncUnit | None = None

    async def whole(self, begun: Callable[[str], object] | None) -> Tally:
        run = self._policy.begin(self._engine.store, self._permit.grant, self._spool.total, self._known, self._describe)
        try:
            if begun is not None:
                begun(self._permit.operation_id)
            return await self._drive(run.flow())
        except BaseException:
            if not self._permit.inherited:  # in a forked child the run is its parent's
                self._engine.core.conclude(self._permit)
                await _uncut(self._give_back(run))
            raise

    async def _give_back(self, run: BulkRun) -> None:
        if self._unit is not None:
            with suppress(SemelError):  # the caller raises what has ended the run
                await self._engine._performer.drive(run.undo(self._unit))
        with suppress(SemelError):
            await self._perform(Perform("bulk", lambda: run.items.relinquish(self._permit.grant)))

    async def _perform(self, needed: Any) -> Any:
        return await self._engine._performer.drive(ask(needed))

    async def _drive(self, flow: Flow[T]) -> T:
        try:
            needed = next(flow)
            while True:
                try:
                    reply = await self._answer(needed)
                except Exception as error:  # thrown into the flow, which judges it: the store's error or a handler's
                    if self._permit.inherited:
                        raise  # the run is its parent's
                    needed = flow.throw(error)
                else:
                    needed = flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _answer(self, needed: Any) -> Any:
        match needed:
            case Read():
                return self._spool.page(needed.first, needed.limit)
            case CallHandler():
                item = needed.item
                with in_own_transaction(self._engine.backend, item.scope.operation, item.connection):
                    begun = self._handler(item)
                    if not inspect.isawaitable(begun):
                        raise HandlerError(
                            f"an AsyncBulk takes a coroutine function; this handler returned {name_type(begun)}: "
                            "write async def approve(item): ..."
                        )
                    handled = await begun
                if self._permit.inherited:
                    raise HandlerError(FORKED)
                return handled
            case HandleInside():
                with no_rollback(needed.unit.connection):
                    return await self._drive(self._handling.inside(needed))
            case Pipelined():
                async with needed.connection.pipeline():
                    return await self._drive(needed.flow)
            case HandleOutside():
                return await self._window(needed.items)
            case Begin():
                return await _uncut(self._begin(needed))
            case _:
                return await _uncut(self._perform(needed))

    async def _begin(self, needed: Begin) -> AsyncUnit:
        self._unit = unit = await self._perform(needed)
        result: AsyncUnit = unit
        return result

    async def _window(self, items: Sequence[ListedItem]) -> list[ItemOutcome]:
        if len(items) == 1:
            return [await self._drive(self._handling.outside(items[0]))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._drive(self._handling.outside(listed))) for listed in items]
        except BaseExceptionGroup as group_of_errors:  # a wrong handler: the other calls were cancelled
            raise group_of_errors.exceptions[0] from None
        return [task.result() for task in tasks]


async def _uncut(work: Coroutine[Any, Any, T]) -> T:
    """Run to completion even if the caller is cancelled."""
    done, cancelled = await whole(work)
    if cancelled is not None:
        raise cancelled
    return done


async def fill_async(spool: ItemSpool, items: Source | AsyncIterable[Any], content_digest: str | None = None) -> None:
    """Read a whole source without blocking the loop, a batch at a time."""
    check_source(items)
    if isinstance(items, PathLike):
        await _uncut(asyncio.to_thread(fill, spool, items, content_digest))
    elif content_digest is not None:
        raise PolicyError(NO_FILE)
    elif isinstance(items, AsyncIterable):
        batch: list[Any] = []
        async for value in items:
            batch.append(value)
            if len(batch) == BATCH:
                await _uncut(asyncio.to_thread(fill, spool, batch))
                batch = []
        await _uncut(asyncio.to_thread(fill, spool, batch))
    else:
        values = iter(items)
        while batch := await _uncut(asyncio.to_thread(lambda: list(islice(values, BATCH)))):
            await _uncut(asyncio.to_thread(fill, spool, batch))
