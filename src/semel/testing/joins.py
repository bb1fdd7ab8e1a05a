"""The conformance suite of joined transactions: the application's own commit makes a record and its writes final.

``CASES`` are functions of a :class:`JoinBench`; the suite takes only a :class:`JoinSubject`. The subject declares its
library's abilities, and :func:`names` leaves out the other cases. For a store of your own, with pytest:

    @pytest.mark.parametrize("name", joins.names(MySubject))
    def test_joins(name, tmp_path):
        joins.run(name, MySubject(tmp_path))
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Final, Literal

from semel.core.model import Answer, State
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.policy import Command, Policy
from semel.stores.backend import Backend
from semel.testing.attempts import ATOMIC, RECIPE, bits, scope
from semel.testing.units import at_once


class JoinUser(ABC):
    """A connection or session of the application with its transaction; awaited the same way for every library."""

    autobegins: ClassVar[bool] = True
    """Whether a transaction begins automatically with the first statement."""

    target: Any = None
    """The object to join: ``engine.atomic(user.target, command)``."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; a transaction that is still open ends without a commit."""

    async def begin(self) -> None:
        """Begin a transaction, unless it begins automatically."""
        return

    @abstractmethod
    async def execute(self, statement: str) -> None:
        """Run one statement in the transaction."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit, as the application does."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back, as the application does."""

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        await self.execute("SAVEPOINT mine")
        try:
            yield
        except BaseException:
            await self.execute("ROLLBACK TO SAVEPOINT mine")
            raise
        await self.execute("RELEASE SAVEPOINT mine")

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """Return a block with a savepoint, to which an exception rolls back."""
        return self._savepoint()

    async def insert(self, n: int = 1) -> None:
        """Write one row."""
        await self.execute(f"INSERT INTO effect VALUES ({n})")  # noqa: S608 - a number of the suite's own


class JoinSubject(ABC):
    """One client library's transactions in a new, empty database under test.

    The store is migrated, and the application has a table ``effect (n INTEGER PRIMARY KEY)`` in the same database.
    """

    asynchronous: ClassVar[bool] = False
    """Whether it is joined on an :class:`~semel.engine.async_engine.AsyncEngine`."""

    joins_begun: ClassVar[bool] = True
    """Whether a transaction can be joined after it has read or written."""

    tells_running: ClassVar[bool] = True
    """Whether another process learns at once that a command is running; else it finds the store busy."""

    sees_savepoints: ClassVar[bool] = True
    """Whether joining inside of a savepoint is refused."""

    open_savepoint: ClassVar[Literal["refused", "released"]] = "refused"
    """The fate of a savepoint that is open when the block ends."""

    errors_doom: ClassVar[bool] = False
    """Whether a statement's error fails the whole transaction."""

    needs_block: ClassVar[bool] = False
    """Whether a connection without a transaction is refused."""

    read_only: ClassVar[str | None] = None
    """A statement that makes the user's transaction read-only."""

    users_max: ClassVar[int] = 3
    """The largest number of concurrent users."""

    @abstractmethod
    def open(self) -> Backend:
        """Open the store, as a separate process would."""

    @abstractmethod
    def user(self) -> JoinUser:
        """Return a user of this database, not yet connected."""

    def elsewhere(self) -> JoinUser | None:
        """Return a user of another database of the same kind; None if there is none."""
        return None

    @abstractmethod
    def look(self, statement: str) -> list[tuple[Any, ...]]:
        """Run and commit one statement from outside; return a query's rows."""

    @abstractmethod
    def is_free(self) -> bool:
        """Return whether no transaction holds a lock of the store, seen from outside."""

    def close(self) -> None:
        """Does nothing; a subject closes here the resources that it opened for ``look``."""
        return None


class JoinBench:
    """One subject with an engine on it, its users, and the view from outside."""

    def __init__(self, subject: JoinSubject) -> None:
        self.subject = subject
        self._engines: list[Any] = []
        self._users: list[JoinUser] = []
        self.engine = self.start()

    def start(self) -> Any:
        """Start another process's engine, of the subject's kind."""
        made: type[Any] = AsyncEngine if self.subject.asynchronous else Engine
        engine = made(self.subject.open())
        self._engines.append(engine)
        return engine

    async def user(self, made: JoinUser | None = None) -> JoinUser:
        """Return a connected user."""
        user = self.subject.user() if made is None else made
        await user.open()
        self._users.append(user)
        return user

    def command(self, key: str = "k", request: int = 0, policy: Policy = ATOMIC) -> Command:
        """Make the command with a key; ``request`` tells payloads apart."""
        return Command(scope(), key, bits("request", request, size=32), RECIPE, policy)

    @asynccontextmanager
    async def join(self, target: Any, command: Command) -> AsyncIterator[Any]:
        """Join with ``engine.atomic(...)``, sync or async."""
        if self.subject.asynchronous:
            async with self.engine.atomic(target, command) as once:
                yield once
        else:
            with self.engine.atomic(target, command) as once:
                yield once

    async def run_elsewhere(self, story: Callable[[], Awaitable[None]], answer: Answer) -> None:
        """Run the command "k" in another process, with ``story`` as its handler."""
        engine = self.start()
        if self.subject.asynchronous:

            async def handler(permit: Any) -> Answer:
                await story()
                return answer

            await engine.run(self.command(), handler)
        else:

            async def run_story() -> Answer:
                await story()
                return answer

            engine.run(self.command(), lambda permit: at_once(run_story()))

    async def leave(self, user: JoinUser) -> None:
        """Disconnect a user."""
        self._users.remove(user)
        await user.close()

    @property
    def rows(self) -> list[int]:
        """The rows of the application's table, read from outside."""
        return [n for (n,) in self.subject.look("SELECT n FROM effect ORDER BY n")]

    @property
    def states(self) -> list[State]:
        """The states of all records in order, read from outside."""
        return [State(state) for (state,) in self.subject.look("SELECT state FROM semel_record ORDER BY seq")]

    async def close(self) -> None:
        """Disconnect all users, and end all processes."""
        for user in [*self._users]:
            await self.leave(user)
        for engine in self._engines:
            closed = engine.close()
            if self.subject.asynchronous:
                await closed


from semel.testing.cases import joins as _joins  # noqa: E402 - the cases are functions of the bench above

CASES: Final[Mapping[str, Callable[[JoinBench], Awaitable[None]]]] = {case.__name__: case for case in _joins.ALL}
"""Every case by its name, which says what must hold."""


def names(subject: type[JoinSubject]) -> list[str]:
    """Return the cases for this subject: those whose need it declares."""
    return [name for name in CASES if name not in _joins.NEEDS or _joins.NEEDS[name](subject)]


def run(name: str, subject: JoinSubject) -> None:
    """Run one case on a new subject; an AssertionError names the failure."""
    if not __debug__:
        raise RuntimeError("the suite is made of assertions: run it without -O")

    async def run_case() -> None:
        bench = JoinBench(subject)
        try:
            await CASES[name](bench)
        finally:
            await bench.close()

    try:
        asyncio.run(run_case())
        assert subject.is_free()
    finally:
        subject.close()
