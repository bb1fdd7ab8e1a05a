"""The fault driver: a real driver that fails or dies before or after its n-th request to the store.

Each request of a driver is an *ask*, BEGIN and COMMIT included, so that one number identifies every place where a store
can fail or a process can end. Faults are errors of the driver's own library, so that the driver's translation of errors
is tested, too. After a :class:`Crash` the driver is dead: it performs no further ask, and uncommitted writes are gone;
an engine's upkeep thread, which no caller waits for, stops. ``bury`` then closes what a dead process leaves to the
operating system.

    for fault in every_fault():
        faults = Faults(fault)
        ...run the flow on ``faulty_backend(faults, path, clock)``...
        if faults.clean: break
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from semel.core.flow import Ask, Flow, MakeFlow, perform
from semel.engine.renewal import THREAD_NAME
from semel.engine.sync_engine import Engine
from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.clock import Clock
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore, TableCall
from semel.stores.sql.statements import Execute, ExecuteMany, Now, Query
from semel.stores.sqlite.connection import BEGIN, COMMIT, Answer, TransactionAsk, answering
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend

R = TypeVar("R")
T = TypeVar("T")
FAULTS_MAX: Final = 500  # a loop over every n that is not clean by then never ends


class Kind(Enum):
    """The fault at the chosen request."""

    FAIL = "fail"  # the store refuses; nothing was written
    TIMEOUT = "time out"  # no reply: at a commit, the caller does not know whether it took effect
    CRASH = "crash"  # the process is gone


class When(Enum):
    """When the fault happens: before the ask (which is not performed) or after it."""

    BEFORE = "before"
    AFTER = "after"


class Fault(NamedTuple):
    """``kind`` happens ``when`` the ``n``-th ask (from 1) is performed, ``once`` or from then on."""

    kind: Kind
    when: When
    n: int
    once: bool = True

    def __str__(self) -> str:
        return f"{self.kind.value} {self.when.value} ask {self.n}{'' if self.once else ' and from then on'}"


class Crash(BaseException):
    """The process is dead. Only the test that killed it may catch this."""


class _Died(sqlite3.OperationalError):
    """A death inside the driver, as an error that its library could raise."""


class Faults:
    """Counts asks and triggers one fault. Thread-safe; without a fault it only counts."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.asks: list[str] = []
        self.struck = False
        self.dead = False
        self.buried = threading.Event()
        self._lock = threading.Lock()
        self._counting = True

    @property
    def clean(self) -> bool:
        """Whether the run ended before its fault."""
        return not self.struck

    def rest(self) -> None:
        """Stop counting and failing during a test's preparation and checks."""
        self._counting = False

    def resume(self) -> None:
        """Count and fail again."""
        self._counting = True

    def around(self, needed: Ask[Any], answer: Answer) -> Any:
        """Perform one ask, with the fault if it is due."""
        hit = self._hits(needed)
        if hit is When.BEFORE:
            self._strike(needed)
        reply = answer(needed)
        if hit is When.AFTER:
            self._strike(needed)
        return reply

    def _hits(self, needed: Ask[Any]) -> When | None:
        with self._lock:
            if self.dead:
                raise _Died("the process is dead")
            if not self._counting:
                return None
            self.asks.append(name_of(needed))
            fault, n = self.fault, len(self.asks)
            if fault is None or n < fault.n or (fault.once and n > fault.n):
                return None
            return fault.when

    def _strike(self, needed: Ask[Any]) -> None:
        assert self.fault is not None
        self.struck = True
        match self.fault.kind:
            case Kind.CRASH:
                self.dead = True
                raise _Died("the process died")
            case Kind.TIMEOUT:
                raise _error_for(needed, timed_out=True)
            case Kind.FAIL:
                raise _error_for(needed, timed_out=False)


def _error_for(needed: Ask[Any], *, timed_out: bool) -> Exception:
    """Return the client library's error for the fault; the driver handles it like a real one."""
    if isinstance(needed, TableCall):
        text = f"injected at {needed.verb}"
        return StoreTimeout(text) if timed_out else StoreUnavailable(text)
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR if timed_out else sqlite3.SQLITE_FULL
    return error


def name_of(needed: Ask[Any]) -> str:
    """Return the name under which an ask is counted: its statement, its verb, or its kind."""
    if isinstance(needed, (Query, Execute, ExecuteMany)):
        return needed.statement.name
    if isinstance(needed, TableCall):
        return needed.verb
    if isinstance(needed, TransactionAsk):
        return "BEGIN" if needed is BEGIN else "COMMIT" if needed is COMMIT else needed.text
    return "now" if isinstance(needed, Now) else type(needed).__name__


def every_fault(kind: Kind, when: When, *, once: bool = True) -> Iterator[Fault]:
    """Yield the same fault at ask 1, 2, 3, …; the caller's loop ends at the first clean run."""
    for n in range(1, FAULTS_MAX + 1):
        yield Fault(kind, when, n, once)
    raise AssertionError(f"still not clean after {FAULTS_MAX} faults")


KINDS: Final = tuple(
    (kind, when, once)
    for kind in Kind
    for when in When
    for once in (True, False)
    # A store that has written must not report a refusal; and no process dies more than once.
    if not (kind is Kind.FAIL and when is When.AFTER) and not (kind is Kind.CRASH and not once)
)
"""Every kind of fault there is: (kind, when, once)."""


