"""The calm after the trouble: everything comes to an end, and every key can be asked for.

The network works, every worker runs, the clock is left alone. After the longest lease and one look of the reaper
nothing may be left that blocks a key without being UNKNOWN and visible; then each key is requested again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.core.model import AnswerKind, Effects, Record, State
from semel.errors import (
    InProgressError,
    KeyExpiredError,
    NotReplayableError,
    OutcomeUnknownError,
    RecordUnreadableError,
    StoreError,
)
from verification.simulate.client import Call
from verification.simulate.violation import Violated
from verification.simulate.watch import ANSWERED, OPEN, describe
from verification.simulate.world import SECOND

if TYPE_CHECKING:
    from verification.simulate.schedule import Schedule

OPERATORS_US: Final = 21 * SECOND


def calm(schedule: Schedule) -> None:
    """End the trouble, and look at what is left. Raises Violated."""
    _settle_down(schedule)
    _nothing_is_stuck(schedule)
    for key, payload in sorted({(call.key, call.payload) for call in schedule.calls}):
        _probe(schedule, key, payload)
    _records_are_true(schedule)


def _settle_down(schedule: Schedule) -> None:
    world, policy = schedule.world, schedule.plan.policy
    if world.tracing:
        world.tell("schedule", "calm: the network works, every worker runs, the clock is left alone")
    schedule.plan.crashes.clear()
    schedule.plan.handler_trouble = 0.0
    for worker in schedule.workers:
        worker.calm()
    schedule.run(policy.deadline_seconds + policy.lease_seconds + 5)
    late = [row.lease_until for row in schedule.server.data.rows().values() if row.state in OPEN]
    left_us = max(late, default=0) - schedule.server.clock()
    schedule.run(max(0, left_us) / SECOND * 1.2 + 1)  # its clock may be slower than the world's
    for worker in schedule.workers:
        schedule.background(worker, worker.reaper.run_once)
    schedule.run(1)
    if schedule.plan.script:
        _doubts_are_settled(schedule)
    if schedule.plan.policy.resumable:
        _abandoned_are_completed(schedule)


def _doubts_are_settled(schedule: Schedule) -> None:
    """An operator usually finds out what became of the steps in doubt."""
    schedule.run(max(0, OPERATORS_US - schedule.world.now) / SECOND)  # operators that come at random have come by then
    if schedule.world.happens(0.7):
        schedule.operate()
        schedule.run(1)


def _abandoned_are_completed(schedule: Schedule) -> None:
    """One look of a completer that has nothing to rest from brings every resumable execution to its end."""
    schedule.complete(schedule.workers[0], rested=True)
    schedule.run(schedule.plan.policy.deadline_seconds + 5)
    for row in schedule.server.data.rows().values():
        if row.state == State.CLAIMED and row.request is not None:  # without one, it had not begun
            raise Violated("I6 progress", f"a resumable execution was left where it was: {describe(row)}")


def _nothing_is_stuck(schedule: Schedule) -> None:
    now = schedule.server.clock()
    watch = schedule.server.watch
    alive = {worker.who for worker in schedule.workers}
    began = {run.nonce for run in schedule.runs}
    for row in schedule.server.data.rows().values():
        may_go_on = row.effects == Effects.IDEMPOTENT or (bool(schedule.plan.script) and row.state == State.CLAIMED)
        if row.state in OPEN and (not may_go_on or row.lease_until > now):
            raise Violated("I6 progress", f"still {describe(row)}, after its lease and the reaper's look")
        forgotten = row.nonce not in began | watch.given_up | watch.repeated
        if row.state == State.UNKNOWN and row.doubt == "lapsed" and row.holder in alive and forgotten:
            raise Violated("I6 progress", f"a claim whose handler never ran was left to lapse: {describe(row)}")
    for call in schedule.calls:
        if call.in_flight:
            raise Violated("I6 progress", f"a request of {call.client} never ended")
    for run in schedule.runs:
        if run.running and run.worker in alive:
            raise Violated("I6 progress", f"a handler never ended: {run}")


def _probe(schedule: Schedule, key: int, payload: int) -> None:
    """Attempt each key again: without faults, every verdict has its reason in the record."""
    call, row = _ask(schedule, key, payload)
    if isinstance(call.error, OutcomeUnknownError) and row is not None and row.state in ANSWERED:
        call, row = _ask(schedule, key, payload)  # an operator settled it between the attempt's look and its answer
    match call.error:
        case OutcomeUnknownError():
            explained = row is not None and (row.state == State.UNKNOWN or _is_over(row, schedule.server.clock()))
        case KeyExpiredError():
            explained = row is not None and row.state in ANSWERED
        case NotReplayableError():
            explained = row is not None and row.answer_kind == AnswerKind.NOT_KEPT
        case InProgressError() | RecordUnreadableError() | StoreError():
            explained = False
        case _:
            explained = True
    if not explained:
        raise Violated("I6 progress", f"long after all trouble, {call.error} met {describe(row)}")


def _ask(schedule: Schedule, key: int, payload: int) -> tuple[Call, Record | None]:
    """One more request to its end, and the record that is there by then."""
    call = Call(schedule, "probe", schedule.workers[0], key, payload)
    schedule.calls.append(call)
    call.start(0.0, lambda _: schedule.world.stop())
    schedule.run(schedule.plan.policy.deadline_seconds * 2 + 10)
    if not call.over:
        raise Violated("I6 progress", f"the last request for key {key} never ended")
    return call, schedule.server.data.rows().get(call.id)


def _is_over(row: Record, now: int) -> bool:
    """Whether the reaper will write UNKNOWN at its next look: readers derive it until then."""
    return row.state == State.PROCESSING and row.lease_until <= now


def _records_are_true(schedule: Schedule) -> None:
    for row in schedule.server.data.rows().values():
        happened = schedule.ledger.has_happened(row.id)
        if row.state == State.SUCCEEDED and not happened:
            raise Violated("I2 one answer", f"success without its effect: {describe(row)}")
        failed = row.state in (State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE)
        if failed and happened and (row.status is None or row.status < 500):
            raise Violated("I2 one answer", f"a failure whose effect happened: {describe(row)}")
