"""Joins to the user's own transaction: the record is written in it, and the user commits.

The block claims when it is entered and settles when it is left; the commit that follows is the user's,
and makes both final. An exception inside the block settles nothing: roll back, and the key is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from semel.atomic.flow import note_early_commit, refuse, settle_inside
from semel.core.command_flow import look_before_refusing
from semel.core.flow import Flow
from semel.core.identity import uuid_text
from semel.core.model import Answer, Claim, Effects, Proceed, Settled, Verdict
from semel.core.outcomes import Refused, Succeeded
from semel.core.requests import Begin
from semel.engine.permit import Permit
from semel.engine.result import superseded_result
from semel.engine.runner import AsyncPerformer, SyncPerformer
from semel.engine.state import Core
from semel.errors import PolicyError, SupersededError
from semel.operations.flow import claim_unit, conclude_inside
from semel.operations.tracking import Held, store_for
from semel.policy import Command
from semel.sealing.rebuild import give, give_async
from semel.stores.backend import Backend
from semel.stores.shield import run_shielded

_LOST = (
    "the record is no longer in this transaction (it was rolled back, or granted to another attempt); roll back, do "
    "not commit"
)
P = TypeVar("P", SyncPerformer, AsyncPerformer)


class _Block(Generic[P]):
    """The shared part of both forms. ``replayed`` tells whether ``answer`` is the first one, which you return again.

    Otherwise write on the joined connection, and set ``answer`` to the one to replay (it is empty if you
    never set it).
    """

    _performer: P

    def __init__(self, core: Core, backend: Backend, performer: P, connection: Any, command: Command) -> None:
        self._core = core
        self._backend = backend
        self._performer = performer
        self._connection = connection
        self._command = command
        self.permit: Permit | None = None
        self.replayed = False
        self.answer = Answer(None, (), b"")
        self.operation_id = ""
        self.verdict: Verdict | None = None  # the verdict for which the block was not entered, if any
        self._claim: Claim | None = None

    def _attempt(self) -> Claim:
        self._backend.check_atomic()
        if self._command.policy.terms.effects is not Effects.ATOMIC:
            raise PolicyError(
                "only commands with effects='atomic' join a transaction: committed early, any other would run again"
            )
        return self._core.attempt(self._command)

    def _enter(self, claim: Claim, join: Callable[[], Any]) -> Flow[Verdict]:
        store, command = self._backend.store, self._command
        if command.refusal is not None:  # today's limit does not apply to a command that was accepted before
            seen = yield from look_before_refusing(store, claim, command.under, command.refusal)
            if seen is not None:
                return seen
        verdict, unit = yield from claim_unit(store, claim, command.under, Begin(join))
        if not isinstance(verdict, Proceed):
            return verdict
        self._core.tell_verdict(claim, verdict)
        assert unit is not None
        self._claim = claim
        self._core.units[claim.nonce] = unit
        self.permit = self._core.permit(self._command, claim, verdict.grant)
        self.operation_id = uuid_text(verdict.grant.operation_id)
        return verdict

    def _meet(self, claim: Claim, verdict: Verdict) -> None:
        """Take the verdict: if the block is not granted, keep the first answer."""
        if isinstance(verdict, Proceed):
            return
        self._core.tell_verdict(claim, verdict)
        self.verdict = verdict
        result = superseded_result(verdict)
        self.replayed, self.answer, self.operation_id = True, result.answer, result.operation_id

    def _forget(self, claim: Claim) -> None:
        """Remove all traces of a block that was not entered; the user rolls back."""
        self._core.units.pop(claim.nonce, None)
        self._core.live.pop(claim.nonce, None)
        self.permit = None

    def _end(self) -> None:
        if self.permit is not None and self.permit.grant.nonce in self._core.live:
            self._core.conclude(self.permit)

    def _exit(self, *, failed: bool) -> Flow[None]:
        permit = self.permit
        if permit is None:
            return
        try:
            if failed:
                return
            store, grant = self._backend.store, permit.grant
            outcome = Succeeded(self.answer)
            settlement, kept = self._core.make_settlement(permit, outcome), store_for(store, permit.claim)
            yield from conclude_inside(store, permit.unit, permit.claim, grant, settlement)
            reply = yield from settle_inside(kept, permit.unit, grant, settlement)
            if reply is None:
                raise (yield from note_early_commit(kept, grant))
            self._core.tell_settled(permit, outcome, reply)
            if not isinstance(reply, Settled):
                raise SupersededError(_LOST)
        finally:
            self._core.conclude(permit)


class Atomic(_Block[SyncPerformer]):
    """``with engine.atomic(connection, command) as once:`` for the store's own database: a ``sqlite3`` or ``psycopg``
    connection, a SQLAlchemy ``Session`` or ``Connection``, or ``django.db.connection`` inside ``transaction.atomic()``.
    On SQLite the join comes before the transaction's first statement (Django's has begun).

    >>> import sqlite3, tempfile
    >>> from hashlib import sha256
    >>> from semel import Answer, Command, Engine, Policy, Scope
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = Engine.connect(f"sqlite:///{folder.name}/app.db")
    >>> _ = engine.migrate()
    >>> db = sqlite3.connect(f"{folder.name}/app.db")
    >>> _ = db.execute("CREATE TABLE orders (sku TEXT)")
    >>> command = Command(
    ...     scope=Scope(tenant="acme", caller="alice", operation="order"),
    ...     key="key-1",
    ...     fingerprint=sha256(b"A-1").digest(),
    ...     recipe="demo",
    ...     policy=Policy(effects="atomic"),
    ... )
    >>> for _ in range(2):
    ...     with engine.atomic(db, command) as once:
    ...         if not once.replayed:
    ...             _ = db.execute("INSERT INTO orders VALUES ('A-1')")
    ...             once.answer = Answer(201, (), b"ordered")
    ...     db.commit()
    ...     print(once.replayed, once.answer.body, db.execute("SELECT count(*) FROM orders").fetchone())
    False b'ordered' (1,)
    True b'ordered' (1,)
    >>> db.close()
    >>> engine.close()
    >>> folder.cleanup()

    Raises on entry JoinRefused, StoreUnavailable, and a CommandError for every verdict but Proceed and
    Replay; on exit EarlyCommit and SupersededError: then roll back, do not commit.
    """

    def __enter__(self) -> Atomic:
        if not self._core.checked:
            run_shielded(self._performer.first_look.take)
        claim = self._attempt()
        try:
            self._core.entering.add(claim.nonce)
            verdict = self._performer.drive_here(self._enter(claim, lambda: self._backend.join(self._connection)))
            self._meet(claim, give(self._core, self._command, verdict))
        except BaseException:
            self._forget(claim)
            raise
        finally:
            self._core.entering.discard(claim.nonce)
        return self

    def __exit__(self, kind: object, *_: object) -> Literal[False]:
        try:
            self._performer.drive_here(self._exit(failed=kind is not None))
        finally:
            self._end()
        return False

    def refuse(self, answer: Answer) -> Verdict | None:
        """After the user's rollback: store a definite refusal in a commit of its own.

        Returns the verdict that holds instead, if another attempt was quicker. Raises StoreError.
        """
        claim, store = self._claim, self._backend.store
        assert claim is not None
        assert self.permit is not None
        refusal = Refused(answer)
        settlement = self._core.make_settlement(self.permit, refusal)  # once: sealing never repeats its bytes
        try:
            met = self._performer.store_call(
                "refuse", lambda: refuse(store_for(store, claim), claim, refusal, self._command.under, settlement)
            )
        except Held as held:
            return give(self._core, self._command, held.verdict)
        return None if isinstance(met, Settled) else give(self._core, self._command, met)

    def __del__(self) -> None:
        # An exception from outside came between the block and its end: the user must roll back the transaction.
        self._end()


class AsyncAtomic(_Block[AsyncPerformer]):
    """``async with engine.atomic(session, command) as once:``, as :class:`Atomic`, for psycopg's
    ``AsyncConnection``, asyncpg's connections, SQLAlchemy's ``AsyncSession`` and ``AsyncConnection``.
    """

    async def __aenter__(self) -> AsyncAtomic:
        if not self._core.checked:
            await self._performer.first_look.take()
        claim = self._attempt()
        try:
            self._core.entering.add(claim.nonce)
            flow = self._enter(claim, lambda: self._backend.join_async(self._connection))
            self._meet(claim, await give_async(self._core, self._command, await self._performer.drive(flow)))
        finally:
            self._core.entering.discard(claim.nonce)
        return self

    async def __aexit__(self, kind: object, *_: object) -> Literal[False]:
        await self._performer.drive(self._exit(failed=kind is not None))
        return False