class FaultyDriver:
    """A driver that raises :class:`Crash` to its callers when it is dead. It passes everything else to the inner
    driver."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults

    def run(self, make: MakeFlow[T]) -> T:
        """As the inner driver's."""
        if self.faults.dead:
            self._check()
        act: Callable[[], T] = lambda: self.inner.run(make)  # noqa: E731 - typed: the inner driver is not
        return self._alive(act)

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As the inner driver's."""
        reply: Awaitable[T] = self.inner.run_async(make)
        return await self._alive_async(reply)

    def _alive(self, act: Callable[[], T]) -> T:
        try:
            reply = act()
        except (StoreError, sqlite3.Error):
            self._check()
            raise
        self._check()  # a dead process loses its reply
        return reply

    async def _alive_async(self, act: Awaitable[T]) -> T:
        try:
            reply = await act
        except (StoreError, sqlite3.Error):
            self._check()
            raise
        self._check()
        return reply

    def _check(self) -> None:
        if not self.faults.dead:
            return
        if threading.current_thread().name == THREAD_NAME:
            self.faults.buried.wait()  # a dead process's thread does nothing and returns nothing
            raise StoreUnavailable("the process is dead") from None
        raise Crash(str(self.faults.fault)) from None

    def close(self) -> None:
        """As the inner driver's."""
        self.inner.close()

    async def close_async(self) -> None:
        """As the inner driver's."""
        await self.inner.close_async()


class _FaultySqliteDriver(FaultyDriver):
    """As its base, for a driver that batches the requests of many callers."""

    def ask_one(self, name: str, verb: Callable[[Sequence[R]], Flow[list[T]]], request: R) -> Awaitable[T]:
        """As the inner driver's."""
        return self._alive_async(self.inner.ask_one(name, verb, request))


class _FaultyUnit:
    """An ATOMIC unit on a faulty driver."""

    def __init__(self, inner: Any, driver: FaultyDriver) -> None:
        self.inner = inner
        self._driver = driver

    @property
    def connection(self) -> Any:
        return self.inner.connection

    def run(self, make: MakeFlow[T]) -> T:
        act: Callable[[], T] = lambda: self.inner.run(make)  # noqa: E731 - typed: the inner unit is not
        return self._driver._alive(act)

    async def run_async(self, make: MakeFlow[T]) -> T:
        reply: Awaitable[T] = self.inner.run_async(make)
        return await self._driver._alive_async(reply)

    def hand_out(self) -> Any:
        return self.inner.hand_out()

    def commit(self) -> None:
        self._driver._alive(self.inner.commit)

    async def commit_async(self) -> None:
        await self._driver._alive_async(self.inner.commit_async())

    def rollback(self) -> None:
        self.inner.rollback()

    async def rollback_async(self) -> None:
        await self.inner.rollback_async()


@dataclass(frozen=True, slots=True)
class FaultyBackend:
    """A backend under faults, and the cleanup after a simulated death."""

    backend: Backend
    faults: Faults
    units: list[_FaultyUnit]

    def bury(self, engine: Engine | None = None) -> None:
        """Do what the operating system does after a death: end open transactions, close files, end threads.

        Parameters: ``engine`` that ran on this backend in threads: without it, its upkeep stays blocked for ever.
        """
        self.faults.rest()
        for unit in self.units:
            unit.rollback()
        if engine is not None:
            self.faults.buried.set()
            with suppress(Crash):  # it releases and confirms nothing at its end
                engine._upkeep.close()
        self.backend.driver.close()


def faulty_sqlite(path: str, clock: Clock, faults: Faults, *, busy_seconds: float = 5.0) -> FaultyBackend:
    """Make a SQLite backend under faults: every statement, BEGIN and COMMIT is one ask.

    Commits do not wait for the disk (``synchronous=OFF``): these tests kill processes, not machines.
    """

    def performing(connection: sqlite3.Connection, now: Clock) -> Answer:
        answer = answering(connection, now)
        return lambda needed: faults.around(needed, answer)

    inner = SqliteDriver(path, synchronous="OFF", busy_seconds=busy_seconds, clock=clock, answering=performing)
    real = sqlite_backend(inner, busy_seconds)
    driver = _FaultySqliteDriver(inner, faults)
    units: list[_FaultyUnit] = []

    def keep_unit(unit: Any) -> _FaultyUnit:
        units.append(_FaultyUnit(unit, driver))
        return units[-1]

    async def begin_async() -> Any:
        assert real.unit_async is not None
        return keep_unit(await driver._alive_async(real.unit_async()))

    def begin() -> Any:
        assert real.unit is not None
        return keep_unit(driver._alive(real.unit))

    return FaultyBackend(replace(real, driver=driver, unit=begin, unit_async=begin_async), faults, units)


def faulty_memory(clock: Clock, faults: Faults) -> FaultyBackend:
    """Make a memory backend under faults: every verb is one ask, and takes effect at once."""

    class Local(LocalDriver):
        def run(self, make: MakeFlow[T]) -> T:
            return perform(make(), lambda needed: faults.around(needed, self._answer))

        def _answer(self, needed: Any) -> Any:
            with self._lock:
                return needed.act(self._table, self._clock())

    driver = FaultyDriver(Local(clock=clock), faults)
    return FaultyBackend(Backend("memory", MemoryStore(), driver), faults, [])
