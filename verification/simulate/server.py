"""The simulated store server: its clock, its one writer's gate, and the flows it performs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from semel.core.flow import MakeFlow
from semel.errors import SemelError, StoreUnavailable
from semel.testing.clock import START_US
from verification.simulate.database import AskedStore, Database, Session
from verification.simulate.ledger import Effect, Ledger
from verification.simulate.watch import Watch
from verification.simulate.world import World

Reply = Callable[[Any, BaseException | None], None]
READS: Final = frozenset({"look", "read", "read_steps", "read_operations", "find", "counts", "audit", "identity"})


class Request:
    """One flow that was sent, and how it fared. ``fault`` is what the network does to it, for the coverage."""

    __slots__ = ("asked", "fault", "given_up", "make", "reply", "session", "who")

    def __init__(self, who: str, make: MakeFlow[Any], reply: Reply, fault: str = "") -> None:
        self.who = who
        self.make = make
        self.reply = reply
        self.fault = fault
        self.given_up = False
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.session: Session | None = None


class Connection:
    """What an ATOMIC handler writes on: its effects commit with the record, or not at all."""

    def __init__(self, unit: Transaction, server: Server) -> None:
        self.effects: list[Effect] = []
        self._unit = unit
        self._server = server

    def commit(self) -> None:
        """A commit in the middle, which is a mistake: the record and the effects so far are visible now."""
        self._server.commit(self._unit, early=True)


class Transaction:
    """An open unit on the server."""

    __slots__ = ("connection", "data", "ended", "given_up", "reply", "who")

    def __init__(self, who: str, server: Server, reply: Reply) -> None:
        self.who = who
        self.reply = reply
        self.data: Database | None = None
        self.ended = False
        self.given_up = False
        self.connection = Connection(self, server)


class Server:
    """One database server. ``transactional``: it holds ATOMIC units, so that every flow is a transaction."""

    def __init__(
        self, world: World, data: Database, ledger: Ledger, watch: type[Watch], *, transactional: bool
    ) -> None:
        self._world = world
        self.data = data
        self.store = AskedStore(data.store)
        self.watch = watch(world, ledger, self.clock)
        self._ledger = ledger
        self._transactional = transactional
        self._holder: Transaction | None = None  # of the writer's gate
        self._queue: deque[Request | Transaction] = deque()
        self.offset_us = 0
        self.drift = 0.0
        self.on_steps: Callable[[], None] | None = None  # the recorded steps may be others now

    def clock(self) -> int:
        """The store's time: its own pace, and the changes that the schedule made to it."""
        now = self._world.now
        return START_US + now + int(now * self.drift) + self.offset_us

    # --- flows --------------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        """A flow is here to be performed: at once, or when the writer's gate opens."""
        self.store.asked = request.asked = []
        request.session = Session(self.data, request.make(), self.clock, whole=self._transactional)
        reads = bool(request.asked) and request.asked[0][0] in READS
        if self._holder is not None and not reads:
            self._queue.append(request)
        else:
            self._go_on(request)

    def note_lost(self, request: Request) -> None:
        """Note what a request was about that never arrives."""
        self.store.asked = []
        request.make().close()
        self.watch.note_lost(self.store.asked, self.data.rows())

    def _go_on(self, request: Request) -> None:
        session = request.session
        assert session is not None
        before = self.data.rows()
        self.store.asked = request.asked
        try:
            ended = session.step()
        except SemelError as error:
            request.reply(None, error)
            return
        self.watch.check_step(request.who, request.asked, before, self.data.rows(), session.now)
        if not ended:
            self._world.after(self._world.between(0, 2000), self._go_on, request)
            return
        self.watch.check_reply(request.who, request.asked, before, session.reply, request.fault)
        if self.on_steps is not None:
            self.on_steps()
        request.reply(session.reply, None)

    # --- units --------------------------------------------------------------------------------

    def begin(self, unit: Transaction) -> None:
        """Open a unit as soon as the gate is free."""
        if unit.given_up:
            return
        if self._holder is not None:
            self._queue.append(unit)
            return
        self._holder = unit
        unit.data = self.data.copy()
        unit.reply(unit, None)

    def inside(self, unit: Transaction, request: Request) -> None:
        """Perform a flow in a unit."""
        if unit.ended or unit.data is None:
            request.reply(None, StoreUnavailable("the transaction is gone"))
            return
        self.store.asked = request.asked = []
        session = Session(unit.data, request.make(), self.clock, whole=True)
        before = unit.data.rows()
        try:
            session.step()
        except SemelError as error:
            request.reply(None, error)
            return
        self.watch.check_step(request.who, request.asked, before, unit.data.rows(), session.now)
        self.watch.check_reply(request.who, request.asked, before, session.reply, request.fault)
        request.reply(session.reply, None)

    def commit(self, unit: Transaction, *, early: bool = False) -> bool:
        """Commit a unit. False if it has ended already."""
        if unit.ended or unit.data is None:
            return False
        before = self.data.rows()
        self.data.adopt(unit.data)
        self.watch.check_commit(unit.who, before, self.data.rows(), early=early)
        for effect in unit.connection.effects:
            self._ledger.execute(effect)
        unit.connection.effects.clear()
        if self.on_steps is not None:
            self.on_steps()
        if early:
            unit.data = self.data.copy()
        else:
            self._end(unit)
        return True

    def rollback(self, unit: Transaction) -> None:
        """Undo a unit, also one that never began or is over."""
        unit.given_up = True
        if not unit.ended:
            unit.connection.effects.clear()
            self._end(unit)

    def _end(self, unit: Transaction) -> None:
        unit.ended = True
        if self._holder is not unit:
            return
        self._holder = None
        while self._queue and self._holder is None:
            following = self._queue.popleft()
            if following.given_up:
                continue
            if isinstance(following, Request):
                self._go_on(following)
            else:
                self.begin(following)
