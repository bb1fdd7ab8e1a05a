"""The sync engine: a thin shell that performs the flows of ``core`` in ordinary threads.

Handlers run in the calling thread, Semel's own work in threads that no exception from outside reaches (``shield``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import get_ident
from typing import Any, Self, TypeVar, Unpack

from semel.atomic.flow import claim_of_waiter, read_settled
from semel.atomic.own_transaction import in_own_transaction
from semel.atomic.run import Atomic
from semel.core.command_flow import await_verdict, look_before_refusing, look_instead, reread, settle_until_confirmed
from semel.core.flow import MakeFlow, ask
from semel.core.model import Answer, Claim, Effects, InProgress, Settlement, Settling, State, Superseded, Verdict
from semel.core.outcomes import Outcome, Refused, classify_exception
from semel.core.requests import Begin, Rollback, Unit
from semel.engine.opening import introduction, open_or_close
from semel.engine.permit import Permit
from semel.engine.renewal import SyncUpkeep
from semel.engine.result import Refusal, Result, answer_from, outcome_from, own_result, stored_result
from semel.engine.runner import SyncPerformer
from semel.engine.state import Core, EngineOptions, Seals
from semel.errors import HandlerError, NotReplicated, SemelError, StoreError, StoreReadOnly, StoreTimeout
from semel.operations.flow import claim_one, claim_unit, settle_unit
from semel.operations.tracking import settling
from semel.policy import Command
from semel.quota import Quota
from semel.reconciliation.reported import Reported, settle_reported
from semel.sealing.rebuild import WITHHELD, give
from semel.stores.backend import Backend, UnitRuns
from semel.stores.process import FORKED
from semel.stores.shield import Hold, run_shielded
from semel.stores.urls import connect_backend
from semel.telemetry import Observer

T = TypeVar("T")


class Engine:
    """Makes commands happen once, from ordinary threads. Thread-safe.

    Parameters: as :class:`~semel.engine.async_engine.AsyncEngine`.

    >>> from hashlib import sha256
    >>> from semel import Answer, Command, Engine, Policy, Scope
    >>> with Engine.connect("memory://") as engine:
    ...     command = Command(
    ...         scope=Scope(tenant="acme", caller="alice", operation="greet"),
    ...         key="key-1",
    ...         fingerprint=sha256(b"all that is wanted").digest(),
    ...         recipe="demo",
    ...         policy=Policy(),
    ...     )
    ...     first = engine.run(command, lambda permit: Answer(200, (), b"hello"))
    ...     again = engine.run(command, lambda permit: Answer(200, (), b"hello"))
    >>> first.replayed, again.replayed, again.answer.body
    (False, True, b'hello')
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
        self.confirm_seconds = confirm_seconds
        self._performer = SyncPerformer(self.core, backend)
        self._upkeep = SyncUpkeep(self.core, backend.store, self._performer)

    @classmethod
    def connect(cls, url: str, **options: Unpack[EngineOptions]) -> Self:
        """Make an engine for a store URL, such as ``sqlite:///semel.db`` or ``memory://``; nothing is opened yet.

        Raises UrlError, naming what is wrong with the URL.
        """
        return cls(connect_backend(url), **options)

    def open(self) -> None:
        """Check that the store is migrated, has the recorded identity, and supports the declared operations.

        A memory store is made on the spot. Raises ConfigurationError, SchemaError, IdentityMismatch, StoreUnavailable.
        """
        self._performer.drive(introduction(self.core, self.backend))

    def migrate(self) -> list[str]:
        """Bring the store's schema up to date; return the names of the migrations that ran."""
        return self.perform("migrate", lambda: self.store.migrate(*self.core.first_identity()))

    def close(self) -> None:
        """Wait for live handlers, settlements and releases, then close the store."""
        self._upkeep.close()
        run_shielded(self.backend.driver.close)

    def __enter__(self) -> Self:
        return open_or_close(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    def drain(self, seconds: float) -> bool:
        """Grant nothing more and let live handlers end; return True if all did within ``seconds``."""
        return self._performer.drive(self.core.drain(seconds))

    def perform(self, verb: str, make: MakeFlow[T]) -> T:
        """Run one flow of the store, such as ``engine.perform("find", lambda: engine.store.find(query))``."""
        return self._performer.store_call(verb, make)

    def claim(self, command: Command, *, wait_seconds: float | None = None) -> Permit | Refusal:
        """Reserve the command's key: a :class:`Permit`, or the verdict that prevents it.

        Parameters: ``wait_seconds`` how long to wait for a running duplicate (the policy's by default).

        Raises StoreUnavailable or StoreTimeout: the handler must not run. Raises the command's ``refusal``, if it has
        one and nothing is on record under its key.
        """
        hold = self._hold()
        try:
            met = self._claim_into(hold, command, wait_seconds)
            hold.end()
        except BaseException as error:
            hold.let_go(error)
            raise
        return met

    def _hold(self) -> Hold[Permit]:
        """Return a hold for a claim's permit, which ends the claim if its caller is interrupted."""
        return Hold(self._drop)

    def _claim_into(self, hold: Hold[Permit], command: Command, wait_seconds: float | None) -> Permit | Refusal:
        """As :meth:`claim`, into the caller's hold, which ends the permit if the caller is interrupted."""
        return run_shielded(lambda: self._grant(hold, command, wait_seconds))

    def _grant(self, hold: Hold[Permit], command: Command, wait_seconds: float | None) -> Permit | Refusal:
        core = self.core
        if not core.checked:
            self._performer.first_look.take()
        claim = core.attempt(command)
        core.entering.add(claim.nonce)
        try:
            core.check_open()  # check again: a drain that began meanwhile did not see this claim
            verdict = self._verdict(claim, command, wait_seconds)
            if type(verdict) in WITHHELD:
                verdict = give(core, command, verdict)
            met = core.take_verdict(command, claim, verdict)
        finally:
            core.entering.discard(claim.nonce)
        if isinstance(met, Permit):
            if met.asked.policy.steps:
                met.steps = self._performer.steps_of(met)
            hold.give(met)  # first, since the hold drops it if no thread can renew it
            self._upkeep.watch()
        return met

    def _drop(self, permit: Permit, error: BaseException | None) -> None:
        """End a permit whose caller was interrupted: as never run, or with its handler's outcome."""
        if permit.settling or permit.grant.nonce not in self.core.live:
            return  # the permit has already ended
        if permit.handler_thread is not None:
            error = error if error is not None else InterruptedError("the caller was interrupted")
            outcome = permit.requested_outcome or classify_exception(error, permit.command.policy, begun=permit.begun)
            with suppress(SemelError):
                self.settle(permit, outcome)
            return
        self.core.conclude(permit)
        if permit.unit is not None:
            self._performer.drive(ask(Rollback(permit.unit)))
        else:
            self._upkeep.abandon(permit.claim)

    def _verdict(self, claim: Claim, command: Command, wait_seconds: float | None) -> Verdict:
        core = self.core
        attempt = self._claim_atomic if claim.terms.effects is Effects.ATOMIC else self._claim
        if command.refusal is not None:
            seen = self._performer.drive(look_before_refusing(self.store, claim, command.under, command.refusal))
            if seen is not None:
                return seen
        verdict = attempt(claim, command)
        if type(verdict) is not InProgress:
            return verdict
        seconds = command.policy.wait_seconds if wait_seconds is None else wait_seconds

        def once_more() -> Verdict:
            core.check_open()  # waiters are granted nothing more, either
            return attempt(again, command)

        again = claim_of_waiter(self.store, claim)
        with core.waiter(claim, seconds) as may_wait:
            if may_wait:
                flow = await_verdict(claim, verdict, seconds)
                verdict = core.finish_waiting(claim, self._performer.drive(flow, once_more))
        return verdict

    def _claim(self, claim: Claim, command: Command) -> Verdict:
        try:
            return self._performer.drive(claim_one(self.store, claim, command.under))
        except StoreReadOnly as refusal:
            return self._performer.drive(look_instead(self.store, claim, command.under, refusal))
        except Exception as error:
            # The claim may be written, now or later: without an owner it would end as UNKNOWN.
            if isinstance(error, StoreTimeout) or not isinstance(error, SemelError):
                self._upkeep.abandon(claim)
            raise

    def _claim_atomic(self, claim: Claim, command: Command) -> Verdict:
        core, under = self.core, command.under
        running = core.meet_running(claim, under)
        if running is not None:
            met, is_sure = running
            return met if is_sure else self._performer.drive(read_settled(self.store, claim, under, met))
        opened: list[Unit] = []

        def begin() -> Unit:
            opened.append(self.backend.begin())
            return opened[0]

        try:
            verdict, unit = self._performer.drive(claim_unit(self.store, claim, under, Begin(begin)))
            return core.unit_claimed(claim, verdict, unit)
        except SemelError:
            raise
        except BaseException:  # a library's error, which the flow does not get
            for open_unit in opened:
                self._performer.drive(ask(Rollback(open_unit)))
            raise
        finally:
            core.leave_ungranted(claim)

    def settle(self, permit: Permit, outcome: Outcome) -> Settling:
        """Settle the command. The settlement is repeated while the store fails.

        Returns Settled, AlreadyMine or Superseded (then :meth:`reread` tells what holds instead; so in a process that
        was forked while the handler ran, which settles nothing).

        Raises StoreTimeout: not confirmed within ``confirm_seconds``: the outcome is not known yet; it is retried in
        the background until the lease is over.
        """
        if permit.inherited:
            return Superseded(State.PROCESSING)
        permit.requested_outcome = outcome
        return run_shielded(lambda: self._settle(permit, outcome))

    def _settle(self, permit: Permit, outcome: Outcome) -> Settling:
        core = self.core
        try:
            if permit.steps is not None:
                permit.steps.close(outcome)
            settlement = core.make_settlement(permit, outcome)
            if permit.unit is not None:
                under = permit.command.under
                flow = settle_unit(self.store, permit.unit, permit.claim, permit.grant, outcome, settlement, under)
                reply = self._performer.drive(flow)
            else:
                try:
                    [reply] = self._performer.drive(ask(settling(self.store, settlement)))
                except NotReplicated:  # a retry would match our own write, and prove nothing about the standby
                    raise
                except StoreError:
                    reply = self._confirm(settlement, permit)
        finally:
            core.conclude(permit)
        core.tell_settled(permit, outcome, reply)
        return reply

    def _confirm(self, settlement: Settlement, permit: Permit) -> Settling:
        try:
            return self._performer.drive(settle_until_confirmed(self.store, settlement, self.confirm_seconds))
        except StoreTimeout:
            self._upkeep.confirm(settlement, permit.claim.terms.lease_us / 1_000_000)  # even if the caller waits longer
            raise

    def reread(self, permit: Permit) -> Verdict:
        """Read the record's current verdict, to answer a refused settlement."""
        command = permit.command
        verdict = self._performer.drive(reread(self.store, permit.claim, permit.grant, command.under))
        return give(self.core, command, verdict)

    def mark_not_kept(self, permit: Permit) -> bool:
        """Note that the answer will not be kept, before its first byte leaves. False: the permit is superseded."""
        if permit.inherited:
            return False
        permit.kept = False
        return (self.perform("mark_not_kept", lambda: self.store.mark_not_kept((permit.holder,))))[0]

    def settle_by(
        self,
        operation_id: str,
        outcome: Reported,
        proof: str,
        *,
        actor: str = "report",
        steps: Mapping[str, bool] | None = None,
    ) -> State:
        """Settle an execution whose outcome another process reports, such as a provider's webhook; return its state.

        Parameters: ``operation_id`` as ``permit.operation_id``, which the handler gave to the provider; ``outcome``
        ``SucceededWith(answer)``, ``RefusedWith(answer)``, ``DidNotHappen()`` or ``StepSucceeded(result)`` of
        :mod:`semel.workers`; ``proof`` how it is known, and ``actor`` who reports it, for the audit trail: up to 500
        characters each; ``steps`` ends an execution that rests between its steps, since its key is lost:
        of each step that had begun and not finished, whether it happened, such as ``{"mail": False}``.

        A repeated report, or one after the handler's own answer, changes nothing where it agrees.

        Raises PolicyError for an invalid report; ResolveRefused if it contradicts the settled outcome, no record has
        this id, or the handler may still be running (``retry_after_seconds``: have the report delivered again);
        RecordUnreadableError, StepError, StoreError.

        >>> from semel import Command, Policy, Scope
        >>> from semel.workers import SucceededWith
        >>> seen = []
        >>> def charge(permit: Permit) -> Answer:
        ...     seen.append(permit.operation_id)  # given to the provider as the charge's metadata
        ...     raise TimeoutError("the provider does not answer")
        >>> with Engine.connect("memory://") as engine:
        ...     command = Command(Scope("acme", "alice", "pay"), "key-1", bytes(32), "demo", Policy())
        ...     try:
        ...         _ = engine.run(command, charge)
        ...     except TimeoutError:
        ...         paid = SucceededWith(Answer(201, (), b"paid"))
        ...         print(engine.settle_by(seen[0], paid, "webhook evt_17: charge.succeeded").name)
        ...     print(engine.run(command, charge).answer.body)
        SUCCEEDED
        b'paid'
        """
        return self._performer.drive(
            settle_reported(self.store, operation_id, outcome, proof, actor, self.core.cover, steps)
        )

    def atomic(self, connection: Any, command: Command) -> Atomic:
        """Join the user's own transaction: see :class:`~semel.atomic.run.Atomic`."""
        return Atomic(self.core, self.backend, self._performer, connection, command)

    def run(
        self, command: Command, handler: Callable[[Permit], Answer | Refused], *, wait_seconds: float | None = None
    ) -> Result:
        """Run the handler once for this command; a duplicate gets the first answer.

        A handler returns an Answer, or ``Refused(answer)`` where no status says that it is a definite refusal.

        An ATOMIC handler whose transaction met a deadlock or a serialization failure is run again, up to four times.

        Raises the handler's own exception, a CommandError for every verdict but Proceed and Replay, and
        StoreError where the store cannot say that this process owns the command.
        """
        runs = UnitRuns(self.backend)
        while True:
            hold = self._hold()
            try:
                permit = self._claim_into(hold, command, wait_seconds)
                if not isinstance(permit, Permit):
                    return stored_result(permit)
                try:
                    result = self._finish(permit, handler)
                except Exception as error:
                    if not runs.again(permit.unit, error):
                        raise
                    hold.end()
                else:
                    hold.end()
                    return result
            except BaseException as error:
                hold.let_go(error)
                raise

    def _finish(self, permit: Permit, handler: Callable[[Permit], Answer | Refused]) -> Result:
        policy = permit.command.policy
        try:
            permit.handler_thread = get_ident()
            with in_own_transaction(self.backend, permit.command.scope.operation, permit.unit):
                returned = handler(permit)
            answer = answer_from(returned)
            if permit.inherited:
                raise HandlerError(FORKED)
        except BaseException as error:
            self.settle(permit, classify_exception(error, policy, begun=permit.begun))
            raise
        reply = self.settle(permit, outcome_from(returned, policy, begun=permit.begun))
        return own_result(permit, answer, self.reread(permit) if isinstance(reply, Superseded) else None)
