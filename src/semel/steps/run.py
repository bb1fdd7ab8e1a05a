"""``permit.step``, which makes a handler's effect once for the whole execution: in threads, and on an event loop.

These two classes make the calls; ``steps/flow.py`` records what comes before and after each.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
import time
import typing
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.articles import name_type
from semel.atomic.flow import NOT_ROLLED_BACK
from semel.atomic.own_transaction import in_own_transaction
from semel.codec.annotations import Shapes
from semel.codec.results import keep_result
from semel.codec.scalars import Mismatch, Unserialisable
from semel.codec.shapes import Shape
from semel.core.flow import Flow
from semel.core.outcomes import Outcome
from semel.core.requests import AnyUnit, Begin
from semel.errors import HandlerError, NothingHappened, StepError, SupersededError
from semel.sealing.rules import Seals, about_step, open_part, seal_part
from semel.steps.flow import StepLedger
from semel.steps.rules import Finished, Step, check_name
from semel.steps.store import Recorded, StepRows
from semel.stores.backend import UNIT_RUNS_MAX, Backend
from semel.stores.process import FORKED
from semel.stores.shield import Hold, whole

if TYPE_CHECKING:
    from semel.engine.permit import Permit
    from semel.engine.runner import AsyncPerformer, SyncPerformer

T = TypeVar("T")
Opened = tuple[Step, AnyUnit, Recorded]
_SHAPES: Final = Shapes()
_AWAITED: Final = (Awaitable, Coroutine)
_AS_STEP: Final = "make it a step with permit.step(..., repeat=True) whose code finds what it has written before"


class StepBook:
    """The steps of one permit: the shared part of both forms."""

    def __init__(self, permit: Permit, backend: Backend, sealer: Seals | None) -> None:
        self._permit = permit
        self._sealer = sealer
        self._backend = backend
        terms = permit.claim.terms
        self._dedup_us = terms.dedup_us
        self._claimed_at = permit.grant.deadline_at - terms.deadline_us
        self.ledger = StepLedger(StepRows(backend.store), permit.grant, terms.dedup_us)

    def want(self, name: str, ordinal: int, *, repeat: bool) -> Step:
        """Make the step for this call, started now. Raises StepError, SupersededError."""
        check_name(name, ordinal)
        permit = self._permit
        if permit.settling:
            raise StepError(f"step {name!r} was called after its command had ended; await every step in the handler")
        self.check_process(name)
        if permit.lost:
            raise SupersededError(f"the record was granted to another attempt: step {name!r} was not begun")
        # The store's clock at the claim, plus the time since then here: never later than the store's own time. So a
        # downstream's memory is assumed to end too early rather than too late.
        left = permit.deadline_monotonic - time.monotonic()
        now = self._claimed_at + permit.claim.terms.deadline_us - int(left * 1_000_000)
        return Step(name, ordinal, max(now, self._claimed_at), repeat)

    def check_process(self, name: str) -> None:
        """Raise HandlerError in a process that was forked while the handler ran: the record is its parent's."""
        if self._permit.inherited:
            raise HandlerError(f"step {name!r} belongs to the process that this one was forked from: {FORKED}")

    def proves_nothing(self, error: BaseException) -> bool:
        """Whether a call's exception proves that it had no effect."""
        return isinstance(error, (NothingHappened, *self._permit.command.policy.nothing_happened))

    def conflicts(self, error: BaseException, runs: int) -> bool:
        """Whether local writes conflicted with another transaction and may run again: all of them were undone."""
        return runs < UNIT_RUNS_MAX and self._backend.conflicts(error) and self.ledger.doubt != NOT_ROLLED_BACK

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the handler's end."""
        return self.ledger.outcome(outcome)

    def keep(self, step: Step, value: Any, shape: Shape) -> Any:
        """Record and return the result of a step that has just run. Raises StepError: the step stays in doubt."""
        try:
            body, again = encode_result(step.shown, value, shape)
        except StepError:
            self.ledger.fail(step, nothing_happened=False)
            raise
        self.ledger.finish(step, self.seal_result(step, body))
        return again

    def seal_result(self, step: Step, body: bytes) -> bytes:
        """Seal a result if the operation wants it stored sealed."""
        about = about_step(self._permit.grant.id, step.shown)
        return seal_part(body, about, self._permit.command.policy.answers, self._sealer)

    def read_recorded(self, step: Step, met: Finished, shape: Shape) -> Any:
        """Read the result that a former run has recorded.

        Raises StepError if the code has declared another type since, because the step must not run again;
        RecordUnreadableError and ConfigurationError if the result is sealed and does not open.
        """
        about = about_step(self._permit.grant.id, step.shown)
        body = open_part(met.result, about, self._sealer, f"the result of step {step.shown!r}")
        try:
            return shape.decode(json.loads(body))
        except (Mismatch, ValueError) as error:
            raise StepError(
                f"step {step.name!r} is finished, and its recorded result does not fit the current declaration "
                f"({error}); let the new code read the old type, or finish open commands with the old code"
            ) from error


