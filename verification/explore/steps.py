"""Every possible next step: workers, their crashes, the downstream, the network, time, upkeep, operators.

A step is a label and the world after it. The store is changed by the real verbs alone; outcomes are what the real
classification and the engine's own ``settlement`` make of an answer or an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from semel.core.command_flow import make_settlement
from semel.core.model import (
    AlreadyMine,
    Effects,
    Grant,
    OutcomeUnknown,
    Proceed,
    Renewal,
    Replay,
    Resolution,
    Resolved,
    Settled,
    Settlement,
    State,
    Superseded,
    Verdict,
)
from semel.core.outcomes import classify_answer, classify_exception
from semel.policy import Policy
from verification.explore import store
from verification.explore.canonical import moments
from verification.explore.notebook import note_answer, note_grant, note_landing, note_write, stands
from verification.explore.world import SECOND, Broken, Flight, Letter, Mode, Pc, Worker, World

Step = tuple[str, World]
CLOCK_BACK: Final = 30 * SECOND
_FAILED: Final = TimeoutError("no reply")


def steps(world: World, mode: Mode) -> Iterator[Step]:
    """Return all steps. Raises Broken if one breaks an invariant at once."""
    idle = False
    for place, worker in enumerate(world.workers):
        if worker.pc is Pc.IDLE and worker.nonce == 0:
            if idle:
                continue  # the second of two that know nothing takes the same steps
            idle = True
        yield from _worker(world, mode, place, worker)
    for flight in world.flights:
        yield f"the call of {flight.nonce} reaches the downstream", _arrive(world, mode, flight)
    for letter in world.letters:
        yield deliver(world, mode, letter)
    yield from upkeep(world)
    yield from operator(world, mode)
    yield from time_passes(world)


def _worker(world: World, mode: Mode, place: int, worker: Worker) -> Iterator[Step]:
    match worker.pc:
        case Pc.IDLE:
            yield from claims(world, mode, place)
        case Pc.LIMBO:
            yield from limbo(world, mode, place, worker)
        case _:
            yield from _holder(world, mode, place, worker)
    if worker.pc is not Pc.IDLE and world.left.crashes:
        yield f"worker {worker.nonce} crashes", crash(world, place)


def put(world: World, place: int, worker: Worker) -> World:
    """Replace one worker."""
    workers = list(world.workers)
    workers[place] = worker
    return world._replace(workers=tuple(workers))


def crash(world: World, place: int) -> World:
    """A worker that crashed: what it knew is gone."""
    left = world.left._replace(crashes=world.left.crashes - 1)
    return put(world._replace(left=left), place, Worker())


def lose_message(world: World) -> World:
    """Lower the number of messages that may still be lost."""
    return world._replace(left=world.left._replace(losses=world.left.losses - 1))


# --- claims -----------------------------------------------------------------------------------


def claims(world: World, mode: Mode, place: int) -> Iterator[Step]:
    nonce = world.serial + 1
    world = world._replace(serial=nonce)
    yield _claim(world, mode, place, nonce, f"a client asks worker {nonce}")
    if world.left.losses:
        limbo = put(lose_message(world), place, Worker(Pc.LIMBO, nonce))
        _, row = store.claim(world.row, world.now, store.claim_of(nonce, mode.policy))
        yield f"worker {nonce} claims; the reply is lost", note_grant(limbo, row, nonce)
        yield (
            f"worker {nonce} claims; its message is late",
            limbo._replace(letters=(*world.letters, Letter(nonce, None))),
        )


def _claim(world: World, mode: Mode, place: int, nonce: int, label: str) -> Step:
    verdict, row = store.claim(world.row, world.now, store.claim_of(nonce, mode.policy))
    after = note_grant(world, row, nonce)
    label = f"{label}: {type(verdict).__name__}"
    if isinstance(verdict, Proceed):
        ends = world.true + mode.policy.terms.deadline_us
        return label, put(after, place, Worker(Pc.HOLDS, nonce, verdict.grant, ends, after.spec.epoch))
    return label, put(_hear(after, verdict), place, Worker())


def _hear(world: World, verdict: Verdict) -> World:
    """A client hears a verdict that is no Proceed."""
    if isinstance(verdict, Replay):
        return note_answer(world, verdict.answer)
    if isinstance(verdict, OutcomeUnknown) and world.spec.acked is not None and world.spec.settled_at is not None:
        raise Broken("I2", "a client has the answer, and another is told that the outcome is unknown")
    return world


def limbo(world: World, mode: Mode, place: int, worker: Worker) -> Iterator[Step]:
    """Read back by claiming again with the same nonce, or given up by it: repeated until it is seen."""
    yield _claim(world, mode, place, worker.nonce, f"worker {worker.nonce} claims again with its nonce")
    gone, row = store.abandon(world.row, world.now, worker.nonce)
    if gone:
        after = note_write(world, row, by=worker.nonce)
        yield f"worker {worker.nonce} gives its claim up", put(after, place, Worker())


def deliver(world: World, mode: Mode, letter: Letter) -> Step:
    rest = world._replace(letters=tuple([other for other in world.letters if other != letter]))
    if letter.settlement is not None:
        reply, row = store.settle(world.row, world.now, letter.settlement)
        return f"a late settlement of {letter.nonce} arrives: {type(reply).__name__}", after_settling(
            rest, letter.nonce, reply, row
        )
    _, row = store.claim(world.row, world.now, store.claim_of(letter.nonce, mode.policy))
    return f"the late claim of {letter.nonce} arrives", note_grant(rest, row, letter.nonce)


# --- holders ----------------------------------------------------------------------------------


def _holder(world: World, mode: Mode, place: int, worker: Worker) -> Iterator[Step]:
    grant, who = worker.grant, f"worker {worker.nonce}"
    assert grant is not None
    in_time = world.true < worker.ends
    if in_time and (renewed := renew(world, mode, place, worker, grant)) is not None:
        yield f"{who} renews its lease", renewed
    if worker.pc is Pc.HOLDS and in_time:
        flight = Flight(worker.nonce, store.key_for(grant.id, grant.generation), worker.ends, worker.epoch)
        flying = world._replace(flights=(*world.flights, flight))
        yield f"{who} calls the downstream", put(flying, place, worker._replace(pc=Pc.FLYING))
        if mode.habits.settles_before_the_effect:
            settled = _settle(world, place, worker, _settlement(grant, worker.nonce, mode.policy))[1]
            flying = settled._replace(flights=(*world.flights, flight))
            yield f"{who} settles, and its call is yet to leave", settled
            yield f"{who} settles, and calls the downstream", flying
    # That a handler which runs again refuses, although its first run had its effect, is nothing that Semel could see.
    if worker.pc is Pc.HOLDS and grant.fence <= grant.first_started_at:
        refused = classify_answer(store.answer_by(worker.nonce, 409), mode.policy, begun=not mode.policy.marks_effects)
        yield _settle(world, place, worker, make_settlement(grant, refused), "refuses")
    # A handler that is called has begun, unless its operation marks the point of no return.
    begun = worker.pc is not Pc.HOLDS or not mode.policy.marks_effects
    failed = make_settlement(grant, classify_exception(_FAILED, mode.policy, begun=begun))
    yield _settle(world, place, worker, failed, "raises")
    if worker.pc is Pc.DONE:
        yield from _finish(world, mode, place, worker, grant)


def _settlement(grant: Grant, nonce: int, policy: Policy) -> Settlement:
    return make_settlement(grant, classify_answer(store.answer_by(nonce), policy, begun=True))


def _finish(world: World, mode: Mode, place: int, worker: Worker, grant: Grant) -> Iterator[Step]:
    settlement, who = _settlement(grant, worker.nonce, mode.policy), f"worker {worker.nonce}"
    yield _settle(world, place, worker, settlement, "settles and answers")
    reply, row = store.settle(world.row, world.now, settlement)
    if world.left.losses:
        after = after_settling(lose_message(world), worker.nonce, reply, row)
        yield f"{who} settles; the reply is lost", after
    if world.left.crashes:
        after = after_settling(world, worker.nonce, reply, row)
        yield f"{who} settles and crashes before it answers", crash(after, place)
        late = world._replace(letters=(*world.letters, Letter(worker.nonce, settlement)))
        yield f"{who} crashes with its settlement on the way", crash(late, place)
    if mode.habits.answers_before_settling and world.spec.acked is None:
        yield f"{who} answers before it settles", note_answer(world, store.answer_by(worker.nonce))


def _settle(world: World, place: int, worker: Worker, settlement: Settlement, how: str = "settles") -> Step:
    """A settlement, its reply, and the client's answer."""
    reply, row = store.settle(world.row, world.now, settlement)
    after = put(after_settling(world, worker.nonce, reply, row), place, Worker())
    label = f"worker {worker.nonce} {how}: {type(reply).__name__}"
    if settlement.answer is not None and not isinstance(reply, Superseded):
        return label, note_answer(after, settlement.answer)
    return label, after


