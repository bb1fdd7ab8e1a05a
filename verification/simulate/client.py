"""Clients: they ask, lose patience, ask again with the same key, sometimes twice at once, sometimes for something else.

It checks their answers against what really happened, without looking into the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.core.identity import record_id, uuid_bytes
from semel.engine.result import Result
from semel.errors import (
    EarlyCommit,
    InProgressError,
    KeyExpiredError,
    KeyReusedError,
    NothingHappened,
    NotReplayableError,
    OutcomeUnknownError,
    RecordUnreadableError,
    StepInDoubt,
    StoreTimeout,
    StoreUnavailable,
    SupersededError,
)
from verification.simulate.handler import Broken, run_handler
from verification.simulate.shape import command
from verification.simulate.stepped import StepFailed
from verification.simulate.violation import Violated

if TYPE_CHECKING:
    from semel.core.model import Answer
    from semel.engine.permit import Permit
    from verification.simulate.ledger import Execution
    from verification.simulate.schedule import Schedule
    from verification.simulate.worker import Worker


def _unheard(call: object) -> None:
    return None


PURGE_GRACE_US: Final = 600_000_000
_EXPECTED: Final = (InProgressError, KeyExpiredError, NotReplayableError, OutcomeUnknownError, RecordUnreadableError)


class Call:
    """One request of one client to one worker."""

    def __init__(self, schedule: Schedule, client: str, worker: Worker, key: int, payload: int) -> None:
        self.client = client
        self.worker = worker
        self.loop = worker.loop
        self.key = key
        self.payload = payload
        self.command = command(key, payload, schedule.policy_of(worker))
        self.id = record_id(self.command.scope, self.command.key)
        self.run: Execution | None = None
        self.error: Exception | None = None
        self.task: asyncio.Task[Result] | None = None
        self.over = False
        self.final = False
        self._ended: Callable[[Call], object] = _unheard
        self._schedule = schedule

    def start(self, wait_seconds: float, ended: Callable[[Call], object]) -> None:
        """Let the worker begin with it; ``ended(call)`` is called at the answer, or when the connection is gone."""
        schedule = self._schedule

        def handler(permit: Permit) -> Any:
            return run_handler(schedule, self, permit)

        if schedule.world.tracing:
            schedule.world.tell(self.client, f"asks {self.worker.who} for key {self.key}, payload {self.payload}")
        self.task = self.loop.create_task(self.worker.engine.run(self.command, handler, wait_seconds=wait_seconds))

        self._ended = ended
        self.task.add_done_callback(self._check_end)

    def _check_end(self, task: asyncio.Task[Result]) -> None:
        self.over = True
        self._check(task)
        self._ended(self)

    def lose_connection(self) -> None:
        """End the call: its worker has crashed, and the connection is lost."""
        self.over = True
        self._tell("loses the connection")
        self._ended(self)

    @property
    def in_flight(self) -> bool:
        """Whether its worker may still do something for it."""
        return self.loop.alive and (not self.over or (self.run is not None and self.run.running))

    def _check(self, task: asyncio.Task[Result]) -> None:
        try:
            result = task.result()
        except asyncio.CancelledError:
            self._tell("was cancelled")
        except Violated as violated:
            self._schedule.fail(violated)
        except Exception as error:  # noqa: BLE001 - every kind of error is looked at
            self.error = error
            self._tell(f"is told {type(error).__name__}: {error}")
            self._schedule.judge(self._check_refusal, error)
        else:
            self._tell(f"gets {result.answer.status}{' (replayed)' if result.replayed else ''}")
            self._schedule.judge(self._check_answer, result)

    def _tell(self, what: str) -> None:
        if self._schedule.world.tracing:
            self._schedule.world.tell(self.client, what)

    # --- what it got --------------------------------------------------------------------------

    def _check_answer(self, result: Result) -> None:
        answer = result.answer
        self._own(result.operation_id)
        id, life, payload, _ = answer.body.split(b":")
        if id.decode() != self.id.hex():
            raise Violated("I5 no leak", f"{self.client} was given the answer of another scope or key")
        if int(payload) != self.payload:
            raise Violated("I7 loud misuse", f"{self.client} was given the answer of another payload")
        ran = self.run is not None
        if not result.replayed and (not ran or not answer.body.endswith(b":%d" % self._number())):
            raise Violated("I2 one answer", f"{self.client} was given a first answer that its handler did not make")
        if not self._is_final(answer):
            return
        self.final = True
        self._schedule.final_answer(self.client, self.id, int(life), answer)

    def _number(self) -> int:
        assert self.run is not None
        return self.run.number

    def _is_final(self, answer: Answer) -> bool:
        status = answer.status
        return status in (201, 409) or (status == 500 and self.command.policy.on_error == "replay")

    def _check_refusal(self, error: Exception) -> None:
        seen = f"{self.client} was told {type(error).__name__}"
        if isinstance(error, KeyReusedError):
            self.final = True
            if len({call.payload for call in self._schedule.calls if call.id == self.id}) < 2:
                raise Violated("I7 loud misuse", f"{seen}, but nobody has used the key for anything else")
        elif isinstance(error, _EXPECTED):
            self._own(error.operation_id)
        elif isinstance(error, StoreUnavailable):
            run = self.run  # of an ATOMIC one nothing remains, unless its handler commits
            if run is not None and run.done and not run.committed_early:
                raise Violated("I2 one answer", f"{seen}: 'nothing ran', but its handler ran: {run}")
        elif isinstance(error, Broken | NothingHappened | TimeoutError | StepFailed | StepInDoubt):
            if self.run is None:
                raise Violated("I2 one answer", f"{seen}, but its handler never ran")
        elif not isinstance(error, StoreTimeout | SupersededError | EarlyCommit):
            raise error

    def _own(self, operation_id: str | None) -> None:
        raw = uuid_bytes(operation_id) if operation_id else None
        owner = self._schedule.server.watch.operations.get(raw) if raw is not None else None
        if owner is not None and owner != self.id:
            raise Violated("I5 no leak", f"{self.client} was told the operation of another scope or key")


class Client:
    """One caller with one intent, which it repeats until it has a final answer or gives up."""

    def __init__(self, schedule: Schedule, name: str, key: int) -> None:
        self._schedule = schedule
        self.name = name
        world = schedule.world
        self.key = key
        self._payload = 1 + world.happens(0.15)
        self._left = schedule.plan.attempts
        self._waits = schedule.plan.idle_us
        schedule.busy += 1
        world.after(world.pick((0, 0, 2000, 300_000)), self._ask)

    def _ask(self) -> None:
        schedule, world = self._schedule, self._schedule.world
        worker = world.pick(schedule.workers)
        self._left -= 1
        if not worker.loop.alive:
            self._again(None)
            return
        payload = 3 - self._payload if world.happens(0.08) else self._payload
        call = Call(schedule, self.name, worker, self.key, payload)
        schedule.calls.append(call)
        self._current = call
        call.start(world.pick((0.0, 0.0, 0.1, 0.6)), self._again)
        world.after(world.pick((50_000, 400_000, 5_000_000)), self._lose_patience, call)
        if world.happens(0.15):  # a double click
            twin = Call(schedule, f"{self.name}+", world.pick(schedule.workers), self.key, payload)
            if twin.loop.alive:
                schedule.calls.append(twin)
                twin.start(world.pick((0.0, 0.3)), _unheard)

    def _lose_patience(self, call: Call) -> None:
        if call.over or call is not self._current:
            return
        if self._schedule.world.tracing:
            self._schedule.world.tell(self.name, "loses patience")
        if call.loop.alive and call.task is not None and self._schedule.world.happens(0.4):
            call.task.cancel()
        self._current = None
        self._again(None)

    def _again(self, call: Call | None) -> None:
        if call is not None:
            if call is not self._current:
                return  # it has lost patience with that one
            self._current = None
        schedule, world = self._schedule, self._schedule.world
        if self._left <= 0 and self._waits:
            pause, self._waits, self._left = self._waits[0], self._waits[1:], 1
        elif self._left <= 0 or (call is not None and call.final and world.happens(0.5)):
            if not self._waits:
                schedule.client_ends()
                return
            pause, self._waits, self._left = self._waits[0], self._waits[1:], 1
        else:
            pause = world.pick((0, 20_000, 500_000, 2_500_000))
        if pause > PURGE_GRACE_US:
            world.after(pause - world.between(0, 5_000_000), schedule.purge)
        world.after(pause, self._ask)

    _current: Call | None = None