class SyncSteps(StepBook):
    """Steps in threads."""

    def __init__(self, permit: Permit, backend: Backend, performer: SyncPerformer) -> None:
        super().__init__(permit, backend, performer.sealer)
        self._performer = performer
        self._writing = threading.Lock()

    def step(self, name: str, call: Callable[[], Any], ordinal: int, *, repeat: bool, returns: Any) -> Any:
        """See :meth:`semel.engine.permit.Permit.step`."""
        check_plain(name, call)
        shape = shape_of(name, call, returns)
        want = self.want(name, ordinal, repeat=repeat)
        hold: Hold[Step] = Hold(lambda step, _: self.ledger.fail(step, nothing_happened=True))
        try:
            with self._writing:
                met = self._performer.drive(_into(hold, self.ledger.begin(want)))
            if isinstance(met, Finished):
                return self.read_recorded(want, met, shape)
            hold.end()
        except BaseException as error:
            hold.let_go(error)
            raise
        try:
            value = call()
        except BaseException as error:
            self.ledger.fail(met, nothing_happened=self.proves_nothing(error))
            raise
        return self.keep(met, value, shape)

    def local(self, name: str, call: Callable[[Any], Any], ordinal: int, *, returns: Any) -> Any:
        """See :meth:`semel.engine.permit.Permit.local_step`."""
        check_plain(name, call)
        shape = shape_of(name, call, returns)
        drive, ledger = self._performer.drive, self.ledger
        runs = 0
        while True:
            runs += 1
            hold: Hold[Opened] = Hold(lambda opened, _: drive(ledger.undo(opened)))
            try:
                want = self.want(name, ordinal, repeat=False)
                with self._writing:
                    met = drive(_into(hold, ledger.open(want, Begin())))
                if isinstance(met, Finished):
                    return self.read_recorded(want, met, shape)
                with in_own_transaction(self._backend, name, met[1], _AS_STEP):
                    value = call(met[1].connection)
                self.check_process(name)
                body, value = encode_result(name, value, shape)
                body = self.seal_result(want, body)
                with self._writing:
                    drive(ledger.commit(met, body))
                hold.end()
            except BaseException as error:
                hold.let_go(error)
                if not self.conflicts(error, runs):
                    raise
            else:
                return value

    def close(self, outcome: Outcome) -> None:
        """Close the steps before the holder settles."""
        with self._writing:
            self._performer.drive(self.ledger.close(outcome))