def after_settling(world: World, nonce: int, reply: object, row: object) -> World:
    if isinstance(reply, (Settled, AlreadyMine)) and not stands(world, nonce):
        raise Broken("I3", f"a superseded holder was told {type(reply).__name__}")
    return note_write(world, row, by=nonce)  # type: ignore[arg-type]  # the row is what the verb left


def renew(world: World, mode: Mode, place: int, worker: Worker, grant: Grant) -> World | None:
    held, row = store.renew(world.row, world.now, Renewal(grant.id, grant.fence, grant.nonce))
    if held:
        if not stands(world, worker.nonce):
            raise Broken("I3", "a superseded holder was told that its lease stands")
        return note_write(world, row, by=worker.nonce)
    if mode.policy.effects == Effects.IDEMPOTENT:  # a superseded IDEMPOTENT handler is cancelled; others finish
        return put(world, place, Worker())
    return None


def _arrive(world: World, mode: Mode, flight: Flight) -> World:
    world = note_landing(world, mode, flight)
    for place, worker in enumerate(world.workers):
        if worker.nonce == flight.nonce and worker.pc is Pc.FLYING:
            return put(world, place, worker._replace(pc=Pc.DONE))
    return world


# --- time, upkeep, operators --------------------------------------------------------------------


def upkeep(world: World) -> Iterator[Step]:
    """The reaper and the purge, where they find something to do."""
    row = store.lapse(world.row, world.now)[1]
    if row != world.row:
        yield "the reaper marks what has lapsed", note_write(world, row)
    row = store.purge(world.row, world.now)
    if row != world.row:
        yield "the purge passes", note_write(world, row)


