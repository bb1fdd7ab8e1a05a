"""What a handler with steps does in one run: its script, step by step, and how one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.core.model import Answer
from semel.engine.permit import Permit
from semel.errors import NothingHappened, StoreTimeout
from verification.simulate.ledger import Execution
from verification.simulate.script import Part
from verification.simulate.step_ledger import StepLedger
from verification.simulate.step_watch import StepWatch
from verification.simulate.violation import Violated

if TYPE_CHECKING:
    from verification.simulate.schedule import Schedule
    from verification.simulate.worker import Worker

IN_A_STEP: Final = (
    "nothing happened",
    "raise before",
    "raise after",
    "lost call",
    "lost call",
    "hang",
    "crash before",
    "crash after",
    "pause before",
    "pause after",
)
BETWEEN: Final = ("raise", "crash", "pause", "hang", "429", "500")


class StepFailed(Exception):
    """What a step's call raises that proves nothing."""


@dataclass(slots=True)
class Resumption:
    """A run without its client, as the completer begins it: what :class:`Call` is for a client's."""

    worker: Worker
    payload: int
    run: Execution | None = None


async def run_steps(schedule: Schedule, worker: Worker, permit: Permit, run: Execution) -> Answer | None:
    """The script; None where all of it was done, or the answer that the handler ends with instead."""
    world = schedule.world
    script, trouble = schedule.plan.script, schedule.plan.handler_trouble
    fails_at = int(world.draw() * (len(script) + 1)) if world.happens(trouble) else -1
    inside = world.happens(0.6)
    if world.tracing and fails_at >= 0:
        world.tell(run.worker, f"handler will have trouble {'in' if inside else 'before'} step {fails_at + 1}: {run}")
    for place, part in enumerate((*script, None)):
        troubled = place == fails_at
        if troubled and (part is None or not inside):
            ended = await _between(schedule, worker, run)
            if ended is not None:
                return ended
        if part is not None:
            end = world.pick(IN_A_STEP) if troubled and inside else ""
            try:
                await _step(schedule, worker, permit, run, part, end)
            except StoreTimeout:
                if world.happens(0.5):
                    raise
                await _step(schedule, worker, permit, run, part, "")  # it asks again
        if world.happens(0.2):
            await asyncio.sleep(world.draw() * 0.2)
    return None


async def _between(schedule: Schedule, worker: Worker, run: Execution) -> Answer | None:
    end = schedule.world.pick(BETWEEN)
    match end:
        case "raise":
            raise StepFailed("between two steps")
        case "crash" | "pause":
            await schedule.strike(worker, end)
        case "hang":
            await _hang(schedule)
        case _:
            return Answer(int(end), (), b"%s:%d:%d:%d" % (run.id.hex().encode(), run.life, run.payload, run.number))
    return None


async def _hang(schedule: Schedule) -> None:
    await asyncio.sleep(schedule.plan.policy.lease_seconds * (1 + 4 * schedule.world.draw()))


async def _step(schedule: Schedule, worker: Worker, permit: Permit, run: Execution, part: Part, end: str) -> None:
    ledger, watch = _of(schedule)

    async def call_once() -> int:
        if not watch.has_started(run.id, run.fence, part.name):
            raise Violated("I4 no blind rerun", f"step {part.name} is called before its start is recorded, by {run}")
        return await _call(schedule, worker, run, part, end, lambda: _send(schedule, permit, run, part, end))

    async def write_once(connection: Any) -> int:
        effect = ledger.effect(run, part, permit.key_for(part.name))

        async def write() -> int:
            connection.effects.append(effect)
            return effect.number

        return await _call(schedule, worker, run, part, end, write)

    if part.kind == "local":
        number = await permit.local_step(part.name, _telling(schedule, write_once))
    else:
        number = await permit.step(part.name, _telling(schedule, call_once), repeat=part.repeats)
    ledger.check_result(run, part, number, superseded=watch.is_superseded(run.id, run.fence))


def _telling(schedule: Schedule, call: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    """A violation inside a call is the schedule's, before the engine takes it for the handler's own."""

    async def tell_and_call(*given: Any) -> int:
        try:
            return await call(*given)
        except Violated as violated:
            schedule.fail(violated)
            raise

    return tell_and_call


async def _call(
    schedule: Schedule, worker: Worker, run: Execution, part: Part, end: str, effect: Callable[[], Awaitable[int]]
) -> int:
    """A step's call: its effect, and what goes wrong before or after it."""
    ledger, watch = _of(schedule)
    ledger.begin(run, part, superseded=watch.is_superseded(run.id, run.fence))
    match end:
        case "nothing happened":
            ledger.note_proof(run, part)
            raise NothingHappened("simulated")
        case "raise before":
            raise StepFailed("before its effect")
        case "hang":
            await _hang(schedule)
        case "crash before" | "pause before":
            await schedule.strike(worker, end.removesuffix(" before"))
        case _:
            pass
    number = await effect()
    match end:
        case "raise after":
            raise StepFailed("after its effect")
        case "crash after" | "pause after":
            await schedule.strike(worker, end.removesuffix(" after"))
        case _:
            pass
    return number


async def _send(schedule: Schedule, permit: Permit, run: Execution, part: Part, end: str) -> int:
    """A call of the provider, which may be slow, and whose reply may be lost."""
    world = schedule.world
    ledger, _ = _of(schedule)
    effect = ledger.effect(run, part, permit.key_for(part.name))
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def arrive() -> None:
        ledger.on_their_way[run.id] -= 1
        number = ledger.execute(effect)
        world.after(world.between(0, 5000), lambda: None if done.done() else done.set_result(number))

    ledger.on_their_way[run.id] = ledger.on_their_way.get(run.id, 0) + 1
    world.after(world.between(0, 5000) if world.happens(0.9) else world.between(0, 1_500_000), arrive)
    if end == "lost call":
        raise StepFailed("the provider did not answer in time")
    return await done


def _of(schedule: Schedule) -> tuple[StepLedger, StepWatch]:
    ledger, watch = schedule.ledger, schedule.server.watch
    assert isinstance(ledger, StepLedger)
    assert isinstance(watch, StepWatch)
    return ledger, watch
