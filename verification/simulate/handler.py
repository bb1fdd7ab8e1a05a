"""What a handler does in one run: its effect, and how it ends. Drawn when it starts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from semel.core.model import Answer, Effects
from semel.engine.permit import Permit
from semel.errors import NothingHappened, StoreError
from verification.simulate.ledger import Effect, Execution
from verification.simulate.stepped import Resumption, run_steps
from verification.simulate.violation import Violated

if TYPE_CHECKING:
    from verification.simulate.client import Call
    from verification.simulate.schedule import Schedule

ENDS: Final = (
    "refuse",
    "nothing happened",
    "raise before",
    "raise after",
    "429",
    "500 after",
    "hang",
    "hang",
    "crash before",
    "crash after",
    "pause before",
    "pause after",
    "lost charge",
)


class Broken(Exception):
    """What a handler raises that proves nothing."""


async def run_handler(schedule: Schedule, call: Call | Resumption, permit: Permit) -> Answer:
    """One run of a handler, as an application would write it."""
    world = schedule.world
    try:
        run = _begin(schedule, call, permit)
    except Violated as violated:
        schedule.fail(violated)  # the engine would take it for a mistake of the handler's
        raise
    if schedule.plan.script and permit.steps is None:
        run.running = False
        raise NothingHappened("a version without steps, which does nothing: that it may run is what is watched")
    if schedule.plan.script:
        return await _run_script(schedule, call, permit, run)
    end = world.pick(ENDS) if world.happens(schedule.plan.handler_trouble) else "succeed"
    if run.effects is Effects.ATOMIC and end == "lost charge":
        end = "commit early"
    if end == "refuse" and run.effects is Effects.IDEMPOTENT and run.attempt > 1:
        end = "succeed"  # a handler that may run again must not refuse what an earlier run of it has done
    if world.tracing:
        world.tell(run.worker, f"handler runs, and will {end}: {run}")
    try:
        return await _act(schedule, call, permit, run, end)
    except Violated as violated:
        schedule.fail(violated)
        raise
    finally:
        run.running = False


async def _run_script(schedule: Schedule, call: Call | Resumption, permit: Permit, run: Execution) -> Answer:
    try:
        if run.attempt == 1 and schedule.world.happens(schedule.plan.handler_trouble * 0.1):
            return _answer(run, 409)
        ended = await run_steps(schedule, call.worker, permit, run)
        return _answer(run, 201) if ended is None else ended
    except Violated as violated:
        schedule.fail(violated)
        raise
    finally:
        run.running = False


def _begin(schedule: Schedule, call: Call | Resumption, permit: Permit) -> Execution:
    grant = permit.grant
    watch = schedule.server.watch
    life = watch.grants.get((grant.id, grant.fence))
    schedule.executions += 1
    run = Execution(
        schedule.executions,
        grant.id,
        life if life is not None else -1,
        grant.nonce,
        grant.fence,
        grant.generation,
        grant.attempt,
        call.worker.who,
        permit.effects,
        call.payload,
    )
    if life is None:
        raise Violated("I3 fenced", f"a handler runs without a grant of the store: {run}")
    call.run = run
    schedule.runs.append(run)
    others = watch.begun.setdefault(grant.id, [])
    if run.effects is Effects.EXTERNAL and not schedule.plan.script:  # steps have accounts of their own
        for other in others:
            if other.life == run.life and other.begun:
                raise Violated("I4 no blind rerun", f"an EXTERNAL handler runs again: first {other}, now {run}")
    run.begun = not permit.command.policy.marks_effects
    others.append(run)
    return run


async def _act(schedule: Schedule, call: Call | Resumption, permit: Permit, run: Execution, end: str) -> Answer:
    world = schedule.world
    lease = permit.command.policy.lease_seconds
    if world.happens(0.7):
        await asyncio.sleep(world.draw() * world.pick((0.01, 0.3)))
    match end:
        case "refuse":
            return _answer(run, 409)
        case "429":
            return _answer(run, 429)
        case "nothing happened":
            raise NothingHappened("simulated")
        case "raise before":
            raise Broken("before the effect")
        case "hang":
            await asyncio.sleep(lease * (1 + 4 * world.draw()))
        case "crash before":
            await schedule.strike(call.worker, "crash")
        case "pause before":
            await schedule.strike(call.worker, "pause")
        case _:
            pass
    if permit.unit is None and world.happens(0.04):
        with suppress(StoreError):  # its answer will be too long to store, announced or not
            await call.worker.engine.mark_not_kept(permit)
    with permit.effect():
        run.begun = True
        await _charge(schedule, permit, run, lost=end == "lost charge")
    match end:
        case "raise after":
            raise Broken("after the effect")
        case "500 after":
            return _answer(run, 500)
        case "crash after":
            await schedule.strike(call.worker, "crash")
        case "pause after":
            await schedule.strike(call.worker, "pause")
        case "commit early":
            run.committed_early = True
            permit.connection.commit()
            if world.happens(0.5):
                await schedule.strike(call.worker, "crash")
        case _:
            pass
    if world.happens(0.3):
        await asyncio.sleep(world.draw() * 0.2)
    return _answer(run, 201)


async def _charge(schedule: Schedule, permit: Permit, run: Execution, *, lost: bool) -> None:
    """The side effect: a write in the unit, or a call of the provider, which may be slow or not answer."""
    world, ledger = schedule.world, schedule.ledger
    effect = Effect(run, permit.key_for("charge"))
    if permit.unit is not None:
        permit.connection.effects.append(effect)
        return
    done = asyncio.get_running_loop().create_future()

    def arrive() -> None:
        ledger.on_their_way[run.id] -= 1
        ledger.execute(effect)
        world.after(world.between(0, 5000), lambda: None if done.done() else done.set_result(None))

    ledger.on_their_way[run.id] = ledger.on_their_way.get(run.id, 0) + 1
    world.after(world.between(0, 5000) if world.happens(0.9) else world.between(0, 1_500_000), arrive)
    if lost:
        raise Broken("the provider did not answer in time")
    await done


def _answer(run: Execution, status: int) -> Answer:
    """Every run's answer is another one, so that a second one is never mistaken for the first."""
    return Answer(status, (), b"%s:%d:%d:%d" % (run.id.hex().encode(), run.life, run.payload, run.number))