def operator(world: World, mode: Mode) -> Iterator[Step]:
    """Settle what is UNKNOWN or lapsed, truthfully unless a habit says otherwise."""
    row = world.row
    if row is None or not world.left.resolutions or row.state not in (State.UNKNOWN, State.PROCESSING):
        return
    happened = bool(world.spec.effects) is not mode.habits.operator_guesses
    answer = store.answer_by(int.from_bytes(row.nonce)) if happened else None
    forced = mode.habits.operator_forces
    reply, after = store.resolve(
        row, world.now, Resolution(row.id, row.fence, happened, answer, "olga", "asked the provider", forced)
    )
    if isinstance(reply, Resolved):
        left = world.left._replace(resolutions=world.left.resolutions - 1)
        label = f"an operator settles it as {'succeeded' if happened else 'did not happen'}"
        yield label, note_write(world._replace(left=left), after, operator=True)


def time_passes(world: World, more: Sequence[int] = ()) -> Iterator[Step]:
    """The clock moves to the next moment at which anything compares differently, and not beyond it.

    Parameters: ``more`` such moments by the store's clock.
    """
    times = list(more)
    times += [worker.ends - world.ahead for worker in world.workers if worker.grant is not None]
    times += [flight.ends - world.ahead for flight in world.flights]
    times += [until - world.ahead for _, until in world.remembered]
    if world.row is not None:
        times += moments(world.row)
    later = [moment for moment in times if moment > world.now]
    if later:
        yield _pass(world, min(later))
    if world.left.clock_faults:
        left = world.left._replace(clock_faults=world.left.clock_faults - 1)
        back = world._replace(now=world.now - CLOCK_BACK, ahead=world.ahead + CLOCK_BACK, left=left)
        yield "the store's clock is set back", back


def _pass(world: World, now: int) -> Step:
    true = now + world.ahead
    return f"{(now - world.now) / SECOND:g} seconds pass", world._replace(
        now=now,
        flights=tuple([flight for flight in world.flights if flight.ends > true]),
        remembered=tuple([(key, until) for key, until in world.remembered if until > true]),
    )
