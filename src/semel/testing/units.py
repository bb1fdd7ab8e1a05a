"""The conformance suite of ATOMIC units: the limits of a handler in its transaction, and the state it leaves.

``CASES`` are functions of a :class:`UnitBench`; the suite takes only a :class:`UnitSubject`. The subject declares its
database's abilities, and :func:`names` leaves out the other cases. For a store of your own, with pytest:

    @pytest.mark.parametrize("name", units.names(MySubject))
    def test_units(name, tmp_path):
        units.run(name, MySubject(tmp_path))
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Final, TypeVar

from semel.core.model import Answer, State
from semel.engine.async_engine import AsyncEngine
from semel.engine.result import Result
from semel.engine.sync_engine import Engine
from semel.policy import Command, Policy
from semel.stores.backend import Backend
from semel.testing.attempts import ATOMIC, RECIPE, bits, scope

T = TypeVar("T")


class UnitSubject(ABC):
    """One client library of a database under test, new and empty.

    The store is migrated, and the application has a table ``effect (n INTEGER PRIMARY KEY)`` in the same database.
    """

    asynchronous: ClassVar[bool] = False
    """Whether handlers are coroutines, run by :class:`~semel.engine.async_engine.AsyncEngine`."""

    has_commit: ClassVar[bool] = True
    """Whether the library's connections have ``commit()`` and ``rollback()``."""

    tells_running: ClassVar[bool] = True
    """Whether another process learns at once that a command is running; else it waits, and finds the store busy."""

    deferred: ClassVar[tuple[str, str] | None] = None
    """A table's definition, and a statement on it that fails only at the commit."""

    outlasting: ClassVar[tuple[str, str] | None] = None
    """The definition of a table without transactions, and a statement whose write no rollback undoes."""

    refused: ClassVar[tuple[str, ...]] = ()
    """Statements that the handler's connection refuses, since they would reach beyond the transaction."""

    @abstractmethod
    def open(self) -> Backend:
        """Open the store, as a separate process would."""

    @abstractmethod
    async def execute(self, connection: Any, statement: str) -> None:
        """Run one statement on a handler's connection; awaits nothing if the library blocks."""

    @abstractmethod
    def look(self, statement: str) -> list[tuple[Any, ...]]:
        """Run and commit one statement outside of all units; return a query's rows."""

    @abstractmethod
    def is_free(self) -> bool:
        """Return whether no unit has an open transaction, seen from outside."""

    async def count_taken(self, backend: Backend) -> int:
        """Count the connections of ``backend`` that its units still hold; 0 if each unit opens its own."""
        return 0

    async def end_early(self, connection: Any, word: str) -> None:
        """End the transaction behind its unit: ``word`` is COMMIT or ROLLBACK."""
        await self.execute(connection, word)

    def close(self) -> None:
        """Does nothing; a subject closes here the resources that it opened for ``look``."""
        return None


class Writes:
    """The connection for a case's handler, awaited the same way for every library."""

    def __init__(self, subject: UnitSubject, connection: Any) -> None:
        self.subject = subject
        self.connection = connection

    async def execute(self, statement: str) -> None:
        """Run one statement."""
        await self.subject.execute(self.connection, statement)

    async def insert(self, n: int = 1) -> None:
        """Write one row."""
        await self.execute(f"INSERT INTO effect VALUES ({n})")  # noqa: S608 - a number of the suite's own

    async def commit(self) -> None:
        """The connection's own ``commit()``."""
        await _await(self.connection.commit())

    async def rollback(self) -> None:
        """The connection's own ``rollback()``."""
        await _await(self.connection.rollback())

    async def end_early(self, word: str) -> None:
        """End the transaction behind its unit."""
        await self.subject.end_early(self.connection, word)


Handler = Callable[[Writes], Coroutine[Any, Any, Answer]]


class Process:
    """One process's engine of the subject's kind, with its event loop, if any."""

    def __init__(self, subject: UnitSubject, change: Callable[[Backend], Backend]) -> None:
        self._subject = subject
        self._backend = subject.open()
        self._runner = asyncio.Runner() if subject.asynchronous else None
        self.engine: Any = (AsyncEngine if subject.asynchronous else Engine)(change(self._backend))

    def run(self, key: str, handler: Handler, policy: Policy = ATOMIC, *, request: int = 0) -> Result:
        """Run one command or replay it; ``request`` tells payloads apart."""
        command = Command(scope(), key, bits("request", request, size=32), RECIPE, policy)
        result: Result
        if self._runner is None:
            result = self.engine.run(
                command, lambda permit: at_once(handler(Writes(self._subject, permit.connection))), wait_seconds=0
            )
            return result

        async def handle(permit: Any) -> Answer:
            return await handler(Writes(self._subject, permit.connection))

        result = self._runner.run(self.engine.run(command, handle, wait_seconds=0))
        return result

    @property
    def count_taken(self) -> int:
        """The number of connections that its units still hold."""
        counted = self._subject.count_taken(self._backend)
        return at_once(counted) if self._runner is None else self._runner.run(counted)

    def close(self) -> None:
        """End the engine, as an ending process does."""
        closed = self.engine.close()
        if self._runner is not None:
            self._runner.run(closed)
            self._runner.close()


class UnitBench:
    """One subject with a process on it, and the view from outside."""

    def __init__(self, subject: UnitSubject) -> None:
        self.subject = subject
        self._processes: list[Process] = []
        self.process = self.start()

    def start(self, change: Callable[[Backend], Backend] = lambda backend: backend) -> Process:
        """Start another process on the same database; ``change`` its backend, to let a commit be lost."""
        process = Process(self.subject, change)
        self._processes.append(process)
        return process

    def run(self, key: str, handler: Handler, policy: Policy = ATOMIC) -> Result:
        """Run one command in the first process."""
        return self.process.run(key, handler, policy)

    @property
    def rows(self) -> list[int]:
        """The rows of the application's table, read from outside."""
        return [n for (n,) in self.subject.look("SELECT n FROM effect ORDER BY n")]

    @property
    def states(self) -> list[State]:
        """The states of all records in order, read from outside."""
        return [State(state) for (state,) in self.subject.look("SELECT state FROM semel_record ORDER BY seq")]

    def check_nothing_is_open(self) -> None:
        """Check that no unit keeps a connection or a transaction, however its handler ended."""
        assert [process.count_taken for process in self._processes] == [0] * len(self._processes)
        assert self.subject.is_free()

    def close(self) -> None:
        """End all processes, and the subject."""
        for process in self._processes:
            process.close()
        self.subject.close()


async def _await(reply: Any) -> None:
    if inspect.isawaitable(reply):
        await reply


def at_once(story: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, because the library blocks."""
    try:
        story.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a library that is not asynchronous let its handler wait")


from semel.testing.cases import units as _units  # noqa: E402 - the cases are functions of the bench above

CASES: Final[Mapping[str, Callable[[UnitBench], None]]] = {case.__name__: case for case in _units.ALL}
"""Every case by its name, which says what must hold."""


def names(subject: type[UnitSubject]) -> list[str]:
    """Return the cases for this subject: those whose need it declares."""
    return [name for name in CASES if name not in _units.NEEDS or getattr(subject, _units.NEEDS[name])]


def run(name: str, subject: UnitSubject) -> None:
    """Run one case on a new subject; an AssertionError names the failure."""
    if not __debug__:
        raise RuntimeError("the suite is made of assertions: run it without -O")
    bench = UnitBench(subject)
    try:
        CASES[name](bench)
        bench.check_nothing_is_open()
    finally:
        bench.close()
