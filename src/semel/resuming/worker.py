"""The completer: finishes executions whose clients have gone.

It takes over executions of operations that are declared resumable, once they have no holder, and gives their handlers
the kept request. A takeover is a claim: several completers, and clients that retry, never run one execution
together. All other operations never run without their client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypedDict

from semel.core.model import Operation, Record, Scope
from semel.core.outcomes import Unprovable
from semel.core.timing import check_seconds
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.result import Result
from semel.engine.sync_engine import Engine
from semel.errors import (
    CommandError,
    ConfigurationError,
    InProgressError,
    NothingHappened,
    PolicyError,
    RecordUnreadableError,
    SchemaError,
    StoreError,
)
from semel.operations.flow import find_operation
from semel.policy import SPAN_SECONDS_MAX, Command, Policy
from semel.sealing.rules import open_request
from semel.steps.options import Resumed
from semel.steps.store import FIRST, Abandoned, StepRows
from semel.workers.loop import Loop
from semel.workers.rules import Turn
from semel.workers.turns import TURNS_PER_LOOK, Turns, is_due, kind_of, seconds_ahead

FIND_MAX: Final = 100
EVERY_SECONDS_MAX: Final = 0.75  # lease + 1 s is a promise; the rest of the second is for the calls themselves
ATTEMPTS_OVER: Final = "attempts-over"
Handler = Callable[[Permit, bytes], Any]
COMPLETED_OUTSIDE: Final[ContextVar[bool]] = ContextVar("semel-completed-outside", default=False)
"""Set where an application's lifespan runs inside ``semel worker --complete``: its own completer stays away."""


@dataclass(frozen=True, slots=True)
class _Resumable:
    policy: Policy
    handler: Handler


class CompleterOptions(TypedDict, total=False):
    """The keyword arguments of a :class:`Completer` besides its engine."""

    every_seconds: float
    rest_seconds: float
    at_once: int


