"""Bulk commands in ordinary threads: a thin shell over one flow (``bulk/flow``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from threading import get_ident
from typing import Any, TypeVar, Unpack

from semel.atomic.own_transaction import in_own_transaction
from semel.bulk.declaration import (
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
    fill,
    instead,
    no_rollback,
    operation_bytes,
    replay_result,
    with_details,
)
from semel.bulk.flow import BulkRun, HandleInside, HandleOutside, KnownItems, Read
from semel.bulk.handling import CallHandler, Handling, Pipelined
from semel.bulk.rules import ItemOutcome, ItemState, Tally, item_value
from semel.bulk.spool import ItemSpool
from semel.bulk.store import Items
from semel.core.flow import Flow, ask
from semel.core.model import Superseded
from semel.core.requests import Begin, Unit
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import BulkRefused, HandlerError, SemelError
from semel.sealing.rules import check_sealer
from semel.stores.process import FORKED
from semel.stores.shield import Hold, run_shielded

T = TypeVar("T")
Handler = Callable[[BulkItem], object]


class Bulk:
    """Bulk commands on an :class:`~semel.Engine`: each item has one durable outcome, and a killed bulk continues.

    Parameters: ``engine`` on a SQL store; the options of :class:`~semel.bulk.declaration.BulkPolicy`.

    >>> import tempfile
    >>> from semel import Bulk, Engine
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = Engine.connect(f"sqlite:///{folder.name}/app.db")
    >>> _ = engine.migrate()
    >>> with engine:
    ...     bulk = Bulk(engine, operation="cases.approve", effects="atomic")
    ...     cases = [{"clientItemId": "a", "case": 1}, {"clientItemId": "b", "case": 2}]
    ...     for _ in range(2):
    ...         done = bulk.run(cases, lambda item: f"approval-{item.value['case']}", key="key-1", caller="alice")
    ...         print(done.tally.succeeded, done.replayed)
    ...     print([outcome.result_id for outcome in bulk.outcomes(done.operation_id)])
    2 False
    2 True
    ['approval-1', 'approval-2']
    >>> folder.cleanup()
    """

    def __init__(self, engine: Engine, *, operation: str, **options: Unpack[BulkOptions]) -> None:
        self.policy = BulkPolicy(operation=operation, **options)
        self._engine = engine
        if self.policy.effects == "atomic":
            engine.backend.check_atomic()
        self._items = Items(engine.store)
        check_sealer(self.policy.operation, self.policy.policy, engine.core.sealer)
        self._looking = Looking(engine.store, self._items, self.policy.operation, engine.core.id_secret)

    def run(
        self,
        items: Source,
        handler: Handler,
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
    ) -> BulkResult:
        """Run every item once. The same call after a crash continues; after the end it gets the same result.

        Parameters: ``items`` values of JSON's kinds (bytes: JSON as it is), or a path of JSON lines; read once, to a
        temporary file. ``handler`` returns None, a result's id or :class:`~semel.bulk.rules.Done`, or raises
        :class:`~semel.errors.ItemFailed`; ``key`` of the whole list; ``wait_seconds`` for a run that is under way;
        ``begun`` is called with the operation's id once this run has the key, before its first item; ``counts`` values
        that make the same list another command, such as ``{"store": 8, "dry_run": True}``, or a function that returns
        them once the list is read; ``content_digest`` of a path's file, such as ``"sha-256=:...:"`` (RFC 9530);
        ``limit`` a function, called once the list is read, that returns your limit that it breaks, or None; ``known``
        for atomic items that are done once over many lists, as imports do.

        A list that breaks a limit is refused unless its key is on record. One that was accepted under former limits
        gets its result, or continues.

        Raises BulkRefused: the list is malformed, nothing was done; InvalidBody: the file does not match its digest;
        KeyReusedError: another list, or the same one with other ``counts``, had this key; InProgressError;
        SupersededError: another run has taken over; StoreError: call again with the same list.
        """
        with closing(ItemSpool(self.policy.list_terms)) as spool:
            fill(spool, items, content_digest)
            listed, further = spool.fingerprint(), check_counts(counts)
            refusal = (limit() if limit is not None else None) or spool.refusal
            command = self.policy.command((tenant, caller), key, listed, further, refusal)
            hold: Hold[Permit] = Hold(self._let_go)
            try:
                permit = self._engine._claim_into(hold, command, wait_seconds)
                if not isinstance(permit, Permit):
                    return replay_result(permit)
                work = _Work(self._engine, self.policy, spool, handler, permit, known)
                result = self._settle(permit, work.whole(begun))
                hold.end()
            except BaseException as error:
                hold.let_go(error)
                raise
            return result

    def _let_go(self, permit: Permit, error: BaseException | None) -> None:
        """Handle an interrupted caller: keep the finished items, so that another run continues."""
        if permit.requested_outcome is not None or permit.handler_thread is None:
            self._engine._drop(permit, error)
        elif permit.grant.nonce in self._engine.core.live:
            relinquish(self._engine, self._items, permit)

    def _settle(self, permit: Permit, tally: Tally) -> BulkResult:
        reply = self._engine.settle(permit, answer_of(tally))
        if isinstance(reply, Superseded):
            return instead(self._engine.reread(permit))
        return BulkResult(permit.operation_id, tally, False)

    def operation_id(self, *, key: str, caller: str, tenant: str = "default") -> str | None:
        """Return the operation's id of the bulk with this key, also while it runs; None if there is none."""
        return self._engine.perform("bulk", lambda: self._looking.id(key, caller, tenant))

    def progress(
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
        return self._engine.perform("bulk", lambda: look(operation_id, key, caller, tenant))

    def page(
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
        page = self._engine.perform("bulk", lambda: self._items.page(id, after, limit, state, retryable))
        return with_details(page, id, self._engine.core.sealer)

    def outcomes(
        self, operation_id: str, *, state: ItemState | None = None, retryable: bool = False
    ) -> Iterator[ItemOutcome]:
        """All outcomes, a page at a time."""
        after = -1
        while page := self.page(operation_id, after=after, state=state, retryable=retryable):
            yield from page
            after = page[-1].place

    def retryable(self, operation_id: str, items: Source) -> Iterator[Any]:
        """Return those of the bulk's ``items`` that failed and may be retried, for a new bulk under a new key.

        They are Python values, or JSON (bytes) if a whole number has too many digits for an int. Raises BulkRefused if
        ``items`` is not the bulk's list.
        """
        id = operation_bytes(operation_id)
        with closing(ItemSpool(self.policy.list_terms)) as spool:
            fill(spool, items)
            [record] = self._engine.perform("read_operations", lambda: self._engine.store.read_operations((id,)))
            check_same(record, spool)
            for outcome in self.outcomes(operation_id, state=ItemState.FAILED, retryable=True):
                for listed in spool.page(outcome.place, 1):
                    yield item_value(listed.raw)


class _Work:
    """One run in the calling thread."""

    def __init__(
        self,
        engine: Engine,
        policy: BulkPolicy,
        spool: ItemSpool,
        handler: Handler,
        permit: Permit,
        known: KnownItems | None,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._spool = spool
        self._handler = handler
        self._permit = permit
        self._known = known
        self._handling = Handling(policy, engine.backend, permit.command.scope, permit.grant, engine.core.sealer)
        self._unit: Unit | None = None

    def whole(self, begun: Callable[[str], object] | None) -> Tally:
        run = self._policy.begin(self._engine.store, self._permit.grant, self._spool.total, self._known)
        try:
            self._permit.handler_thread = get_ident()
            if begun is not None:
                begun(self._permit.operation_id)
            return self._drive(run.flow())
        except BaseException:
            run_shielded(lambda: self._give_up(run))
            raise

    def _give_up(self, run: BulkRun) -> None:
        if self._permit.inherited:
            return
        if self._unit is not None:
            with suppress(SemelError):  # the caller raises what has ended the run
                self._engine._performer.drive(run.undo(self._unit))
        relinquish(self._engine, run.items, self._permit)

    def _begin(self, needed: Begin) -> Unit:
        unit: Unit = self._perform(needed)
        self._unit = unit
        return unit

    def _perform(self, needed: Any) -> Any:
        return self._engine._performer.drive(ask(needed))

    def _drive(self, flow: Flow[T]) -> T:
        try:
            needed = next(flow)
            while True:
                try:
                    reply = self._answer(needed)
                except Exception as error:  # thrown into the flow, which judges it: the store's error or a handler's
                    if self._permit.inherited:
                        raise  # the run is its parent's
                    needed = flow.throw(error)
                else:
                    needed = flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _answer(self, needed: Any) -> Any:
        match needed:
            case Read():
                return self._spool.page(needed.first, needed.limit)
            case CallHandler():
                item = needed.item
                with in_own_transaction(self._engine.backend, item.scope.operation, item.connection):
                    handled = self._handler(item)
                if self._permit.inherited:
                    raise HandlerError(FORKED)
                return handled
            case HandleInside():
                with no_rollback(needed.unit.connection):
                    return self._drive(self._handling.inside(needed))
            case Pipelined():
                with needed.connection.pipeline():
                    return self._drive(needed.flow)
            case HandleOutside():
                return [self._drive(self._handling.outside(listed)) for listed in needed.items]
            case Begin():
                return run_shielded(lambda: self._begin(needed))
            case _:
                return self._perform(needed)


def relinquish(engine: Engine, items: Items, permit: Permit) -> None:
    """End this run, so that another one continues where it stopped."""
    engine.core.conclude(permit)
    with suppress(SemelError):
        engine.perform("bulk", lambda: items.relinquish(permit.grant))
