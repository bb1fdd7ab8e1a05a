"""The steps of an ATOMIC unit on PostgreSQL, for both libraries: claim, settle with COMMIT, roll back.

It is written once, as generators that yield each call that waits for the server. A thread makes the calls, an event
loop awaits them; a library's unit says how each is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from semel.core.flow import Ask, MakeFlow
from semel.stores.postgres.errors import is_conflict, of_a_trigger
from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg.driver import CONFLICTS_MAX
from semel.stores.postgres.psycopg.pipeline import is_outdated
from semel.stores.sql.statements import Query

T = TypeVar("T")
C = TypeVar("C")

Talk = Generator[Callable[[], Any], Any, T]
"""What a unit does, in either colour: it yields each call that waits for the server, and is sent the call's result."""
Errors = tuple[type[BaseException], ...]


class Library(NamedTuple):
    """How a client library reports its errors."""

    errors: Errors  # raised by a call that the server refuses or does not answer
    not_own: type[BaseException]  # the settle's: the claim is not this transaction's own
    told: Callable[[Any], BaseException]
    is_lost: Callable[[BaseException], bool]


class UnitTalk(Generic[C]):
    """One transaction. A library's class says how its calls are made; a shell makes them, or awaits them."""

    _library: ClassVar[Library]
    _notices: Notices  # the server's notices
    _asking: Callable[[Query], Talk[list[Any]]]
    _begin_again: Callable[[], Any]  # roll back, so that the claim is made again, on a new snapshot
    _taking_back: Callable[[], Talk[None]]  # from the handler; HandlerRefused where it left the connection in use
    _settle_and_commit: Callable[[Query], Any]
    _undoing: Callable[[], Talk[bool]]  # roll back; whether the connection may be used again
    _give_back: Callable[[bool], Any]  # to the pool if it is sound, else to be dropped

    def __init__(self, pool: Any, connection: C) -> None:
        self._connection: Any = connection
        self._pool = pool
        self._pid = os.getpid()
        self._ended = False

    def _performing(self, make: MakeFlow[T]) -> Talk[T]:
        """Run a flow inside the transaction, again after a conflict as long as no handler has written in it."""
        conflicts = 0
        while True:
            flow = make()
            try:
                needed = next(flow)
                while True:
                    assert type(needed) is Query
                    needed = flow.send((yield from self._asking(needed)))
            except StopIteration as stop:
                result: T = stop.value
                return result
            except self._library.errors as error:
                conflicts += 1
                again = is_conflict(error) or is_outdated(error)
                if self._connection.handed_out or not again or conflicts > CONFLICTS_MAX:
                    raise self._library.told(error) from error
            try:
                yield self._begin_again  # the claim names its nonce, so it may be made again
            except self._library.errors as error:
                raise self._library.told(error) from error

    def _settling(self, needed: Ask[Any]) -> Talk[bool]:
        assert isinstance(needed, Query)
        if self._ended or self._pid != os.getpid():  # a forked handler's: as in ``rolling_back``
            return False
        yield from self._taking_back()
        try:
            yield lambda: self._settle_and_commit(needed)
        except self._library.errors as error:
            if self._library.is_lost(error):
                yield from self._ending(sound=False)
            else:
                yield from self._rolling_back()
            refused = of_a_trigger(error)
            if refused is None and isinstance(error, self._library.not_own):
                return False
            raise refused or self._library.told(error) from error
        notices = self._notices
        yield from self._ending(sound=not notices.unreplicated)
        notices.check()
        return True

    def _rolling_back(self) -> Talk[None]:
        if self._ended:
            return
        if self._pid != os.getpid():  # a forked handler must not use its parent's connection
            self._ended = True
            return
        yield from self._ending(sound=(yield from self._undoing()))

    def _ending(self, *, sound: bool) -> Talk[None]:
        if not self._ended:
            self._ended = True
            yield lambda: self._give_back(sound)


def drive(talk: Talk[T]) -> T:
    """Make the calls, one after the other."""
    try:
        call = next(talk)
        while True:
            try:
                reply = call()
            except BaseException as error:  # noqa: BLE001 - the talk's to handle, or it comes out of it again
                call = talk.throw(error)
            else:
                call = talk.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def drive_async(talk: Talk[T]) -> T:
    """Await the calls, one after the other."""
    try:
        call = next(talk)
        while True:
            try:
                reply = await call()
            except BaseException as error:  # noqa: BLE001 - the talk's to handle, or it comes out of it again
                call = talk.throw(error)
            else:
                call = talk.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result