class Completer(Loop):
    """Completes abandoned executions of resumable operations. ``async with Completer(engine):`` runs it.

    Parameters: ``engine`` an :class:`~semel.engine.async_engine.AsyncEngine`, whose handlers are async, or an
    :class:`~semel.engine.sync_engine.Engine`, whose handlers run in threads; ``every_seconds`` between two looks (at
    most 0.75); ``rest_seconds`` before a retry of an execution that failed here, doubled with each attempt.

    An execution that has used up its policy's ``attempts_max`` becomes UNKNOWN, with the doubt ``attempts-over``.
    """

    def __init__(
        self, engine: AsyncEngine | Engine, *, every_seconds: float = 0.5, rest_seconds: float = 5.0, at_once: int = 10
    ) -> None:
        check_seconds("every_seconds", every_seconds, least=0, most=SPAN_SECONDS_MAX)
        if not 0 < every_seconds <= EVERY_SECONDS_MAX:
            raise PolicyError(
                f"every_seconds must be more than 0 and at most {EVERY_SECONDS_MAX}, so that an abandoned execution is "
                f"taken over within a second of its lapse; it is {every_seconds!r}"
            )
        check_seconds("rest_seconds", rest_seconds, most=86_400)
        if isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1:
            raise PolicyError(f"at_once must be a whole number of at least 1; it is {at_once!r}")
        super().__init__("semel-completer", every_seconds)
        self.engine = engine
        self._rows = StepRows(engine.store)
        self._rest_seconds = rest_seconds
        self._at_once = at_once
        self._operations: dict[str, _Resumable] = {}
        self._running: dict[bytes, asyncio.Task[bool]] = {}  # by record id
        self._rests: dict[bytes, float] = {}  # until when, in monotonic seconds
        self._threads = self._new_threads()
        self.completed = 0  # executions that were completed here
        self.failed = 0  # runs here that raised; they are tried again

    def _new_threads(self) -> ThreadPoolExecutor:
        # Its own threads: slow handlers would occupy all of the loop's, and no execution would be found.
        return ThreadPoolExecutor(self._at_once, thread_name_prefix="semel-complete")

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the registered operations."""
        return tuple(self._operations)

    def register(self, operation: str, policy: Policy, handler: Handler) -> None:
        """Register how to complete an operation without its client.

        Parameters: ``operation`` its name; ``policy`` as it is declared; ``handler`` receives the permit and the
        command's ``request`` bytes, and answers as the operation's own handler does. If it has an async
        ``check(command, request)``, that is awaited before the claim; its error is reported, and nothing runs.

        Raises ConfigurationError: it is not declared resumable, or was registered before.
        """
        if not policy.resumable:
            raise ConfigurationError(
                f"{operation!r} is not declared resumable: it never runs without its client. Policy(resumable=True)"
            )
        if operation in self._operations:
            raise ConfigurationError(f"{operation!r} is registered already; give each operation one handler")
        self._operations[operation] = _Resumable(policy, handler)
        self._leave_turns()

    async def run_once(self) -> int:
        """Take over abandoned executions and wait for them; return how many were completed here.

        Raises StoreError: the next call takes over the rest.
        """
        begun = await self._begin()
        if begun:
            await asyncio.wait(begun)
        return sum(task.result() for task in begun)

    async def _look(self) -> None:
        if not self._operations:
            return
        if self._turns is None:
            kind = kind_of("completer", self._operations)
            perform = partial(self._call, self.engine.perform)
            every = TURNS_PER_LOOK * self._every_seconds
            self._turns = Turns(self.engine.store, kind, every, perform, earliest_of=_earliest_of)
        turn = await self._take_turn()
        begun = await self._begin() if is_due(turn) else []
        if turn is not None and not begun and not self._running:  # else there may be more; others join at their turns
            self._rest = seconds_ahead(turn)

    async def _leave(self) -> None:
        if self._running:  # handlers are not cancelled: they run to completion
            await asyncio.wait(set(self._running.values()))
        self._threads.shutdown()
        self._threads = self._new_threads()

    async def _begin(self) -> list[asyncio.Task[bool]]:
        if not self._operations:
            return []
        now = time.monotonic()
        self._rests = {id: until for id, until in self._rests.items() if until > now}
        begun: list[asyncio.Task[bool]] = []
        after = FIRST
        while len(self._running) < self._at_once:
            page: list[Abandoned] = await self._call(
                self.engine.perform, "abandoned", lambda after=after: self._rows.find_abandoned(FIND_MAX, after)
            )
            begun += self._begin_some(page, now)
            if len(page) < FIND_MAX:
                break
            after = page[-1].lease_until, page[-1].id  # executions that rest, or are unknown here, do not delay others
        return begun

    def _begin_some(self, abandoned: list[Abandoned], now: float) -> list[asyncio.Task[bool]]:
        begun = []
        for each in abandoned:
            known = self._operations.get(each.operation)
            busy = each.id in self._running or self._rests.get(each.id, 0) > now
            if known is None or busy or len(self._running) >= self._at_once:
                continue
            task = asyncio.create_task(self._complete(known, each), name="semel-complete")
            self._running[each.id] = task
            task.add_done_callback(lambda _, id=each.id: self._running.pop(id, None))  # type: ignore[misc]
            begun.append(task)
        return begun

    async def _complete(self, known: _Resumable, found: Abandoned) -> bool:
        """Complete one execution; returns whether it ended here. A handler's exception is settled with its command."""
        rest = self._rest_seconds * 2 ** min(found.attempt, 10)
        self._rests[found.id] = time.monotonic() + rest * (1 - self._random.random() / 4)
        try:
            row, kept = await self._call(
                self.engine.perform, "read", lambda: find_operation(self.engine.store, record_id=found.id)
            )
            if row is None or row.attempt != found.attempt or row.request is None:
                return self._left_to_others(found)
            request = open_request(row.request, row.id, self.engine.core.sealer)
            command = _command(row, kept, known.policy)
            if found.attempt >= found.attempts_max:
                return await self._give_up(command)
            check = getattr(known.handler, "check", None)
            if check is not None:
                await check(command, request)
            self.engine.core.tell("resumed", found.operation)
            ended = await self._run(command, known.handler, found, request)
        except _HandlerFailed as failed:
            self._tell_failed(found.operation, failed.error)
            return False
        except RecordUnreadableError as error:
            self._tell_failed(found.operation, error)
            return False
        except (InProgressError, NothingHappened):
            return self._left_to_others(found)
        except (CommandError, StoreError, SchemaError):
            return False  # a look after its rest finds it again
        except Exception as error:  # noqa: BLE001 - reported to the loop: one execution does not end the completer
            self._tell_failed(found.operation, error)
            return False
        if ended.replayed:
            return self._left_to_others(found)
        self._rests.pop(found.id, None)
        self.completed += 1
        return True

    def _left_to_others(self, found: Abandoned) -> bool:
        """Leave an execution to a faster process. That is no failure: if the other dies, a takeover follows at once."""
        self._rests.pop(found.id, None)
        return False

    def _tell_failed(self, operation: str, error: Exception) -> None:
        self.failed += 1
        what = {"message": f"a resumed execution of {operation!r} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(what)

    async def _run(self, command: Command, handler: Handler, found: Abandoned, request: bytes) -> Result:
        """Run the handler under a claim. Raises the engine's errors, and _HandlerFailed once it is settled."""
        raised: list[Exception] = []
        try:
            if isinstance(self.engine, AsyncEngine):

                async def run_handler(permit: Permit) -> Any:
                    _check_next(permit, found)
                    try:
                        return await handler(permit, request)
                    except Exception as error:
                        raised.append(error)
                        raise

                return await self.engine.run(command, run_handler, wait_seconds=0)

            def in_thread(permit: Permit) -> Any:
                _check_next(permit, found)
                try:
                    return handler(permit, request)
                except Exception as error:
                    raised.append(error)
                    raise

            runs = partial(copy_context().run, self.engine.run, command, in_thread, wait_seconds=0)
            return await asyncio.get_running_loop().run_in_executor(self._threads, runs)
        except Exception:
            if raised:  # of any type: an error of the handler is not one of the completer
                raise _HandlerFailed(raised[0]) from raised[0]
            raise

    async def _give_up(self, command: Command) -> bool:
        """Make an execution that has used up its attempts visible to operators."""
        permit = await self._call(self.engine.claim, command, wait_seconds=0)
        if not isinstance(permit, Permit):
            return False
        permit.steps.ledger.doubt = ATTEMPTS_OVER
        await self._call(self.engine.settle, permit, Unprovable(ATTEMPTS_OVER))
        return False

    async def _call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(self.engine, AsyncEngine):
            return await method(*arguments, **options)
        return await asyncio.to_thread(method, *arguments, **options)


class _HandlerFailed(Exception):
    """The handler of a resumed execution has raised; its command is settled accordingly."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _earliest_of(turn: Turn) -> int | None:
    """Return when the first execution can be taken over: one that waits, or one whose lease ends."""
    return min((at for at in (turn.abandoned, turn.earliest) if at is not None), default=None)


def running(completer: Completer | None) -> AbstractAsyncContextManager[object]:
    """Run an application's own completer meanwhile, if it has one and no other process completes for it."""
    return nullcontext() if completer is None or COMPLETED_OUTSIDE.get() else completer


def _check_next(permit: Permit, found: Abandoned) -> None:
    if permit.attempt != found.attempt + 1:  # another process ran and released it between the look and the claim
        raise NothingHappened("the execution has moved on")


def _command(row: Record, kept: Operation | None, policy: Policy) -> Command:
    """Make the command of a record without its client: the key is unknown, so the record identifies it.

    The operation's row has its reference from the claim on; the record has it only once it is settled.
    """
    return Command(
        scope=Scope(row.tenant, row.caller, row.operation),
        key=row.operation_id.hex(),
        fingerprint=row.fingerprint,
        recipe=row.recipe,
        policy=policy,
        business_ref=row.business_ref if kept is None else kept.business_ref,
        resumed=Resumed(row.id, row.key_hash, row.operation_id),
    )
