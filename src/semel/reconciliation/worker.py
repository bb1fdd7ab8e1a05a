"""Reconcilers, which find the outcome of an execution that could not be proven, and their worker.

A reconciler asks the other side and returns its finding. The worker asks with back-off and a bounded number of times;
only one worker asks about a record. It settles by compare-and-set on the record's fence: the first writer wins, and a
crash between asking and writing only repeats the question. If it finds no outcome, an operator must.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from semel.core.model import Find, Found, MovedOn, Record, Resolution, Resolved, State, TooEarly
from semel.core.timing import check_count, check_seconds
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError, PolicyError, SchemaError, StatementRefused, StepError, StoreError
from semel.operations.flow import find_operation
from semel.reconciliation.case import Case
from semel.reconciliation.flow import settle_found
from semel.reconciliation.rules import Again, DidNotHappen, Finding, StepSucceeded, StillUnknown, SucceededWith, judge
from semel.reconciliation.store import Reconciliations
from semel.steps.run import encode_found
from semel.workers.loop import Loop
from semel.workers.trouble import Trouble
from semel.workers.turns import Turns, kind_of, seconds_to_turn

PAGE: Final = 100
LOOKS_PER_SWEEP: Final = 20
LEASE_MARGIN_SECONDS: Final = 10.0  # a worker that has asked must still have time to write the answer
SPAN_SECONDS_MAX: Final = 30 * 86_400.0

Asks = Callable[[Case], Finding | Awaitable[Finding]]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Finds the outcomes of one operation's unknown executions. Made by :func:`reconciler`."""

    operation: str
    ask: Asks
    quiet_for: float
    timeout_seconds: float
    asks_max: int

    def __call__(self, case: Case) -> Finding | Awaitable[Finding]:
        """Ask by calling the declared function."""
        return self.ask(case)


