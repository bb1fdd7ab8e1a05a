"""ATOMIC commands in the model: the real ``claim_unit`` and ``settle_unit`` over one open transaction.

One writer at a time, as on SQLite: while a unit is open no other process writes, and none sees what is
written in it until it commits. A crash leaves nothing. The early commit is the user's mistake: it makes an unfinished
unit visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from semel.atomic.flow import claim_unit, settle_unit
from semel.core.command_flow import make_settlement
from semel.core.flow import Flow
from semel.core.model import Grant, InProgress, Proceed, Record, Replay, Settled, Settling, Verdict
from semel.core.outcomes import Outcome, classify_answer, classify_exception
from semel.core.requests import Begin, Commit, Perform, Rollback, Within
from semel.errors import EarlyCommit, StoreTimeout, StoreUnavailable
from verification.explore import store
from verification.explore.notebook import note_answer, note_effect, note_grant, note_write
from verification.explore.steps import Step, crash, lose_message, operator, put, time_passes, upkeep
from verification.explore.world import Mode, Pc, Unit, Worker, World


class _Transaction:
    """What ``claim_unit`` and ``settle_unit`` are performed on: the committed record, and one transaction's own."""

    connection = None

    def __init__(self, world: World, staged: Record | None, *, reply_is_lost: bool = False) -> None:
        self.committed = world.row
        self.staged = staged
        self.ended = False
        self.commits = 0
        self._now = world.now
        self._reply_is_lost = reply_is_lost

    def hand_out(self) -> None:
        return None

    def perform(self, flow: Flow[Any]) -> Any:
        """Run a flow; a lost reply of the commit is thrown into it, as the engine does."""
        try:
            needed = next(flow)
            while True:
                try:
                    reply = self._answer(needed)
                except StoreTimeout as error:
                    needed = flow.throw(error)
                else:
                    needed = flow.send(reply)
        except StopIteration as stop:
            return stop.value

    def _answer(self, needed: Any) -> Any:
        match needed:
            case Begin():
                self.staged = self.committed
                return self
            case Perform():
                reply, self.committed = store.call(self.committed, self._now, needed.make)
                return reply
            case Within():
                reply, self.staged = store.call(self.staged, self._now, needed.make)
                return reply
            case Commit():
                self.committed, self.ended = self.staged, True
                self.commits += 1
                if self._reply_is_lost:
                    raise StoreTimeout("the reply of the commit is lost")
                return None
            case Rollback():
                self.staged, self.ended = self.committed, True
                return None
            case _:
                raise AssertionError(f"no driver performs {type(needed).__name__}")


def atomic_steps(world: World, mode: Mode) -> Iterator[Step]:
    """All steps of an ATOMIC mode."""
    for place, worker in enumerate(world.workers):
        if worker.pc is Pc.IDLE:
            nonce = world.serial + 1
            yield _begin(world._replace(serial=nonce), mode, place, nonce)
            continue
        yield from _inside(world, mode, place, worker)
    if world.unit is None:
        yield from upkeep(world)
        yield from operator(world, mode)
    yield from time_passes(world)


def _begin(world: World, mode: Mode, place: int, nonce: int) -> Step:
    """Look, then begin and claim; while another unit is open, there is only the look."""
    attempt = store.claim_of(nonce, mode.policy)
    label = f"a client asks worker {nonce}"
    if world.unit is not None:
        looked, _ = store.call(world.row, world.now, lambda: store.STORE.look((attempt,)))
        seen: Verdict = looked[0] if looked[0] is not None else InProgress(bytes(16), 0)
        return f"{label}: {type(seen).__name__}", _hear(world, seen)
    transaction = _Transaction(world, world.row)
    verdict, unit = transaction.perform(claim_unit(store.STORE, attempt, None, Begin()))
    label = f"{label}: {type(verdict).__name__}"
    after = note_grant(world, transaction.committed, nonce)
    if unit is None:
        return label, _hear(after, verdict)
    assert isinstance(verdict, Proceed)
    worker = Worker(Pc.HOLDS, nonce, verdict.grant, world.true + mode.policy.terms.deadline_us, world.spec.epoch)
    return label, put(after._replace(unit=Unit(nonce, transaction.staged)), place, worker)


