"""The network between a worker and the store: it delays, loses, repeats and reorders, by chance.

``Wire`` is the driver that the real engine is given. What a driver promises is kept: StoreUnavailable only where
nothing was and will be written, StoreTimeout if that is unknown. A cancelled caller stops no request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from semel.core.flow import MakeFlow
from semel.errors import EarlyCommit, StoreTimeout, StoreUnavailable
from verification.simulate.loop import WorkerLoop
from verification.simulate.server import Request, Server, Transaction
from verification.simulate.world import World

T = TypeVar("T")
FAULTS: Final = ("refused", "lost request", "late request", "lost reply", "twice", "slow")
# A list of steps is written as a whole: one that came twice would undo what came between. No connection to a database
# delivers a statement twice, and no driver sends one again that it has sent.
ONCE: Final = tuple(fault for fault in FAULTS if fault != "twice")


class Wire:
    """One worker's connection. ``trouble`` is how likely a request meets a fault."""

    def __init__(self, world: World, server: Server, loop: WorkerLoop, who: str) -> None:
        self._world = world
        self._server = server
        self._loop = loop
        self.who = who
        self.trouble = 0.0
        self.patience_seconds = 5.0
        self.coalesces = False  # what queues up while a batch is out is the next batch, as with a server's driver
        self.sent = 0
        self.units: list[Transaction] = []
        self.faults: tuple[str, ...] = FAULTS
        self.on_send: Callable[[int], None] | None = None

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Send a flow to the server and wait for its reply, or for as long as the driver's patience lasts."""
        fault = self._fault(self.faults)
        reply: T = await self._send(Request(self.who, make, _nobody, fault), self._server.arrive, fault)
        return reply

    async def run_uncut(self, make: MakeFlow[T], waited: float) -> T:
        """What the engine's coalescer calls, from a task that is never cancelled."""
        return await self.run_async(make)

    async def begin_async(self) -> Any:
        """Open an ATOMIC unit."""
        unit = Transaction(self.who, self._server, _nobody)
        self.units.append(unit)
        try:
            await self._send(unit, self._server.begin, self._fault(("refused", "slow")))
        except BaseException:
            self._server.rollback(unit)
            raise
        return Unit(unit, self, self._server)

    async def close_async(self) -> None:
        """Nothing to close."""

    def _fault(self, faults: tuple[str, ...]) -> str:
        world = self._world
        if not self._loop.alive:
            raise GeneratorExit  # what a dying process still sends is lost
        self.sent += 1
        if self.on_send is not None:
            self.on_send(self.sent)
        return world.pick(faults) if self.trouble and world.draw() < self.trouble else ""

    async def _send(self, request: Any, arrive: Callable[[Any], None], fault: str) -> Any:
        world = self._world
        future = self._loop.create_future()
        patience = world.between(100_000, 2_000_000) if fault else 0

        def reply(value: Any, error: BaseException | None) -> None:
            if fault != "lost reply":
                delay = world.between(0, 3000) if fault != "slow" else world.between(0, 2_500_000)
                world.after(delay, self._deliver, future, value, error)

        request.reply = reply
        there = world.between(0, 3000)
        match fault:
            case "":
                world.after(there, arrive, request)
            case "refused":
                world.after(there, self._deliver, future, None, StoreUnavailable("simulated: the store refuses"))
            case "lost request":
                self._server.note_lost(request)
                world.after(patience, self._deliver, future, None, StoreTimeout("simulated: no reply"))
            case "late request":
                world.after(patience, self._deliver, future, None, StoreTimeout("simulated: no reply yet"))
                world.after(patience + world.between(1, 3_000_000), arrive, request)
            case "lost reply":
                world.after(there, arrive, request)
                world.after(patience, self._deliver, future, None, StoreTimeout("simulated: the reply was lost"))
            case "twice":
                world.after(there, arrive, request)
                again = Request(self.who, request.make, _nobody, fault)
                world.after(there + world.between(1, 2_000_000), arrive, again)
            case _:
                world.after(world.between(0, 1_500_000), arrive, request)
                world.after(2_000_000, self._lose_patience, request, future)
        if world.tracing and fault:
            world.tell(self.who, f"a request meets the network's fault: {fault}")
        return await future

    def _lose_patience(self, request: Any, future: Any) -> None:
        if not future.done():
            # Callers that still queue for the gate leave the queue; what may have begun is not known yet.
            self._deliver(future, None, StoreTimeout("simulated: the store is too slow"))

    def _deliver(self, future: Any, value: Any, error: BaseException | None) -> None:
        if self._loop.alive and not future.done():
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def cut(self) -> None:
        """The process is gone: the server sees it, and undoes its open units."""
        for unit in self.units:
            self._world.after(self._world.between(0, 50_000), self._server.rollback, unit)


class Unit:
    """An ATOMIC unit as the engine holds it."""

    def __init__(self, unit: Transaction, wire: Wire, server: Server) -> None:
        self._unit = unit
        self._wire = wire
        self._server = server

    @property
    def connection(self) -> Any:
        return self._unit.connection

    async def run_async(self, make: MakeFlow[T]) -> T:
        fault = self._wire._fault(("refused", "lost reply"))
        inside: Callable[[Any], None] = lambda request: self._server.inside(self._unit, request)  # noqa: E731
        reply: T = await self._wire._send(Request(self._wire.who, make, _nobody, fault), inside, fault)
        return reply

    def hand_out(self) -> Any:
        return self._unit.connection

    async def commit_async(self) -> None:
        """Over in any case once it returns or raises: a commit of this process cannot come later."""
        fault = self._wire._fault(("lost request", "lost reply"))
        if fault == "lost request":
            self._server.rollback(self._unit)
            raise StoreTimeout("simulated: the commit was not answered")

        def commit(request: Request) -> None:
            request.reply(self._server.commit(self._unit), None)

        ended = await self._wire._send(Request(self._wire.who, _no_flow, _nobody, fault), commit, fault)
        if not ended:
            raise EarlyCommit("the transaction was over before Semel could commit it")

    async def rollback_async(self) -> None:
        self._server.rollback(self._unit)


def _nobody(value: Any, error: BaseException | None) -> None:
    return None


def _no_flow() -> Any:
    raise AssertionError("a commit is no flow")
