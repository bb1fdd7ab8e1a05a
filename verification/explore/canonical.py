"""Which states are the same: times relative to now, fences and generations by rank, workers in no order.

Two worlds with one canonical form allow the same futures, since the rules only compare times with now, fences with
each other and nonces for equality. What is merged wrongly would hide a state, so everything that a rule or the
model's notebook reads is in here; ``tests/explore`` compares with an exploration without merging.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final

from semel.core.model import OPEN_STATES, Answer, AnswerKind, Effects, Record, State
from semel.core.timing import PURGE_GRACE_US
from verification.explore.step_forms import book_form, steps_form
from verification.explore.world import ANSWER, TOMBSTONE, Flight, Pc, Worker, World

Form = tuple[Any, ...]
_local_first: Final = itemgetter(0)
_OPEN: Final = OPEN_STATES


class _Names:
    """Small numbers for nonces, in the order in which they are met."""

    def __init__(self, world: World) -> None:
        self._numbers: dict[int, int] = {0: 0}
        fences = {worker.grant.fence for worker in world.workers if worker.grant is not None}
        generations = {worker.grant.generation for worker in world.workers if worker.grant is not None}
        for row in (world.row, world.unit.row if world.unit else None):
            if row is not None:
                fences.add(row.fence)
                generations.add(row.generation)
        fences.update(letter.settlement.fence for letter in world.letters if letter.settlement is not None)
        self.fences = {fence: rank for rank, fence in enumerate(sorted(fences))}
        self.generations = {generation: rank for rank, generation in enumerate(sorted(generations))}
        self._keys: dict[str, int] = {}

    def nonce(self, nonce: int) -> int:
        return self._numbers.setdefault(nonce, len(self._numbers))

    def key(self, key: str) -> int:
        return self._keys.setdefault(key, len(self._keys))


def canonical(world: World) -> Form:
    """The canonical form of a world and of all equivalent ones."""
    names = _Names(world)
    row, now, true = world.row, world.now, world.true
    held = names.nonce(int.from_bytes(row.nonce)) if row is not None else -1
    workers = sorted([(_local(worker, world, names), worker.nonce) for worker in world.workers], key=_local_first)
    living = {nonce for _, nonce in workers} | {letter.nonce for letter in world.letters}
    spec = world.spec
    scripted = world.accounts
    return (
        _row(row, now, names),
        held,
        tuple([(*local, names.nonce(nonce)) for local, nonce in workers]),
        () if not scripted else (scripted, steps_form(world.steps, row, now)),
        names.nonce(spec.holder) if spec.holder in living else -1,
        spec.superseded,
        None if spec.settled_at is None else _lefts(spec.settled_at - true, (ANSWER, TOMBSTONE)),
        _answer(spec.acked, names),
        spec.effects,
        tuple(sorted([(f.ends - true, f.epoch == spec.epoch, f.part, names.key(f.key)) for f in world.flights])),
        tuple(sorted([(until - true, names.key(key)) for key, until in world.remembered])),
        tuple(
            [
                (
                    names.nonce(nonce),
                    None if settlement is None else (names.fences[settlement.fence], settlement.state),
                    steps,
                )
                for nonce, settlement, steps in world.letters
            ]
        ),
        None if world.unit is None else (names.nonce(world.unit.nonce), world.unit.wrote),
        None if world.unit is None else _row(world.unit.row, now, names),
        world.left,
        world.ahead > 0,
    )


def without_idle_flights(world: World) -> World:
    """Calls to an IDEMPOTENT downstream without a waiting caller, less those that change nothing when they arrive.

    One whose key is remembered beyond its end is recognised whenever it arrives; of two with one key the one that
    may arrive later may arrive whenever the other may.
    """
    waited = {worker.nonce for worker in world.workers if worker.pc is Pc.FLYING}
    kept: list[Flight] = []
    remembered = dict(world.remembered)
    for flight in sorted(world.flights, key=lambda flight: -flight.ends):
        if flight.nonce not in waited:
            if remembered.get(flight.key, 0) >= flight.ends:
                continue
            if any(other.key == flight.key and other.nonce not in waited for other in kept):
                continue
        kept.append(flight)
    return world if len(kept) == len(world.flights) else world._replace(flights=tuple(kept))


def row_form(row: Record | None, now: int) -> Form | None:
    """The record alone: what the checks of a single record depend on."""
    if row is None:
        return None
    generation = row.generation
    return (_moments(row, now), row.state, row.lapses, generation > 0, row.answer_kind, row.doubt)


def _local(worker: Worker, world: World, names: _Names) -> Form:
    grant = worker.grant
    mine = world.row is not None and worker.nonce == int.from_bytes(world.row.nonce)
    if grant is None:
        return (worker.pc, mine)
    return (
        *(worker.pc, mine, names.fences[grant.fence], names.generations[grant.generation]),
        *(max(0, worker.ends - world.true), worker.epoch == world.spec.epoch, worker.nonce == world.spec.holder),
        grant.fence > grant.first_started_at,
        () if worker.book is None else book_form(world, worker),
    )


def _row(row: Record | None, now: int, names: _Names) -> Form | None:
    if row is None:
        return None
    by = None if row.body is None else names.nonce(int.from_bytes(row.body[-16:]))
    return (
        *(row.state, names.fences[row.fence], names.generations[row.generation], row.answer_kind),
        row.lapses if row.settled_at is None else 0,  # a settled record counts anew when it is granted again
        *(row.doubt, by, row.status, _moments(row, now)),
    )


def _moments(row: Record, now: int) -> Form:
    """How far each moment that still matters lies ahead; what is past is past."""
    ahead = tuple([moment - now if moment > now else 0 for moment in moments(row)])
    if row.state in _OPEN:
        return (*ahead, row.lease_until == 0, row.fence > row.first_started_at, max(0, row.first_started_at - now))
    return (*ahead, row.fence > row.first_started_at, row.fence >= now)


def moments(row: Record) -> tuple[int, ...]:
    """The times at which this record compares differently with now, by its state."""
    match row.state:
        case State.SUCCEEDED | State.FAILED_REPLAYABLE:
            assert row.answer_until is not None
            assert row.forget_after is not None
            dropped = row.answer_until + PURGE_GRACE_US if row.answer_kind == AnswerKind.KEPT else 0
            return (row.answer_until, dropped, row.forget_after + PURGE_GRACE_US)
        case State.FAILED_NOT_REPLAYABLE:
            assert row.forget_after is not None
            return (row.forget_after + PURGE_GRACE_US,)
        case _:
            lease = row.lease_until if row.state in _OPEN else 0
            dedup = row.dedup_until if row.effects == Effects.IDEMPOTENT else 0
            # Open and unknown records have no end. Should one have it all the same, the model must see it come.
            return (lease, row.deadline_at, dedup, 0 if row.forget_after is None else row.forget_after + PURGE_GRACE_US)


def _lefts(offset: int, ends: Iterable[int]) -> Form:
    return tuple([max(0, offset + end) for end in ends])


def _answer(answer: Answer | None, names: _Names) -> Form | None:
    return None if answer is None else (answer.status, names.nonce(int.from_bytes(answer.body[-16:])))