class AsyncSteps(StepBook):
    """Steps on an event loop. Recording completes even if the caller is cancelled."""

    def __init__(self, permit: Permit, backend: Backend, performer: AsyncPerformer) -> None:
        super().__init__(permit, backend, performer.sealer)
        self._performer = performer
        self._writing = asyncio.Lock()
        # On SQLite, or in a pool of one, a start waits for a local step's transaction, which must never wait for one.
        self._beginning = asyncio.Lock()
        self._inside: ContextVar[bool] = ContextVar("semel_local_step", default=False)

    async def step(self, name: str, call: Callable[[], Any], ordinal: int, *, repeat: bool, returns: Any) -> Any:
        """See :meth:`semel.engine.permit.Permit.step`."""
        shape = shape_of(name, call, returns)
        want = self.want(name, ordinal, repeat=repeat)
        self._check_outside(name)
        async with self._beginning, self._writing:
            met, cancelled = await self._whole(self.ledger.begin(want))
            if cancelled is not None:
                if isinstance(met, Step):
                    self.ledger.fail(met, nothing_happened=True)
                raise cancelled
        if isinstance(met, Finished):
            return self.read_recorded(want, met, shape)
        try:
            value = call()
            if inspect.isawaitable(value):
                value = await value
        except BaseException as error:
            self.ledger.fail(met, nothing_happened=self.proves_nothing(error))
            raise
        return self.keep(met, value, shape)

    async def local(self, name: str, call: Callable[[Any], Any], ordinal: int, *, returns: Any) -> Any:
        """See :meth:`semel.engine.permit.Permit.local_step`."""
        shape = shape_of(name, call, returns)
        self._check_outside(name)
        runs = 0
        while True:
            runs += 1
            async with self._beginning:
                try:
                    return await self._local(name, call, ordinal, shape)
                except BaseException as error:
                    if not self.conflicts(error, runs):
                        raise

    async def _local(self, name: str, call: Callable[[Any], Any], ordinal: int, shape: Shape) -> Any:
        ledger = self.ledger
        want = self.want(name, ordinal, repeat=False)
        async with self._writing:
            met, cancelled = await self._whole(ledger.open(want, Begin()))
        if isinstance(met, Finished):
            if cancelled is not None:
                raise cancelled
            return self.read_recorded(want, met, shape)
        try:
            if cancelled is not None:
                raise cancelled
            inside = self._inside.set(True)
            try:
                with in_own_transaction(self._backend, name, met[1], _AS_STEP):
                    value = call(met[1].connection)
                    if inspect.isawaitable(value):
                        value = await value
            finally:
                self._inside.reset(inside)
            self.check_process(name)
            body, value = encode_result(name, value, shape)
            body = self.seal_result(want, body)
            async with self._writing:
                _, cancelled = await self._whole(ledger.commit(met, body))
        except BaseException:
            if not self._permit.inherited:
                await self._whole(ledger.undo(met))
            raise
        if cancelled is not None:  # the step is committed, and its caller gets the cancellation
            raise cancelled
        return value

    async def close(self, outcome: Outcome) -> None:
        """Close the steps before the holder settles."""
        async with self._writing:
            await self._performer.drive(self.ledger.close(outcome))

    def _check_outside(self, name: str) -> None:
        if self._inside.get():
            raise StepError(f"step {name!r} was called inside a local step, and would wait for that step's transaction")

    async def _whole(self, flow: Flow[T]) -> tuple[T, asyncio.CancelledError | None]:
        """Perform a flow to its end, even if the caller is cancelled meanwhile; returns its result and the
        cancellation.
        """
        return await whole(self._performer.drive(flow))


def _into(hold: Hold[Any], begun: Flow[T]) -> Flow[T]:
    """Perform a flow as _whole does, and hand the result to the hold."""
    met = yield from begun
    if not isinstance(met, Finished):
        hold.give(met)
    return met


# --- results ----------------------------------------------------------------------------------


def shape_of(name: str, call: object, returns: Any) -> Shape:
    """Return the shape of a step's result: as declared, or by the call's own annotation.

    Raises StepError if ``call`` is not a function, ConfigurationError if its type has no safe form.
    """
    if inspect.isawaitable(call):
        if inspect.iscoroutine(call):
            call.close()  # it will never be awaited
        raise StepError(
            f"step {name!r} was given a call that has begun; give the function, such as lambda: charge(...)"
        )
    if not callable(call):
        raise StepError(f"step {name!r} needs a function to call; it is {name_type(call)}")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise StepError(f"step {name!r} was given a generator function, whose call runs nothing: leave yield out")
    return _SHAPES.of(_return_annotation(call) if returns is None else returns, f"the result of step {name!r}")


def check_plain(name: str, call: object) -> None:
    """Raise StepError for a coroutine function, before its step begins: a sync engine awaits nothing."""
    if inspect.iscoroutinefunction(call):
        raise StepError(
            f"step {name!r} was given a coroutine function, which a sync engine does not await; give a plain function, "
            "or use an AsyncEngine"
        )


def _return_annotation(call: Any) -> Any:
    while isinstance(call, functools.partial):
        call = call.func
    try:
        annotation = typing.get_type_hints(call).get("return", Any)
    except (NameError, TypeError):  # a type that is not known here, or an object without annotations
        return Any
    if typing.get_origin(annotation) in _AWAITED:
        return typing.get_args(annotation)[-1]
    return annotation


def encode_result(name: str, value: Any, shape: Shape) -> tuple[bytes, Any]:
    """Encode a result as recorded, and as every later run gets it. Raises StepError."""
    try:
        kept = keep_result(value, shape)
    except Unserialisable as error:
        raise StepError(f"step {name!r} ran, and its result cannot be recorded: {error}") from error
    return kept.answer.body, kept.value


def encode_found(name: str, value: Any) -> bytes:
    """Encode the result of a step that was settled from outside. Raises StepError."""
    return encode_result(name, value, _SHAPES.of(Any, f"the result of step {name!r}"))[0]
