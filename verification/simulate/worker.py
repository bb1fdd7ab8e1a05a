"""A simulated process: its loop, its wire and the real engine on both. It can crash, pause and start again."""

from __future__ import annotations

from typing import Any, cast

from semel.engine import async_engine as aio
from semel.retention import worker as reaper
from semel.stores.backend import Backend
from semel.telemetry import Silence
from verification.simulate.loop import WorkerLoop
from verification.simulate.server import Server
from verification.simulate.wire import Wire
from verification.simulate.world import World

CONFIRM_SECONDS = 2.0


def _no_threads() -> Any:
    raise AssertionError("the simulator has no threads")


class Worker:
    """One process of the application. ``life`` counts its starts."""

    def __init__(
        self, world: World, server: Server, name: str, trouble: float, faults: tuple[str, ...], *, coalesces: bool
    ) -> None:
        self._world = world
        self._server = server
        self.name = name
        self.life = 0
        self.trouble = trouble
        self.faults = faults
        self.coalesces = coalesces
        self.start()

    def start(self) -> None:
        """A new process: nothing is left of the former one."""
        world = self._world
        self.life += 1
        self.was_paused = False
        self.who = f"{self.name}.{self.life}"
        self.loop = WorkerLoop(world, world.between(0, 1_000_000_000))
        self.wire = Wire(world, self._server, self.loop, self.who)
        self.wire.trouble = self.trouble
        self.wire.faults = self.faults
        self.wire.coalesces = self.coalesces
        backend = Backend(
            "simulated", cast("Any", self._server.store), self.wire, unit=_no_threads, unit_async=self.wire.begin_async
        )
        # Without an observer each unknown outcome would be a warning in a log: one or two a schedule.
        self.engine = aio.AsyncEngine(backend, observer=Silence(), confirm_seconds=CONFIRM_SECONDS)
        self.engine.core.holder = self.who
        self.engine.core.checked = True  # the store is what the schedule says: nothing is to be learnt of it
        self.reaper = reaper.Reaper(self.engine)
        world.loops.append(self.loop)
        if world.tracing and self.life > 1:
            world.tell(self.who, "starts again")

    def crash(self) -> None:
        """Everything of this process vanishes at once."""
        if not self.loop.alive:
            return
        if self._world.tracing:
            self._world.tell(self.who, "CRASHES")
        self._world.loops.remove(self.loop)
        self.loop.bury()
        self.wire.cut()

    def pause(self, us: int) -> None:
        """Stop the whole process for a while, as SIGSTOP does: its clock continues."""
        if not self.loop.alive or self.loop.paused:
            return
        if self._world.tracing:
            self._world.tell(self.who, f"is paused for {us / 1_000_000:.3f} s")
        self.loop.paused = self.was_paused = True
        self._world.after(us, self._resume, self.loop)

    def _resume(self, loop: WorkerLoop) -> None:
        if loop.alive and loop.paused:
            loop.paused = False
            if self._world.tracing:
                self._world.tell(self.who, "goes on")

    def calm(self) -> None:
        """No more trouble: a dead process is started, a paused one continues, the network works."""
        self.trouble = 0.0
        self.wire.trouble = 0.0
        self.wire.on_send = None
        if not self.loop.alive:
            self.start()
        self._resume(self.loop)
