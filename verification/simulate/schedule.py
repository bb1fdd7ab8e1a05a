"""One schedule: workers, clients, an operator and trouble, then calm; and what must hold in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

from semel.core.model import Answer, Effects, Find, Record, Resolution, State
from semel.engine.permit import Permit
from semel.errors import SemelError
from semel.policy import Policy
from semel.resuming.worker import Completer
from verification.simulate import shape as shapes
from verification.simulate.calm import calm
from verification.simulate.client import Call, Client
from verification.simulate.coverage import Counts
from verification.simulate.database import Database, MemoryDatabase, SqliteDatabase
from verification.simulate.handler import run_handler
from verification.simulate.ledger import Execution, Ledger
from verification.simulate.server import Server
from verification.simulate.shape import Plan, Shape
from verification.simulate.step_ledger import StepLedger
from verification.simulate.step_watch import StepWatch, steps_are_noted
from verification.simulate.stepped import Resumption
from verification.simulate.surroundings import surroundings
from verification.simulate.violation import Violated
from verification.simulate.watch import Watch, describe
from verification.simulate.wire import FAULTS, ONCE
from verification.simulate.worker import Worker
from verification.simulate.world import SECOND, World

# The downstream remembers for as long as it promised and a while longer: clocks that are set back, a handler that
# was granted at the last moment and runs to its deadline, a pause. That is what a margin is for.
MEMORY_US: Final = int((shapes.DEDUP_SECONDS + 60) * SECOND)


class Schedule:
    """Everything that one seed decides."""

    def __init__(self, seed: int, shape: Shape, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.plan: Plan = shapes.draw_plan(world, shape)
        atomic = self.plan.policy.effects is Effects.ATOMIC
        data: Database = SqliteDatabase() if self.plan.on_sqlite else MemoryDatabase()
        self.ledger, watch = self._make_watch(world)
        self.server = Server(world, data, self.ledger, watch, transactional=atomic or bool(self.plan.script))
        self.server.drift = self.plan.drift
        self.server.watch.on_lapse = self._check_lapse
        self.workers: list[Worker] = []
        self.calls: list[Call] = []
        self.runs: list[Execution] = []
        self.executions = 0
        self.busy = 0
        self.violated: BaseException | None = None
        self._finals: dict[tuple[bytes, int], bytes] = {}
        self._sent = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._completers: dict[str, Completer] = {}  # by the life of the process that they run in

    def _make_watch(self, world: World) -> tuple[Ledger, type[Watch]]:
        plan = self.plan
        if not plan.script:
            return Ledger(world, MEMORY_US), Watch
        return StepLedger(world, MEMORY_US, plan.script, deduplicates=plan.deduplicates), StepWatch

    @property
    def coverage(self) -> Counts:
        """Which (state × event) it has reached."""
        return self.server.watch.coverage

    def perform(self) -> None:
        """Run it to its end. Raises Violated at the first thing that must not happen."""
        before = asyncio._get_running_loop()
        try:
            with surroundings(self.world), self._noting():
                self._start_workers()
                self._storm()
                calm(self)
        finally:
            for worker in self.workers:
                worker.loop.bury()
            self.server.data.close()
            asyncio._set_running_loop(before)

    def _noting(self) -> AbstractContextManager[None]:
        if not self.plan.script:
            return nullcontext()
        undeclared = self.plan.undeclared is not None
        return steps_are_noted(self.server, faultless=not self.plan.trouble, undeclared=undeclared)

    def _start_workers(self) -> None:
        plan = self.plan
        faults = ONCE if plan.script else FAULTS
        for n in range(plan.workers):
            name = f"worker-{n + 1}"
            self.workers.append(Worker(self.world, self.server, name, plan.trouble, faults, coalesces=plan.coalesces))

    def policy_of(self, worker: Worker) -> Policy:
        """Return the policy under which this worker's version declares the operation."""
        undeclared = self.plan.undeclared
        return undeclared if undeclared is not None and self.workers.index(worker) % 2 else self.plan.policy

    # --- trouble ------------------------------------------------------------------------------

    def _storm(self) -> None:
        world, plan = self.world, self.plan
        if world.tracing:
            world.tell("schedule", f"{plan}")
        for worker in self.workers:
            worker.wire.on_send = self._on_send(worker)
        for n in range(plan.clients):
            Client(self, f"client-{n + 1}", n % plan.keys)
        for _ in range(plan.reaps):
            world.after(world.between(0, 8 * SECOND), self._reap)
        for _ in range(plan.completes):
            world.after(world.between(1 * SECOND, 12 * SECOND), self._complete)
        for us in plan.jumps:
            world.after(world.between(0, 6 * SECOND), self._jump, us)
        if plan.resolves:
            for _ in range(2):
                world.after(world.between(3 * SECOND, 20 * SECOND), self.operate)
        if world.happens(0.3):
            world.after(world.between(0, 30 * SECOND), self.purge)
        self.run(4000)

    def run(self, seconds: float) -> None:
        """Run for so long, or until it is stopped. Raises what was found meanwhile."""
        self.world.run(seconds)
        if self.violated is not None:
            raise self.violated

    def _on_send(self, worker: Worker) -> Callable[[int], None]:
        def count_send(_: int) -> None:
            self._sent += 1
            what = self.plan.crashes.pop(self._sent, None)
            if what is None:
                return
            if what == "pause":
                self.world.after(0, self._pause, worker)
            else:
                self.world.after(0 if what == "crash before" else self.world.between(0, 5000), self._crash, worker)

        return count_send

    def _ids(self, worker: Worker) -> set[bytes]:
        return {call.id for call in self.calls if call.loop is worker.loop and call.in_flight}

    def _crash(self, worker: Worker) -> None:
        if not worker.loop.alive:
            return
        self.server.watch.count_all(self.server.data.rows(), self._ids(worker), "crash")
        worker.crash()
        for call in self.calls:
            if call.loop is worker.loop and not call.over:
                call.lose_connection()
        self.world.after(self.world.between(0, 2 * SECOND), self._restart, worker)

    def _restart(self, worker: Worker) -> None:
        if not worker.loop.alive:
            worker.start()
            worker.wire.on_send = self._on_send(worker)

    def _pause(self, worker: Worker) -> None:
        self.server.watch.count_all(self.server.data.rows(), self._ids(worker), "pause")
        worker.pause(int(self.world.draw() * 3.5 * self.plan.policy.lease_seconds * SECOND))

    async def strike(self, worker: Worker, what: str) -> None:
        """A handler's own process ends, or stops, at this very point."""
        self.world.after(0, self._crash if what == "crash" else self._pause, worker)
        await asyncio.sleep(0.001)

    def _jump(self, us: int) -> None:
        if self.world.tracing:
            self.world.tell("store", f"its clock is set {'on' if us > 0 else 'back'} by {abs(us) / SECOND:g} s")
        self.server.offset_us += us

    # --- recoverers ---------------------------------------------------------------------------

    def _alive(self) -> Worker | None:
        alive = [worker for worker in self.workers if worker.loop.alive]
        return self.world.pick(alive) if alive else None

    def background(self, worker: Worker, work: Callable[[], Awaitable[object]]) -> None:
        self._tasks.append(worker.loop.create_task(self._harmless(work)))

    async def _harmless(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except SemelError:
            return  # the network's fault; it is tried again another time

    def _reap(self) -> None:
        worker = self._alive()
        if worker is not None:
            self.background(worker, worker.reaper.run_once)

    def _complete(self) -> None:
        worker = self._alive()
        if worker is not None:
            self.complete(worker)

    def complete(self, worker: Worker, *, rested: bool = False) -> None:
        """A completer looks. ``rested``: one that has nothing to wait for."""
        if rested or worker.who not in self._completers:
            completer = Completer(worker.engine)

            async def resume(permit: Permit, request: bytes) -> Answer:
                return await run_handler(self, Resumption(worker, request[0]), permit)

            completer.register("pay", self.plan.policy, resume)
            self._completers[worker.who] = completer
        self.background(worker, self._completers[worker.who].run_once)

    def purge(self) -> None:
        """The hourly purge comes by."""
        worker = self._alive()
        if worker is not None:
            self.background(worker, worker.reaper.purge)

    def operate(self) -> None:
        """An operator comes by."""
        worker = self._alive()
        if worker is not None:
            self.background(worker, lambda: self._resolve(worker))

    async def _resolve(self, worker: Worker) -> None:
        """An operator looks for unknown outcomes, asks the provider, and settles them by the truth."""
        engine = worker.engine
        page = await engine.perform("find", lambda: engine.store.find(Find((State.UNKNOWN, State.PROCESSING))))
        for row in page.records:
            if row.state == State.UNKNOWN or row.lease_until <= page.now:
                resolution = self._truth(row)
                if resolution is not None:
                    reply = await engine.perform("resolve", partial(engine.store.resolve, resolution))
                    if self.world.tracing:
                        self.world.tell("operator", f"happened={resolution.happened}: {reply}")

    def _truth(self, row: Record) -> Resolution | None:
        """What happened, as the provider says; None while it may still happen."""
        happened = self.ledger.has_happened(row.id)
        if self.plan.script:
            return self._truth_of_step(row)
        if not happened and (self.ledger.on_their_way.get(row.id) or self._may_happen(row.id)):
            return None
        answer = None
        if happened and self.world.happens(0.7):
            life = self.ledger.life(row.id)
            answer = Answer(201, (), b"%s:%d:%d:0" % (row.id.hex().encode(), life, row.fingerprint[0]))
        return Resolution(row.id, row.fence, happened, answer, "olga", "asked the provider")

    def _truth_of_step(self, row: Record) -> Resolution | None:
        """The same for the step that is in doubt: where it happened, the operator does the rest by hand."""
        ledger, name = self.ledger, (row.doubt or "").removeprefix("step:")
        assert isinstance(ledger, StepLedger)
        if ledger.on_their_way.get(row.id) or self._may_happen(row.id):
            return None
        if self.plan.undeclared is not None and not (row.doubt or "").startswith("step:"):
            return Resolution(row.id, row.fence, False, None, "olga", "no step had begun")  # of a run without steps
        life = ledger.life(row.id)
        effects = ledger.account(row.id, life, name).effects
        resolution = Resolution(row.id, row.fence, bool(effects), None, "olga", "asked the provider", step=name)
        if not effects:
            return resolution
        if self.world.happens(0.7):
            return resolution._replace(result=b"%d" % effects[0])  # of the step: the execution continues
        ledger.completed_by_hand(row.id)
        return resolution._replace(
            answer=Answer(201, (), b"%s:%d:%d:0" % (row.id.hex().encode(), life, row.fingerprint[0]))
        )

    def _may_happen(self, id: bytes) -> bool:
        """Whether some process, paused or not, still holds a permit for it, or is on its way to one."""
        return any(call.id == id and call.in_flight for call in self.calls) or any(
            permit.grant.id == id
            for worker in self.workers
            if worker.loop.alive
            for permit in worker.engine.core.live.values()
        )

    # --- the end of trouble -------------------------------------------------------------------

    def client_ends(self) -> None:
        """Note that one client has what it wanted, or gives up."""
        self.busy -= 1
        if self.busy == 0:
            self.world.stop()

    def _check_lapse(self, row: Record) -> None:
        """Check a lapse: a holder that nothing hindered should have renewed its lease."""
        plan = self.plan
        if plan.trouble or plan.jumps or plan.drift or row.lease_until >= row.deadline_at:
            return
        if any(part.kind == "local" for part in plan.script):
            return  # an open unit holds the writer's gate, and renewals wait for it
        for worker in self.workers:
            if worker.who == row.holder and worker.loop.alive and not worker.was_paused:
                permit = worker.engine.core.live.get(row.nonce)
                if permit is not None and not permit.settling:
                    raise Violated("I6 progress", f"the lease of a living holder was not renewed: {describe(row)}")

    # --- judging ------------------------------------------------------------------------------

    def final_answer(self, client: str, id: bytes, life: int, answer: Answer) -> None:
        """A client was given a final answer: it must be the first one, and true."""
        first = self._finals.setdefault((id, life), answer.body)
        if first != answer.body:
            raise Violated("I2 one answer", f"{client} was given another final answer than the first client")
        if answer.status == 201 and not self.ledger.has_happened(id, life):
            raise Violated("I2 one answer", f"{client} was told of success, and nothing happened")
        if answer.status == 409 and self.ledger.has_happened(id, life):
            raise Violated("I2 one answer", f"{client} was refused for good, and yet it happened")

    def judge(self, check: Callable[[Any], None], seen: Any) -> None:
        """Run a check inside a loop's callback, where an exception would be lost."""
        try:
            check(seen)
        except BaseException as error:  # noqa: BLE001 - the schedule raises it
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the schedule with a violation."""
        if self.violated is None:
            self.violated = error
        self.world.stop()