def _hear(world: World, verdict: Verdict) -> World:
    return note_answer(world, verdict.answer) if isinstance(verdict, Replay) else world


def _inside(world: World, mode: Mode, place: int, worker: Worker) -> Iterator[Step]:
    unit, who = world.unit, f"worker {worker.nonce}"
    mine = unit is not None and unit.nonce == worker.nonce
    if world.left.crashes:
        gone = crash(world, place)
        yield f"{who} crashes", gone._replace(unit=None) if mine else gone
    if mine and unit is not None and worker.pc is Pc.HOLDS:
        wrote = world._replace(unit=unit._replace(wrote=True))
        yield f"{who} writes", put(wrote, place, worker._replace(pc=Pc.DONE))
    if mine and unit is not None and world.left.early_commits:
        left = world.left._replace(early_commits=world.left.early_commits - 1)
        early = note_grant(world._replace(left=left, unit=None), unit.row, worker.nonce)
        yield f"{who}'s handler commits by habit", note_effect(early, mode.policy) if unit.wrote else early
    if not mine and unit is not None:
        return  # its own transaction is gone, and the writer's place is taken
    assert worker.grant is not None
    if worker.pc is Pc.DONE:
        made = classify_answer(store.answer_by(worker.nonce), mode.policy, begun=True)
        yield from _ends(world, mode, place, worker, worker.grant, made, "settles and answers")
    refused = classify_answer(store.answer_by(worker.nonce, 409), mode.policy, begun=True)
    yield from _ends(world, mode, place, worker, worker.grant, refused, "refuses")
    raised = classify_exception(ValueError("a mistake"), mode.policy, begun=True)
    yield from _ends(world, mode, place, worker, worker.grant, raised, "raises")


def _ends(
    world: World, mode: Mode, place: int, worker: Worker, grant: Grant, outcome: Outcome, how: str
) -> Iterator[Step]:
    yield _end(world, mode, place, worker, grant, outcome, how)
    if world.left.losses:
        label, after = _end(
            lose_message(world), mode, place, worker, grant, outcome, f"{how}; the reply is lost", unheard=True
        )
        yield label, after


def _end(
    world: World,
    mode: Mode,
    place: int,
    worker: Worker,
    grant: Grant,
    outcome: Outcome,
    how: str,
    *,
    unheard: bool = False,
) -> Step:
    unit = world.unit
    mine = unit is not None and unit.nonce == worker.nonce
    staged = unit.row if mine and unit is not None else world.row
    transaction = _Transaction(world, staged, reply_is_lost=unheard)
    settlement = make_settlement(grant, outcome)
    attempt = store.claim_of(worker.nonce, mode.policy)
    flow = settle_unit(store.STORE, transaction, attempt, grant, outcome, settlement)  # type: ignore[arg-type]
    reply: Settling | None = None
    try:
        reply = transaction.perform(flow)
        label = type(reply).__name__
    except (EarlyCommit, StoreUnavailable) as error:
        label = type(error).__name__
    after = world._replace(unit=None) if mine else world
    if mine or (transaction.committed is not None and transaction.committed.fence != grant.fence):
        after = note_grant(after, transaction.committed, worker.nonce)  # its claim becomes visible with its settlement
    else:
        after = note_write(after, transaction.committed, by=worker.nonce)
    if transaction.commits and unit is not None and mine and unit.wrote:
        after = note_effect(after, mode.policy)
    if isinstance(reply, Settled) and settlement.answer is not None:
        after = note_answer(after, settlement.answer)
    return f"worker {worker.nonce} {how}: {label}", put(after, place, Worker())
