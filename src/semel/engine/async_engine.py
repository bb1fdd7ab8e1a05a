"""The async engine: a thin shell that performs the flows of ``core`` on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from semel.atomic.flow import claim_of_waiter, read_settled
from semel.atomic.own_transaction import in_own_transaction
from semel.atomic.run import AsyncAtomic
from semel.core.command_flow import (
    IN_OTHER_TERMS,
    await_verdict,
    claim_recast,
    look_before_refusing,
    look_instead,
    reread,
)
from semel.core.flow import Flow, MakeFlow, ask
from semel.core.identity import record_id
from semel.core.model import (
    Answer,
    Claim,
    Effects,
    InProgress,
    Proceed,
    Replay,
    Settled,
    Settlement,
    Settling,
    State,
    Superseded,
    Verdict,
)
from semel.core.outcomes import Outcome, Refused, Succeeded, classify_exception
from semel.core.record import is_whole
from semel.core.requests import AsyncUnit, Begin, Rollback
from semel.engine.opening import introduction, open_or_close_async
from semel.engine.permit import AsyncPermit, Permit
from semel.engine.renewal import AsyncUpkeep
from semel.engine.result import Refusal, Result, answer_from, outcome_from, own_result, stored_result, superseded_result
from semel.engine.runner import AsyncPerformer
from semel.engine.state import Core, EngineOptions, Seals
from semel.errors import (
    HandlerError,
    NotReplicated,
    RequestTooLarge,
    SchemaError,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
)
from semel.operations.flow import claim_kept, claim_unit, settle_unit
from semel.operations.tracking import settling
from semel.policy import Command
from semel.quota import Quota
from semel.reconciliation.reported import Reported, settle_reported
from semel.sealing.rebuild import WITHHELD, give_async
from semel.steps.flow import keep_request
from semel.stores.backend import Backend, UnitRuns
from semel.stores.process import FORKED
from semel.stores.urls import connect_backend
from semel.telemetry import Observer

T = TypeVar("T")
_ATOMIC = Effects.ATOMIC
_Claims = Callable[[Sequence[Claim]], Flow[list[Verdict]]]
_Attempt = Callable[[Claim, Command, _Claims], Awaitable[Verdict]]


class AsyncEngine:
    """Makes commands happen once, on an event loop.

    Parameters: ``backend`` (or use :meth:`connect` with a URL); ``observer`` of events; ``id_secret`` at
    least 16 bytes, never rotated, makes record ids an HMAC; ``waiters_max`` and ``waiters_per_caller_max``
    bound how many duplicates may wait at once; ``confirm_seconds`` how long a settlement is retried
    before the outcome is reported as unknown; ``sealer`` such as a
    :class:`~semel.sealing.sealer.Sealer`, for the requests that are kept of resumable operations.

    >>> import asyncio
    >>> from hashlib import sha256
    >>> from semel import Answer, AsyncEngine, Command, Policy, Scope
    >>> async def main() -> None:
    ...     async with AsyncEngine.connect("memory://") as engine:
    ...         command = Command(
    ...             scope=Scope(tenant="acme", caller="alice", operation="greet"),
    ...             key="key-1",
    ...             fingerprint=sha256(b"all that is wanted").digest(),
    ...             recipe="demo",
    ...             policy=Policy(),
    ...         )
    ...
    ...         async def handler(permit: object) -> Answer:
    ...             return Answer(200, (), b"hello")
    ...
    ...         first = await engine.run(command, handler)
    ...         again = await engine.run(command, handler)
    ...         print(first.replayed, again.replayed, again.answer.body)
    >>> asyncio.run(main())
    False True b'hello'
    """

    def __init__(
        self,
        backend: Backend,
        *,
        observer: Observer | None = None,
        id_secret: bytes | None = None,
        waiters_max: int = 1000,
        waiters_per_caller_max: int = 100,
        confirm_seconds: float = 5.0,
        sealer: Seals | None = None,
        require_durable: bool = False,
        quota: Quota | None = None,
    ) -> None:
        self.core = Core(observer, id_secret, waiters_max, waiters_per_caller_max, sealer, confirm_seconds, quota)
        self.core.learn_backend(backend, require_durable=require_durable)
        self.backend = backend
        self.store = backend.store
        self._claims: _Claims = backend.store.claim
        self._claims_unseen = backend.claim_unseen or self._claims
        self.confirm_seconds = confirm_seconds
        self._performer = AsyncPerformer(self.core, backend)
        self._upkeep = AsyncUpkeep(self.core, backend.store, self._performer)

    @classmethod
    def connect(cls, url: str, **options: Unpack[EngineOptions]) -> Self:
        """Make an engine for a store URL, such as ``sqlite:///semel.db`` or ``memory://``; nothing is opened yet.

        Raises UrlError, naming what is wrong with the URL.
        """
        return cls(connect_backend(url), **options)

    async def open(self) -> None:
        """Check that the store is migrated, has the recorded identity, and supports the declared operations.

        A memory store is made on the spot. Raises ConfigurationError, SchemaError, IdentityMismatch, StoreUnavailable.
        """
        await self._performer.drive(introduction(self.core, self.backend))

    async def migrate(self) -> list[str]:
        """Bring the store's schema up to date; return the names of the migrations that ran."""
        return await self.perform("migrate", lambda: self.store.migrate(*self.core.first_identity()))

    async def close(self) -> None:
        """Wait for live handlers, settlements and releases, then close the store."""
        await self._upkeep.close()
        await self.backend.driver.close_async()

    async def __aenter__(self) -> Self:
        return await open_or_close_async(self)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, seconds: float) -> bool:
        """Grant nothing more and let live handlers end; return True if all did within ``seconds``."""
        return await self._performer.drive(self.core.drain(seconds))

    async def perform(self, verb: str, make: MakeFlow[T]) -> T:
        """Run one flow of the store, such as ``engine.perform("find", lambda: engine.store.find(query))``."""
        return await self._performer.store_call(verb, make)

    async def claim(self, command: Command, *, wait_seconds: float | None = None) -> AsyncPermit | Refusal:
        """Reserve the command's key: a :class:`Permit`, or the verdict that refuses it.

        Parameters: ``wait_seconds`` how long to wait for a running duplicate (the policy's by default).

        Raises StoreUnavailable or StoreTimeout: the handler must not run. Raises the command's ``refusal``, if it has
        one and nothing is on record under its key.
        """
        core, performer = self.core, self._performer
        if not core.checked:
            await performer.first_look.take()
        id = record_id(command.scope, command.key, core.id_secret)
        is_plain = core.is_plain and command.is_plain and command.policy.terms.effects is not _ATOMIC
        at_once = performer.claim_at_once
        if is_plain and at_once is not None:
            met = at_once(id, command, core.plain_attempt)
            if isinstance(met, Replay):
                return met
            claim, fence = met
            if not isinstance(fence, int):  # a key that was seen before
                return await self._claim_and_wait(claim, command, self._claims, wait_seconds, fence)
            permit = core.live[claim.nonce] = Permit(command, claim, fence, time.monotonic())
            if core.draining:  # a drain that began meanwhile did not see this claim
                core.conclude(permit)
                self._upkeep.abandon(claim)
                core.check_open()
            upkeep = self._upkeep
            if upkeep.beat_us > claim.terms.lease_us or upkeep.loop is not asyncio.get_running_loop():
                upkeep.watch(permit)  # it declares no steps
            return permit  # type: ignore[return-value]  # an AsyncPermit is one for type checkers only
        kept = None
        if is_plain or core.may_look(command):
            if performer.kept_answer is not None:
                try:
                    kept = performer.kept_answer(id, command.recipe, command.fingerprint)
                except SchemaError as error:
                    self.backend.locate(error)
                    raise
            elif id in performer.answered:
                kept = await performer.look_kept(id, command.recipe, command.fingerprint)
            if kept:
                return kept
        claim = (core.plain_attempt if is_plain else core.attempt)(command, id)
        claims = self._claims_unseen if kept is False else self._claims
        if not is_plain:
            return await self._claim_and_wait(claim, command, claims, wait_seconds, None)
        verdict: Verdict
        core.entering.add(claim.nonce)
        try:
            if core.draining:  # as in ``_claim_and_wait``
                core.check_open()
            verdict = await performer.ask_one("claim", claims, claim)
            if type(verdict) is Replay:
                performer.note_answered(claim.id)
                return verdict
            if type(verdict) is Proceed:
                granted = core.permit(command, claim, verdict.grant)
                self._upkeep.watch(granted)
                return granted  # type: ignore[return-value]  # as above
        except StoreReadOnly as refusal:
            verdict = await performer.drive(look_instead(self.store, claim, command.under, refusal))
        except (StoreTimeout, asyncio.CancelledError):
            self._upkeep.abandon(claim)  # as in ``_claim``
            raise
        finally:
            core.entering.discard(claim.nonce)
        return await self._claim_and_wait(claim, command, claims, wait_seconds, verdict)

    async def _claim_and_wait(
        self, claim: Claim, command: Command, claims: _Claims, wait_seconds: float | None, verdict: Verdict | None
    ) -> AsyncPermit | Refusal:
        """Make a claim whose reply has to be awaited, or go on from the ``verdict`` that is already known."""
        core = self.core
        attempt = self._claim_atomic if claim.terms.effects is _ATOMIC else self._claim
        core.entering.add(claim.nonce)
        try:
            if core.draining:  # a drain that began before this claim was entered did not see it
                if type(verdict) is Proceed:
                    self._upkeep.abandon(claim)
                core.check_open()
            if verdict is not None:
                verdict = await self._claim(claim, command, claims, verdict)
            elif command.refusal is not None:
                refused = look_before_refusing(self.store, claim, command.under, command.refusal)
                verdict = await self._performer.drive(refused)
            if verdict is None:
                verdict = await attempt(claim, command, claims)
            if type(verdict) is not Proceed:
                if type(verdict) is InProgress and not isinstance(command.refusal, RequestTooLarge):
                    verdict = await self._wait(attempt, claim, command, verdict, wait_seconds)
                if type(verdict) in WITHHELD:
                    verdict = await give_async(core, command, verdict)
            met = core.take_verdict(command, claim, verdict)
        finally:
            core.entering.discard(claim.nonce)
        if type(met) is Permit:
            if met.asked.policy.steps:
                met.steps = self._performer.steps_of(met)
            self._upkeep.watch(met)
        return met  # type: ignore[return-value]  # an AsyncPermit is one for type checkers only

    async def _wait(
        self, attempt: _Attempt, claim: Claim, command: Command, running: InProgress, wait_seconds: float | None
    ) -> Verdict:
        core = self.core
        seconds = command.policy.wait_seconds if wait_seconds is None else wait_seconds

        async def once_more() -> Verdict:
            core.check_open()  # waiters are granted nothing more, either
            return await attempt(again, command, self._claims)

        again = claim_of_waiter(self.store, claim)
        with core.waiter(claim, seconds) as may_wait:
            if may_wait:
                flow = await_verdict(claim, running, seconds)
                return core.finish_waiting(claim, await self._performer.drive(flow, once_more))
        return running

    async def _claim(self, claim: Claim, command: Command, claims: _Claims, verdict: Verdict | None = None) -> Verdict:
        """Make one attempt. Parameters: ``verdict`` if it is already known."""
        try:
            if verdict is not None:
                return await self._in_other_terms(claim, command, verdict)
            if claim.kept is None:
                verdict = await self._performer.store_one("claim", claims, claim)
            else:
                verdict = await self._performer.drive(claim_kept(self.store, claim, command.under))
            if claim.kept is None and type(verdict) in IN_OTHER_TERMS:
                verdict = await self._in_other_terms(claim, command, verdict)
            if claim.request is None:
                return verdict
            return await self._performer.drive(keep_request(self.store, claim, verdict))
        except StoreReadOnly as refusal:
            return await self._performer.drive(look_instead(self.store, claim, command.under, refusal))
        except (StoreTimeout, asyncio.CancelledError):
            # The claim may be written, now or later: without an owner it would end as UNKNOWN.
            self._upkeep.abandon(claim)
            raise

    async def _in_other_terms(self, claim: Claim, command: Command, verdict: Verdict) -> Verdict:
        if type(verdict) in IN_OTHER_TERMS:
            return await self._performer.drive(claim_recast(self.store, claim, verdict, command.under))
        return verdict

    async def _claim_atomic(self, claim: Claim, command: Command, claims: _Claims) -> Verdict:
        core, under = self.core, command.under
        running = core.meet_running(claim, under)
        if running is not None:
            met, is_sure = running
            return met if is_sure else await self._performer.drive(read_settled(self.store, claim, under, met))
        opened: list[AsyncUnit] = []

        async def begin() -> AsyncUnit:
            opened.append(await self.backend.begin_async())
            return opened[0]

        try:
            verdict, unit = await self._performer.drive(claim_unit(self.store, claim, under, Begin(begin)))
            return core.unit_claimed(claim, verdict, unit)
        except asyncio.CancelledError:
            for open_unit in opened:  # a reference to the cancelled task would keep its locks
                _ = self._upkeep.spawn(self._performer.drive(ask(Rollback(open_unit))))
            raise
        finally:
            core.leave_ungranted(claim)

    async def settle(self, permit: Permit, outcome: Outcome) -> Settling:
        """Settle the command. The settlement is written even if the caller is cancelled meanwhile.

        Returns Settled, AlreadyMine or Superseded (then :meth:`reread` tells what holds instead).

        Raises StoreError: not confirmed; the engine retries in the background until the lease is over.
        """
        if permit.inherited:  # this process was forked while the handler ran
            return Superseded(State.PROCESSING)
        core = self.core
        granted_at_once = permit.given is None
        if (
            granted_at_once
            and type(outcome) is Succeeded
            and is_whole(outcome.answer)
            and core.succeed_at_once(permit, outcome.answer)
        ):
            return Settled()
        if granted_at_once or permit.unit is not None or core.observing or not permit.asked.is_plain:
            if permit.steps is not None:
                return await asyncio.shield(self._upkeep.spawn(self._settle_in_full(permit, outcome)))
            return await self._settle_in_full(permit, outcome)
        try:
            settlement = core.make_settlement(permit, outcome)
            try:
                reply: Settling = await self._performer.ask_one("settle", self.store.settle, settlement)
            except NotReplicated:  # do not retry: it would match our own write, and prove nothing about the standby
                raise
            except StoreError:
                reply = await self._upkeep.confirm(settlement, permit, self.confirm_seconds)
            except asyncio.CancelledError:  # no caller is left to wait for the confirmation
                _ = self._upkeep.repeat(settlement, permit, self.confirm_seconds)
                raise
        finally:
            core.conclude(permit)
        self._performer.note_settled(settlement, reply)
        if permit.emission is not None or type(outcome) is not Succeeded:
            core.tell_settled(permit, outcome, reply)
        return reply

    async def _settle_in_full(self, permit: Permit, outcome: Outcome) -> Settling:
        core = self.core
        try:
            if permit.steps is not None:
                await permit.steps.close(outcome)
            settlement = core.make_settlement(permit, outcome)
            try:
                if permit.unit is not None:
                    reply = await self._settle_unit(permit, outcome, settlement)
                elif permit.given is None:
                    reply = self._performer.settle_at_once(settlement)  # type: ignore[misc]  # as it was granted
                else:
                    [reply] = await self._performer.drive(ask(settling(self.store, settlement)))
            except NotReplicated:  # as above
                raise
            except StoreError:
                if permit.unit is not None:
                    raise
                reply = await self._upkeep.confirm(settlement, permit, self.confirm_seconds)
            except asyncio.CancelledError:
                if permit.unit is None:
                    _ = self._upkeep.repeat(settlement, permit, self.confirm_seconds)
                raise
        finally:
            core.conclude(permit)
        if permit.given is not None:
            self._performer.note_settled(settlement, reply)
        core.tell_settled(permit, outcome, reply)
        return reply

    async def _settle_unit(self, permit: Permit, outcome: Outcome, settlement: Settlement) -> Settling:
        flow = settle_unit(self.store, permit.unit, permit.claim, permit.grant, outcome, settlement, permit.asked.under)
        reply: Settling = await asyncio.shield(self._upkeep.spawn(self._performer.drive(flow)))
        return reply

    async def reread(self, permit: Permit) -> Verdict:
        """Read the record's current verdict, to answer a refused settlement."""
        command = permit.asked
        verdict = await self._performer.drive(reread(self.store, permit.claim, permit.grant, command.under))
        return await give_async(self.core, command, verdict)

    async def mark_not_kept(self, permit: Permit) -> bool:
        """Note that the answer will not be kept, before its first byte leaves. False: the permit is superseded."""
        if permit.inherited:
            return False
        permit.kept = False
        return (await self.perform("mark_not_kept", lambda: self.store.mark_not_kept((permit.holder,))))[0]

    async def settle_by(
        self,
        operation_id: str,
        outcome: Reported,
        proof: str,
        *,
        actor: str = "report",
        steps: Mapping[str, bool] | None = None,
    ) -> State:
        """As :meth:`Engine.settle_by <semel.engine.sync_engine.Engine.settle_by>`."""
        return await self._performer.drive(
            settle_reported(self.store, operation_id, outcome, proof, actor, self.core.cover, steps)
        )

    def atomic(self, connection: Any, command: Command) -> AsyncAtomic:
        """Join the user's own transaction: see :class:`~semel.atomic.run.AsyncAtomic`."""
        return AsyncAtomic(self.core, self.backend, self._performer, connection, command)

    async def run(
        self,
        command: Command,
        handler: Callable[[AsyncPermit], Awaitable[Answer | Refused]],
        *,
        wait_seconds: float | None = None,
    ) -> Result:
        """Run the handler once for this command; a duplicate gets the first answer.

        A handler returns an Answer, or ``Refused(answer)`` where no status says that it is a definite refusal.

        A cancelled caller changes nothing: the handler finishes and its outcome is stored. An ATOMIC handler whose
        transaction met a deadlock or a serialization failure is run again, up to four times.

        Raises the handler's own exception, a CommandError for every verdict but Proceed and Replay, and
        StoreError where the store cannot say that this process owns the command.
        """
        runs = UnitRuns(self.backend)
        while True:
            permit = await self.claim(command, wait_seconds=wait_seconds)
            if not isinstance(permit, Permit):
                return stored_result(permit)
            try:
                ended: Result = await asyncio.shield(self._upkeep.spawn(self._finish(permit, handler)))
                return ended
            except Exception as error:
                if not runs.again(permit.unit, error):
                    raise

    async def _finish(
        self, permit: AsyncPermit, handler: Callable[[AsyncPermit], Awaitable[Answer | Refused]]
    ) -> Result:
        policy = permit.asked.policy
        task = asyncio.current_task()
        assert task is not None
        permit.when_lost(task.cancel)
        try:
            async with asyncio.timeout(policy.deadline_seconds if permit.unit is not None else None):
                with in_own_transaction(self.backend, permit.asked.scope.operation, permit.unit):
                    returned = await handler(permit)
                answer = answer_from(returned)
                if permit.inherited:
                    raise HandlerError(FORKED)
        except BaseException as error:
            reply = await self.settle(permit, classify_exception(error, policy, begun=permit.begun))
            if permit.lost and isinstance(error, asyncio.CancelledError) and isinstance(reply, Superseded):
                # Semel cancelled the handler, because another attempt holds the record; the caller was not cancelled.
                return superseded_result(await self.reread(permit))
            raise
        reply = await self.settle(permit, outcome_from(returned, policy, begun=permit.begun))
        return own_result(permit, answer, await self.reread(permit) if isinstance(reply, Superseded) else None)
