"""The shared part of both engines: make claims, keep the live permits, report to the observer.

No IO happens here and nothing waits; the shells in ``async_engine`` and ``sync_engine`` perform.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypedDict

from semel.core.command_flow import Under, make_settlement, recast
from semel.core.contract import Identity, Observed, another_store
from semel.core.flow import Flow, ask
from semel.core.identity import key_hash, record_id, secret_check, uuid7_bytes, uuid_text
from semel.core.model import (
    Allowance,
    Answer,
    Claim,
    Effects,
    Grant,
    InProgress,
    Kept,
    KeyReused,
    OutcomeUnknown,
    Proceed,
    Resolution,
    Settlement,
    State,
    Unreadable,
    Verdict,
)
from semel.core.outcomes import Outcome
from semel.core.requests import AnyUnit, Elapsed, Pause, PauseToLook
from semel.core.timing import RENEWALS_PER_LEASE, check_seconds
from semel.engine.permit import Permit
from semel.engine.requirements import NO_STEPS, Needs
from semel.engine.result import Refusal
from semel.errors import ConfigurationError, IdentityMismatch, PolicyError, SchemaError, StoreError, StoreUnavailable
from semel.keys import weakness
from semel.operations.references import make_kept
from semel.policy import Command
from semel.quota import Quota, allowance_of, check_quota
from semel.sealing.rules import Seals as Seals
from semel.sealing.rules import check_sealer, cover, cover_resolution, seal_request, validate_sealer
from semel.stores.backend import Backend, quote_url
from semel.stores.process import begin_in_children
from semel.telemetry import Observer
from semel.telemetry.command_events import CommandEvents

SCHEMA_VERSION_MAX: Final = 3
ID_SECRET_BYTES_MIN: Final = 16
CONFIRM_SECONDS_MAX: Final = 600.0
DRAIN_LOOK_SECONDS: Final = 0.02
NOTED_MAX: Final = 1000
_LOG: Final = logging.getLogger("semel")
_NONCE, _AFTER_NONCE = slice(16), slice(16, None)
_new: Final[Any] = tuple.__new__  # every command pays for a claim
FOLLOW_SECONDS: Final = 1.0  # after which a waiter checks that another one of its process still polls


class EngineOptions(TypedDict, total=False):
    """The keyword arguments of ``connect`` and of an engine, beside its store."""

    observer: Observer | None
    id_secret: bytes | None
    waiters_max: int
    waiters_per_caller_max: int
    confirm_seconds: float
    sealer: Seals | None
    require_durable: bool
    quota: Quota | None


class Core(CommandEvents):
    """State and arithmetic of one engine in one process."""

    def __init__(
        self,
        observer: Observer | None,
        id_secret: bytes | None,
        waiters_max: int,
        waiters_per_caller_max: int,
        sealer: Seals | None = None,
        confirm_seconds: float = 5.0,
        quota: Quota | None = None,
    ) -> None:
        self.quota: Quota | None = check_quota(quota)
        check_seconds("confirm_seconds", confirm_seconds, least=0, most=CONFIRM_SECONDS_MAX)
        for name, count in (("waiters_max", waiters_max), ("waiters_per_caller_max", waiters_per_caller_max)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise PolicyError(f"{name} must be a whole number of at least 0; it is {count!r}")
        if id_secret is not None and len(id_secret) < ID_SECRET_BYTES_MIN:
            raise PolicyError(f"id_secret must have at least {ID_SECRET_BYTES_MIN} bytes; it has {len(id_secret)}")
        super().__init__(observer)
        self.id_secret = id_secret
        self.sealer = validate_sealer(sealer)
        self.draining = False
        self.needs = Needs(self.sealer)
        self._noted: set[tuple[str, str]] = set()  # the unreplayable answers that the log names already
        self.emits = False  # whether the store keeps events
        self.checked = False  # whether the store's identity was checked: at the opening, or before the first claim
        self._opened: Identity | None = None  # the identity that it had at the first check
        self.waiters_max = waiters_max
        self.waiters_per_caller_max = waiters_per_caller_max
        self.waiters_limit: Callable[[], int] | None = None  # set by a server whose threads the waiters occupy
        self.succeed_in_store: Callable[[Claim, int, Answer], bool] | None = None  # set if the store replies at once
        self.is_plain = False  # whether a claim involves only the store here: no observer, quota or limit
        self.begin_process()
        begin_in_children(self)

    def learn_backend(self, backend: Backend, *, require_durable: bool) -> None:
        """Record the store's capabilities. Raises ConfigurationError if a quota needs keys counted, and it cannot."""
        self.needs.require_durable = require_durable
        self.emits = backend.store.capabilities.holds_features
        self.needs.counts_not = None if backend.store.capabilities.counts_new_keys else backend.name
        if self.quota is not None:
            self.needs.check_counts("this engine")
        self._weigh()

    def _weigh(self) -> None:
        self.is_plain = not (self.observing or self.draining or self.needs.refuse or self.quota)

    def begin_process(self) -> None:
        """Start with nothing live: at construction, and in a forked child."""
        for permit in list(getattr(self, "live", {}).values()):
            permit.inherited = permit.lost = True
        self.pid = os.getpid()
        self.holder = f"{socket.gethostname()[:40]}:{self.pid}"
        self.live: dict[bytes, Permit] = {}  # by nonce
        self.running: dict[bytes, Claim] = {}  # ATOMIC commands of this process, by record id
        self.units: dict[bytes, AnyUnit] = {}  # their open transactions, by nonce
        self.entering: set[bytes] = set()  # nonces of claims under way, which a drain waits for
        self._lock = threading.Lock()
        self.waiting = 0
        self.waiting_by_caller: dict[tuple[str, str], int] = {}
        self._random = random.SystemRandom()
        self.wakers: dict[bytes, list[Callable[[bool], object]]] = {}  # by record id
        # By record id: the nonce of the waiter that polls for all of them, and the time when it counts as gone.
        self.lookers: dict[bytes, tuple[bytes, float]] = {}

    # --- claims -----------------------------------------------------------------------------

    def may_look(self, command: Command) -> bool:
        """Return whether a look for a kept answer may come before the claim: no observer, drain or refusal matters."""
        return not (self.observing or self.draining or self.needs.refuse or command.refusal or command.resumed)

    def attempt(self, command: Command, id: bytes | None = None) -> Claim:
        """Make the claim of one attempt, with a new nonce. Parameters: ``id`` of its record, where it is known."""
        if id is None:
            id = record_id(command.scope, command.key, self.id_secret)
        claim = self.plain_attempt(command, id)
        if self.is_plain and command.is_plain:
            return claim
        kept, request, quota = self._more(command, id)
        claim = claim._replace(kept=kept, request=request, quota=quota)
        return claim if command.resumed is None else claim._replace(**command.resumed._asdict())

    def plain_attempt(self, command: Command, id: bytes) -> Claim:
        """Make the claim of a command that has nothing besides its key, without an observer or a limit."""
        bits = os.urandom(26)  # for each attempt: two copies of a machine would share bytes drawn ahead
        return _new(  # type: ignore[no-any-return]
            Claim,
            (
                id,
                bits[_NONCE],
                command.scope,
                key_hash(command.key, self.id_secret),
                command.recipe,
                command.fingerprint,
                uuid7_bytes(time.time_ns() // 1_000_000, bits[_AFTER_NONCE]),
                self.holder,
                command.policy.terms,
                None,
                None,
                None,
            ),
        )

    def _more(self, command: Command, id: bytes) -> tuple[Kept | None, bytes | None, Allowance | None]:
        """The parts of a claim besides its key: the row that outlives the key, the kept request, the caller's quota.

        Raises StoreUnavailable if nothing more is granted here, and ConfigurationError if the store, or this
        engine, cannot do what the operation declares.
        """
        self.check_open()
        policy, scope = command.policy, command.scope
        if policy.steps and not self.emits:
            raise ConfigurationError(NO_STEPS.format(operation=repr(scope.operation)))
        if policy.covers:
            check_sealer(scope.operation, policy, self.sealer)
        if self.needs.refuse:
            self.needs.check(scope.operation, policy)
        if self.observing:
            weak = weakness(command.key)
            if weak is not None:
                self.tell("weak_keys", scope.operation, weakness=weak)
        if policy.quota is not None or self.quota is not None:
            self.needs.check_counts(repr(scope.operation))
        return (
            make_kept(command, self.id_secret),
            None if command.request is None else seal_request(command.request, id, self.sealer),
            allowance_of(policy, self.quota, scope, self.id_secret),
        )

    def check_open(self) -> None:
        """Raise StoreUnavailable if nothing more may be granted here."""
        if self.draining:
            raise StoreUnavailable("this process is shutting down; retry with the same key")

    def take_verdict(self, command: Command, claim: Claim, verdict: Verdict) -> Permit | Refusal:
        """Return the live permit of a grant, or the verdict that refuses the attempt."""
        if self.observing or type(verdict) is OutcomeUnknown:
            self.tell_verdict(claim, verdict)
        if type(verdict) is not Proceed:
            return verdict  # type: ignore[return-value]  # every other verdict is a Refusal
        return self.permit(command, claim, verdict.grant)

    def permit(self, command: Command, claim: Claim, grant: Grant) -> Permit:
        """The live permit of a grant."""
        permit = self.live[grant.nonce] = Permit(command, claim, grant.fence, time.monotonic())
        permit.given = grant
        if self.units:
            permit.unit = self.units.pop(claim.nonce, None)
        if self.emits:
            permit.may_emit = True
        return permit

    def note_unanswered(self, operation: str, reason: str, text: str) -> None:
        """Log why a stored answer cannot be replayed: once for each operation and reason."""
        if len(self._noted) < NOTED_MAX and (operation, reason) not in self._noted:
            self._noted.add((operation, reason))
            _LOG.error("%s: %s (%s)", operation, text, reason)

    def cover(self, operation: str, resolution: Resolution) -> Resolution:
        """Return an operator's or reconciler's settlement, with its answer stored as the operation declares it here."""
        return cover_resolution(resolution, self.needs.policies.get(operation), self.sealer)

    def conclude(self, permit: Permit) -> None:
        """End the permit: no more renewals; waiters in this process look again."""
        claim = permit.claim
        self.live.pop(claim.nonce, None)
        if permit.unit is not None:
            mine = self.running.get(claim.id)
            if mine is not None and mine.nonce == claim.nonce:  # a joined command has no entry there
                del self.running[claim.id]
        if self.wakers:
            self.wake(claim.id)

    def succeed_at_once(self, permit: Permit, answer: Answer) -> bool:
        """Settle a command that succeeded, if the store replies at once and there is nothing else to record.

        Parameters: ``answer`` with immutable parts. False: nothing is settled; only the engine's ``settle`` can.
        """
        if permit.given is not None or permit.resource_type is not None or not permit.kept:
            return False
        claim = permit.claim
        try:
            if not self.succeed_in_store(claim, permit.fence, answer):  # type: ignore[misc]  # it granted at once
                return False
        except StoreError:
            return False
        self.live.pop(claim.nonce, None)
        if self.wakers:
            self.wake(claim.id)
        return True

    def make_settlement(self, permit: Permit, outcome: Outcome) -> Settlement:
        """Return the settlement that ends this permit's command."""
        permit.settling = True
        emission = permit.emission
        if emission is None and permit.asked.is_plain and permit.resource_type is None and permit.kept:
            return make_settlement(permit.given or permit.holder, outcome)  # nearly every command records nothing else
        if permit.steps is not None:
            outcome = permit.outcome(outcome)
        resource = (permit.resource_type, permit.resource_id)
        settlement = make_settlement(permit.holder, outcome, kept=permit.kept, resource=resource)
        policy = permit.asked.policy
        if policy.covers:
            settlement = cover(settlement, policy, self.sealer)
        if emission is not None:
            settlement = emission.with_events(settlement)
        kept = permit.claim.kept
        return settlement if kept is None else settlement._replace(business_ref=kept.business_ref, keeps=True)

    # --- ATOMIC commands of this process, still invisible in the store ------------------------

    def meet_running(self, claim: Claim, under: Under | None = None) -> tuple[Verdict, bool] | None:
        """Enter an ATOMIC command; return the verdict if another one with the same key runs in this process.

        Also whether that is certain: an attempt that is not granted yet may itself be refused or replayed, and only the
        store knows whose key it is. None: there is no other; call ``leave_ungranted`` afterwards.
        """
        other = self.running.setdefault(claim.id, claim)
        if other is claim:
            return None
        if other.nonce in self.units or other.nonce in self.live:
            return _await_verdict(other, claim, under), True
        return InProgress(other.operation_id, other.terms.lease_us), False

    def leave_ungranted(self, claim: Claim) -> None:
        """Remove the entry of an ATOMIC command whose claim has ended without a grant."""
        if claim.nonce not in self.units:
            del self.running[claim.id]

    def unit_claimed(self, claim: Claim, verdict: Verdict, unit: AnyUnit | None) -> Verdict:
        """Keep the open transaction of a granted ATOMIC command for its permit."""
        if unit is not None:
            self.units[claim.nonce] = unit
        return verdict

    # --- waiting ----------------------------------------------------------------------------

    @contextmanager
    def waiter(self, claim: Claim, seconds: float) -> Iterator[bool]:
        """Take a waiter's place; yield whether this process and this caller had one left."""
        caller = (claim.scope.tenant, claim.scope.caller)
        with self._lock:
            mine = self.waiting_by_caller.get(caller, 0)
            most = self.waiters_max if self.waiters_limit is None else min(self.waiters_max, self.waiters_limit())
            may = seconds > 0 and self.waiting < most and mine < self.waiters_per_caller_max
            if may:
                self.waiting += 1
                self.waiting_by_caller[caller] = mine + 1
        started = time.monotonic()
        try:
            yield may
        finally:
            if may:
                with self._lock:
                    self.waiting -= 1
                    self.waiting_by_caller[caller] -= 1
                    if not self.waiting_by_caller[caller]:
                        del self.waiting_by_caller[caller]
                self._stop_looking(claim)
                self.tell("wait_seconds", claim.scope.operation, time.monotonic() - started)

    def finish_waiting(self, claim: Claim, verdict: Verdict) -> Verdict:
        """End a wait with its verdict; if that is an outcome, wake the other waiters, who look at once."""
        if not isinstance(verdict, InProgress | Proceed):
            self.wake(claim.id)
        return verdict

    def wake(self, id: bytes) -> None:
        """Make all waiters for this record in this process look at it."""
        for wake in self.wakers.pop(id, ()):
            wake(True)

    def looks(self, needed: PauseToLook) -> bool:
        """Return whether this waiter is the one in its process that polls the record."""
        return self.lookers.get(needed.id, (None,))[0] == needed.waiter

    def _stop_looking(self, claim: Claim) -> None:
        """If this waiter polls the record, stop, and leave polling to the first other waiter."""
        with self._lock:
            if self.lookers.get(claim.id, (None,))[0] != claim.nonce:
                return
            del self.lookers[claim.id]
            following = tuple(self.wakers.get(claim.id, ()))
        for wake in following:
            wake(False)

    @contextmanager
    def waking(self, needed: PauseToLook, wake: Callable[[bool], object]) -> Iterator[float]:
        """Arrange for ``wake`` calls: True when a record's waiters should look, False when its poller has gone.

        Yields how many seconds to wait: until the next look if this waiter polls, else until it is time to check that
        another one still does. A poller that is late is replaced: its event loop may be gone.
        """
        id, now = needed.id, time.monotonic()
        with self._lock:
            self.wakers.setdefault(id, []).append(wake)
            looker, until = self.lookers.get(id, (needed.waiter, now))
            looks = looker == needed.waiter or until < now
            if looks:
                self.lookers[id] = (needed.waiter, now + needed.seconds + FOLLOW_SECONDS)
        try:
            yield needed.seconds if looks else min(needed.most, FOLLOW_SECONDS)
        finally:
            with self._lock:
                wakers = self.wakers.get(id)
                if wakers is not None and wake in wakers:
                    wakers.remove(wake)
                    if not wakers:
                        del self.wakers[id]

    def drain(self, seconds: float) -> Flow[bool]:
        """Grant nothing more; return True if every live permit and every claim under way ends within ``seconds``."""
        self.draining = True
        self._weigh()
        ends = (yield from ask(Elapsed())) + seconds
        while (self.live or self.entering) and (yield from ask(Elapsed())) < ends:
            yield from ask(Pause(DRAIN_LOOK_SECONDS))
        return not (self.live or self.entering)

    def jitter(self) -> float:
        """A random number between 0 and 1."""
        return self._random.random()

    # --- leases -----------------------------------------------------------------------------

    def beat_seconds(self) -> float | None:
        """Return the seconds until the live permits should be checked again; None if there are none."""
        return min((self.beat_of(permit) for permit in list(self.live.values())), default=None)

    def beat_of(self, permit: Permit) -> float:
        """Return the seconds between two checks of a permit: two checks for each renewal."""
        return permit.claim.terms.lease_us / RENEWALS_PER_LEASE / 2 / 1_000_000

    def due(self) -> list[Permit]:
        """Return the permits to renew now: a third of their lease is over, their deadline is not."""
        now = time.monotonic()
        return [
            permit
            for permit in list(self.live.values())
            if permit.unit is None
            and not permit.lost
            and now < permit.deadline_monotonic
            and now - permit.renewed_monotonic >= permit.claim.terms.lease_us / RENEWALS_PER_LEASE / 1_000_000 * 0.99
        ]

    def note_renewals(self, permits: list[Permit], held: list[bool]) -> None:
        """Record the store's reply to each renewal."""
        now = time.monotonic()
        for permit, mine in zip(permits, held, strict=True):
            if mine:
                permit.renewed_monotonic = now
            elif permit.claim.nonce in self.live and not permit.lost and not permit.settling:
                self.tell("superseded", permit.asked.scope.operation)
                if permit.effects is Effects.IDEMPOTENT:
                    permit.lose()
                else:
                    permit.lost = True

    # --- start-up ---------------------------------------------------------------------------

    def first_identity(self) -> tuple[str, bytes]:
        """Make the id of a store that is migrated for the first time, and the check value of its id secret."""
        return uuid_text(uuid7_bytes(time.time_ns() // 1_000_000, os.urandom(10))), secret_check(self.id_secret)

    def check_store(self, said: tuple[Identity | None, list[Observed]], backend: Backend) -> None:
        """Refuse a store with another identity, or whose server may lose records that a declared operation needs."""
        identity, observed = said
        self.check_identity(identity, quote_url(backend.url) if backend.url else "")
        self.needs.learn_kind(backend.name, backend.store.capabilities, accepts_loss=backend.accepts_loss)
        self.needs.learn(observed, accepts_loss=backend.accepts_loss)
        self._weigh()
        self.checked = True

    def check_identity(self, identity: Identity | None, url: str = "") -> None:
        """Refuse a store that is not migrated, newer than this Semel, or made under another id secret."""
        if identity is None:
            raise SchemaError(f"the store has no Semel tables; run: semel migrate{' --url ' + url if url else ''}")
        if not isinstance(identity.schema_version, int):  # SQLite keeps a value of any type
            raise SchemaError(
                f"the store's schema has no version but {identity.schema_version!r}: the table semel_meta is damaged; "
                "restore it from a backup"
            )
        if identity.schema_version > SCHEMA_VERSION_MAX:
            raise SchemaError(
                f"the store's schema is version {identity.schema_version}, this Semel knows {SCHEMA_VERSION_MAX}; "
                "upgrade Semel"
            )
        if identity.secret_check != secret_check(self.id_secret):
            raise IdentityMismatch(
                "the id secret is not the one this store was made with: every key would be forgotten; "
                "restore the former secret (it never rotates)"
            )
        if self._opened is not None and self._opened.store_id != identity.store_id and identity.epoch == 1:
            raise another_store(self._opened.store_id)
        self._opened = identity


def _await_verdict(other: Claim, claim: Claim, under: Under | None) -> Verdict:
    met: Verdict
    if other.recipe != claim.recipe:
        met = Unreadable(other.operation_id, "recipe", other.recipe)
    elif other.fingerprint != claim.fingerprint:
        met = KeyReused(other.operation_id, State.PROCESSING)
    else:
        return InProgress(other.operation_id, other.terms.lease_us)
    again = recast(claim, met, under)
    return met if again is None else _await_verdict(other, again, under)
