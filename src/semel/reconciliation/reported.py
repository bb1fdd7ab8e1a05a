"""``engine.settle_by``: an outcome that another process reports later, such as a provider's webhook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.identity import uuid_bytes
from semel.core.model import MovedOn, Record, Resolution, Resolved, State, TooEarly
from semel.core.record import is_sound, state_of
from semel.core.requests import Perform
from semel.errors import PolicyError, RecordUnreadableError, ResolveRefused
from semel.operations.flow import find_operation, is_kept_by, resolve
from semel.reconciliation.flow import settle_found
from semel.reconciliation.rules import (
    REASON_LENGTH_MAX,
    Again,
    DidNotHappen,
    RefusedWith,
    StepSucceeded,
    SucceededWith,
    judge,
    quiet_until,
)
from semel.steps.doubts import step_of

Reported = SucceededWith | RefusedWith | StepSucceeded | DidNotHappen
_AGREES: Final = {
    SucceededWith: (State.SUCCEEDED,),
    RefusedWith: (State.FAILED_REPLAYABLE,),
    DidNotHappen: (State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE),
}


Cover = Callable[[str, Resolution], Resolution]


def settle_reported(
    store: Store,
    operation_id: str,
    outcome: Reported,
    proof: str,
    actor: str,
    cover: Cover | None = None,
    steps: Mapping[str, bool] | None = None,
) -> Flow[State]:
    """Settle an execution by a report, and return its state. An equal earlier settlement stays unchanged.

    Parameters: ``cover`` returns the part of a report to store, given the name of its operation; ``steps`` says of each
    step that had begun whether it happened. With ``steps`` the execution ends even if none of them is in doubt.

    Raises PolicyError for an invalid report, ResolveRefused, RecordUnreadableError, StepError, StoreError.
    """
    id = _check_report(operation_id, outcome, proof, actor)
    ends = _check_steps(outcome, steps)
    record, _ = yield from ask(Perform("resolve", lambda: find_operation(store, operation_id=id)))
    if record is None:
        raise ResolveRefused(f"no record of operation {operation_id}: it never ran here, or its key has been purged")
    state = state_of(record) if is_sound(record) else None
    if state is None:
        raise RecordUnreadableError("the record is damaged; restore it from a backup", operation_id=operation_id)
    if state in (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE):
        return _check_settled(state, outcome, operation_id)
    now = yield from ask(Perform("now", store.now))
    return (yield from _settle(store, record, outcome, proof, actor, now, operation_id, cover, ends))


def _settle(
    store: Store,
    record: Record,
    outcome: Reported,
    proof: str,
    actor: str,
    now: int,
    operation_id: str,
    cover: Cover | None,
    ends: tuple[tuple[str, bool], ...] | None,
) -> Flow[State]:
    if ends is None and record.state == State.CLAIMED and now >= record.lease_until:
        raise ResolveRefused(
            f"operation {operation_id} is between two of its steps, and a retry with its key continues it. Where its "
            "client has lost the key, end it: steps={name: whether it happened} for each step that began and did not "
            "finish, or steps={}"
        )
    result = None
    if isinstance(outcome, StepSucceeded):
        step = step_of(record.doubt)
        if step is None:
            raise ResolveRefused(f"no step of operation {operation_id} is in doubt: {record.doubt or 'it runs'}")
        from semel.steps.run import encode_found  # with the forms of results, which only this path needs

        result = encode_found(step, outcome.result)
    resolution = judge(outcome, record, now, actor=actor, quiet_us=0, asked=0, asked_max=1, jitter=0.0, result=result)
    if isinstance(resolution, Again):
        until = quiet_until(record, 0) if isinstance(outcome, DidNotHappen) else record.deadline_at
        raise _early(operation_id, max(until - now, 0))
    resolution = resolution._replace(reason=proof, ends=ends, step=None if ends is not None else resolution.step)
    if cover is not None:
        resolution = cover(record.operation, resolution)
    if is_kept_by(store):
        reply = yield from ask(Perform("resolve", lambda: settle_found(store, resolution, ())))
    else:
        reply = yield from ask(Perform("resolve", lambda: resolve(store, resolution)))
    match reply:
        case Resolved(settled):
            return settled
        case TooEarly(wait_us):
            raise _early(operation_id, wait_us)
        case MovedOn(None | State.CLAIMED | State.PROCESSING | State.UNKNOWN):
            raise ResolveRefused(
                f"operation {operation_id} has changed in the meantime; look it up, and report again",
                retry_after_seconds=1.0,
            )
        case MovedOn(moved):
            assert moved is not None
            return _check_settled(moved, outcome, operation_id)


def _check_settled(state: State, outcome: Reported, operation_id: str) -> State:
    """Check that a repeated report, or one after the handler's answer, agrees with the settled outcome."""
    if state in _AGREES.get(type(outcome), ()):
        return state
    raise ResolveRefused(
        f"operation {operation_id} is settled as {state.name}, but the report is {type(outcome).__name__}: find out "
        "which is right"
    )


def _early(operation_id: str, wait_us: int) -> ResolveRefused:
    seconds = wait_us / 1_000_000
    return ResolveRefused(
        f"the handler of operation {operation_id} may still be running; report again in {seconds:.0f} s",
        retry_after_seconds=seconds,
    )


def _check_steps(outcome: Reported, steps: object) -> tuple[tuple[str, bool], ...] | None:
    if steps is None:
        return None
    if isinstance(outcome, StepSucceeded):
        raise PolicyError("StepSucceeded continues the execution, and steps= ends it: give one of the two")
    if not isinstance(steps, Mapping) or not all(
        isinstance(name, str) and isinstance(happened, bool) for name, happened in steps.items()
    ):
        raise PolicyError(
            f"steps must map each step to whether it happened, such as {{'mail': False}}; it is {steps!r}"
        )
    return tuple(steps.items())


def _check_report(operation_id: object, outcome: object, proof: object, actor: object) -> bytes:
    id = uuid_bytes(operation_id) if isinstance(operation_id, str) else None
    if id is None:
        raise PolicyError(f"operation_id is a UUID's text, such as permit.operation_id; it is {operation_id!r}")
    if not isinstance(outcome, (SucceededWith, RefusedWith, StepSucceeded, DidNotHappen)):
        raise PolicyError(
            f"outcome must be SucceededWith, RefusedWith, StepSucceeded or DidNotHappen; it is {outcome!r}"
        )
    for name, text in (("proof", proof), ("actor", actor)):
        if not isinstance(text, str) or not text.strip() or len(text) > REASON_LENGTH_MAX:
            raise PolicyError(f"{name} must be a text of 1 to {REASON_LENGTH_MAX} characters; it is {text!r:.80}")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise PolicyError(f"{name} must be valid Unicode; it contains a lone surrogate")
    return id
