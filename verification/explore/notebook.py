"""What every step writes into the model's notebook, and the invariants that it checks while doing so.

The checks trust nothing that the rules say: an effect is counted where it lands, a holder is superseded when somebody
else was granted after it, an answer counts from the moment in which a client has it.
"""

from __future__ import annotations

from typing import Final

from semel.core.model import ANSWERED_STATES, Answer, AnswerKind, Effects, Record, State
from semel.core.record import answer_of
from semel.policy import Policy
from verification.explore.world import ANSWER, DEDUP, MEMORY, TOMBSTONE, Broken, Flight, Mode, World

MADE: Final = 201
DONE_STATES: Final = (*ANSWERED_STATES, State.FAILED_NOT_REPLAYABLE)


def note_grant(world: World, row: Record | None, nonce: int) -> World:
    """The world after a claim: where it changed the record, the claim's nonce is the holder's now."""
    if row == world.row:
        return world
    spec = world.spec
    if _is_new_command(world, row):
        spec = spec._replace(epoch=spec.epoch + 1, settled_at=None, acked=None, effects=0)
    spec = spec._replace(holder=nonce, superseded=False, settled_at=None)
    return note_write(world._replace(spec=spec), row)


def note_write(world: World, row: Record | None, *, by: int = 0, operator: bool = False) -> World:
    """The world after a write of the record. ``by``: the nonce of the holder that wrote it."""
    before, spec = world.row, world.spec
    if row == before:
        return world
    if by and not stands(world, by):
        raise Broken("I3", "a write of a superseded holder took effect")
    if row is not None and before is not None and row.fence < before.fence:
        raise Broken("I3", "the fence of a record went down")
    if operator:
        spec = spec._replace(superseded=True)
    ended = before is not None and before.state in DONE_STATES and row is not None and before.fence == row.fence
    if row is not None and row.state in DONE_STATES and not ended:
        spec = spec._replace(settled_at=world.true)
    return world._replace(row=row, spec=spec)


def _is_new_command(world: World, row: Record | None) -> bool:
    """Whether a grant may be a new command: only when the key's retention is really over."""
    settled_at, known = world.spec.settled_at, world.row
    if settled_at is None or row is None:
        return False
    if known is not None and known.state == State.FAILED_NOT_REPLAYABLE:
        return False
    return world.true >= settled_at + (TOMBSTONE if known is None else ANSWER)


def stands(world: World, nonce: int) -> bool:
    """Whether this holder is still the record's."""
    return world.spec.holder == nonce and not world.spec.superseded


def note_answer(world: World, answer: Answer) -> World:
    """The world after a client was given an answer: the first, or a replay of it."""
    spec = world.spec
    if spec.acked is not None and spec.acked != answer:
        raise Broken("I2", "a client was given another answer than the first")
    if answer.status == MADE and not spec.effects:
        raise Broken("I2", "a client was told that it is done, and nothing happened")
    if answer.status != MADE and spec.effects:
        raise Broken("I2", "a client was told that it was refused, and it had happened")
    return world._replace(spec=spec._replace(acked=answer))


def note_landing(world: World, mode: Mode, flight: Flight) -> World:
    """The world after a call has reached the downstream; an IDEMPOTENT one recognises the derived key."""
    remembered = tuple([(key, until) for key, until in world.remembered if world.true < until])
    flights = tuple([other for other in world.flights if other != flight])
    world = world._replace(flights=flights, remembered=remembered)
    if mode.policy.effects == Effects.IDEMPOTENT:
        if any(key == flight.key for key, _ in remembered):
            return world
        memory = DEDUP // 3 if mode.habits.downstream_forgets else MEMORY
        world = world._replace(remembered=(*remembered, (flight.key, world.true + memory)))
    if flight.epoch != world.spec.epoch:
        raise Broken("I1", "an effect arrived after its command's tombstone was forgotten")
    return note_effect(world, mode.policy)


def note_effect(world: World, policy: Policy) -> World:
    """Note an effect of this key, which must be its first."""
    effects = world.spec.effects + 1
    if effects > 1:
        invariant = "I4" if policy.effects == Effects.EXTERNAL else "I1"
        raise Broken(invariant, "a second effect for one key")
    return world._replace(spec=world.spec._replace(effects=effects))


def check(world: World) -> None:
    """Check in every state that each client's answer is what the store holds, as long as promised."""
    spec, row = world.spec, world.row
    if spec.acked is None:
        return
    if spec.settled_at is None:
        raise Broken("I2", "a client has an answer that the store does not hold")
    age = world.true - spec.settled_at
    if row is None:
        if age < TOMBSTONE:
            raise Broken("I2", "an acknowledged command was forgotten before its tombstone's retention was over")
        return
    if row.state not in ANSWERED_STATES:
        raise Broken("I2", f"an acknowledged command reads {State(row.state).name}")
    if age < ANSWER and row.answer_kind == AnswerKind.KEPT and answer_of(row) != spec.acked:
        raise Broken("I2", "the stored answer is not the one that a client has")
    if age < ANSWER and row.answer_kind != AnswerKind.KEPT:
        raise Broken("I2", "an acknowledged answer was dropped before its retention was over")