def reconciler(
    operation: str, *, quiet_for: float, timeout_seconds: float = 30, asks_max: int = 12
) -> Callable[[Asks], Reconciler]:
    """Declare a function, sync or async, as the reconciler of an operation.

    Parameters: ``operation`` its name; ``quiet_for`` seconds after the handler's deadline from which "it did not
    happen" counts: longer than the other side may keep a call in its queues; ``timeout_seconds`` for one question
    (a sync function must enforce it itself); ``asks_max`` how often it is asked before an operator must (12 take about
    three hours).

    Raises PolicyError for an impossible value.

    >>> from semel import Answer
    >>> @reconciler("payments.create", quiet_for=120)
    ... async def find_charge(case: Case) -> Finding:
    ...     charges = {"5f2c": b"charged"}  # what the provider has, by the key that the handler gave it
    ...     charge = charges.get(case.key_for("charge"))
    ...     return DidNotHappen("no charge") if charge is None else SucceededWith(Answer(201, (), charge))
    >>> find_charge.operation, find_charge.asks_max
    ('payments.create', 12)
    """
    if not isinstance(operation, str) or not operation:
        raise PolicyError("a reconciler needs its operation's name: @reconciler('payments.create', quiet_for=120)")
    for name, value, least in (("quiet_for", quiet_for, 0.0), ("timeout_seconds", timeout_seconds, 0.001)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= SPAN_SECONDS_MAX:
            raise PolicyError(f"{name} must be {least:g} to {SPAN_SECONDS_MAX:.0f} seconds; it is {value!r}")
    if isinstance(asks_max, bool) or not isinstance(asks_max, int) or asks_max < 1:
        raise PolicyError(f"asks_max must be a whole number of at least 1; it is {asks_max!r}")

    def declare(ask: Asks) -> Reconciler:
        if not callable(ask):
            raise PolicyError(f"a reconciler is a function of the case; it is {ask!r}")
        return Reconciler(operation, ask, float(quiet_for), float(timeout_seconds), asks_max)

    return declare


@dataclass(slots=True)
class Round:
    """The result of one round."""

    asked: int = 0
    settled: int = 0
    gave_up: int = 0


class Reconciling(Loop):
    """Runs reconcilers on an engine's store. ``async with Reconciling(engine, [...]):`` runs it meanwhile.

    Parameters: ``reconcilers`` one for each operation; ``every_seconds`` between two rounds of all processes that have
    the same reconcilers; ``at_once`` the most questions under way at a time.

    Raises ConfigurationError: two reconcilers for one operation, or a store that is not a SQL database; PolicyError.

    >>> import asyncio, tempfile
    >>> from semel import AsyncEngine
    >>> @reconciler("payments.create", quiet_for=120)
    ... def ask_provider(case: Case) -> Finding:
    ...     return StillUnknown("the provider does not answer")
    >>> async def main(folder: str) -> Round:
    ...     engine = AsyncEngine.connect(f"sqlite:///{folder}/app.db")
    ...     await engine.migrate()
    ...     async with engine:
    ...         return await Reconciling(engine, [ask_provider]).run_once()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    Round(asked=0, settled=0, gave_up=0)
    """

    def __init__(
        self, engine: AsyncEngine, reconcilers: Iterable[Reconciler], *, every_seconds: float = 5, at_once: int = 4
    ) -> None:
        check_seconds("every_seconds", every_seconds, most=86_400)
        check_count("at_once", at_once)
        super().__init__("semel-reconciling", every_seconds)
        self._engine = engine
        self._rows = Reconciliations(engine.store)
        self._reconcilers: dict[str, Reconciler] = {}
        for each in reconcilers:
            if not isinstance(each, Reconciler):
                raise ConfigurationError(
                    f"{each!r} is not a reconciler; declare it: @reconciler('payments.create', ...)"
                )
            if each.operation in self._reconcilers:
                raise ConfigurationError(f"two reconcilers are declared for {each.operation!r}")
            self._reconcilers[each.operation] = each
        kind = kind_of("reconciler", self._reconcilers)
        self._turns = Turns(engine.store, kind, every_seconds, engine.perform, earliest_of=lambda _: None)
        self._goes_on = False  # whether the last round has asked about something
        self._looks = 0
        self._places = asyncio.Semaphore(at_once)
        self._one_trouble = Trouble("a reconciliation")

    async def run_once(self) -> Round:
        """Ask once about every due UNKNOWN execution. Raises StoreError: the next round asks the rest."""
        done = Round()
        for each in self._reconcilers.values():
            before: int | None = None
            while True:
                query = Find(states=(State.UNKNOWN,), operation=each.operation, limit=PAGE, before=before)
                page = await self._find(query)
                due = await self._due(page)
                async with asyncio.TaskGroup() as group:
                    for record in due:
                        group.create_task(self._one(each, record, done))
                before = page.next_before
                if before is None:
                    break
        await self._engine.perform("reconciliations", self._rows.sweep)
        return done

    async def _find(self, query: Find) -> Found:
        return await self._engine.perform("find", lambda: self._engine.store.find(query))

    async def _due(self, page: Found) -> list[Record]:
        if not page.records:
            return []
        ids = [record.id for record in page.records]
        known = await self._engine.perform("reconciliations", lambda: self._rows.standings(ids))
        return [row for row in page.records if row.id not in known or known[row.id].is_due(row.fence)]

    async def _one(self, each: Reconciler, seen: Record, done: Round) -> None:
        async with self._places:
            try:
                await self._ask_about(each, seen, done)
            except (StoreError, SchemaError):
                return  # the observer was notified; its lease ends, and the next round asks again
            except Exception as error:  # noqa: BLE001 - such as a damaged record: the others are asked about all the same
                self._one_trouble.note_error(error)

    async def _ask_about(self, each: Reconciler, seen: Record, done: Round) -> None:
        engine = self._engine
        token = os.urandom(16)
        lease = int((each.timeout_seconds + LEASE_MARGIN_SECONDS) * 1_000_000)
        taken = await engine.perform("reconcile", lambda: self._rows.take(seen.id, seen.fence, token, lease))
        if taken is None:
            return
        record, operation = await engine.perform(
            "reconcile", lambda: find_operation(engine.store, operation_id=seen.operation_id)
        )
        if record is None or record.state != State.UNKNOWN or record.fence != seen.fence:
            await engine.perform("reconcile", lambda: self._rows.forget(seen.id))
            return
        case = Case(record, operation, taken.asked)
        done.asked += 1
        found, result = to_recorded(await _ask(each, case), case)
        judged = partial(
            judge,
            record=record,
            now=taken.now,
            actor=f"reconciler:{each.operation}",
            quiet_us=int(each.quiet_for * 1_000_000),
            asked=taken.asked,
            asked_max=each.asks_max,
            jitter=self._random.random(),
            result=result,
        )
        engine.core.tell("reconciled", each.operation, found=type(found).__name__)
        try:
            await self._write(judged(found), case, token, done)
        except Exception as error:
            if isinstance(error, (StoreError, SchemaError)) and not isinstance(error, StatementRefused):
                raise
            # Such as a name with a lone surrogate: one finding must not end the worker of all the others.
            unwritten = StillUnknown(f"the finding could not be written: {type(error).__name__}")
            await self._write(judged(unwritten), case, token, done)

    async def _write(self, judged: Resolution | Again, case: Case, token: bytes, done: Round) -> None:
        engine, record = self._engine, case.record
        if isinstance(judged, Resolution):
            resolution = engine.core.cover(record.operation, judged)
            reply = await engine.perform("resolve", lambda: settle_found(engine.store, resolution, case.events))
            match reply:
                case Resolved():
                    done.settled += 1
                    return
                case MovedOn():  # its holder, an operator or another worker was quicker
                    await engine.perform("reconcile", lambda: self._rows.forget(record.id))
                    return
                case TooEarly(wait_us):
                    judged = Again(wait_us, "its handler may still be running", counts=False)
        again = judged
        if again.over:
            done.gave_up += 1
            engine.core.tell("gave_up", case.operation)
        await engine.perform("reconcile", lambda: self._rows.note(record.id, token, again))

    async def _look(self) -> None:
        turns, turn = self._turns, await self._take_turn()
        if turns is None or turn is None:
            await self.run_once()
            return
        done = Round()
        if self._goes_on or turns.is_first_in_interval(turn):
            self._looks += 1
            if turn.unknown or self._looks % LOOKS_PER_SWEEP == 0:
                done = await self.run_once()
        self._goes_on = done.asked > 0
        if not self._goes_on:  # else this process continues at its own pace, and others join at their turns
            self._rest = seconds_to_turn(turn)


async def _ask(each: Reconciler, case: Case) -> Finding:
    """Ask the reconciler; its exception counts as still unknown, with the reason."""
    try:
        async with asyncio.timeout(each.timeout_seconds):
            found: Any
            if inspect.iscoroutinefunction(each.ask):
                found = await each.ask(case)
            else:
                found = await asyncio.to_thread(each.ask, case)
                if inspect.isawaitable(found):
                    found = await found
    except Exception as error:  # noqa: BLE001 - the other side's trouble is not ours: we ask it again
        return StillUnknown(f"the reconciler raised {type(error).__name__}")
    if isinstance(found, (SucceededWith, StepSucceeded, DidNotHappen, StillUnknown)):
        return found
    return StillUnknown(
        f"the reconciler answered {type(found).__name__}; it must answer SucceededWith, StepSucceeded, DidNotHappen "
        "or StillUnknown"
    )


def to_recorded(found: Finding, case: Case) -> tuple[Finding, bytes | None]:
    """Return a finding with a step's result as recorded; still unknown if there is no such step or form."""
    if not isinstance(found, StepSucceeded):
        return found, None
    if case.step is None:
        return StillUnknown(f"the reconciler answered StepSucceeded, and the doubt names no step: {case.doubt}"), None
    try:
        return found, encode_found(case.step, found.result)
    except StepError as error:
        return StillUnknown(str(error)), None


__all__ = [
    "Case",
    "DidNotHappen",
    "Finding",
    "Reconciler",
    "Reconciling",
    "Round",
    "StepSucceeded",
    "StillUnknown",
    "SucceededWith",
    "reconciler",
]
