"""What was found out about a step in doubt, and what becomes of the list of steps then.

It did not happen, or it finished with a result. Either way the execution goes on where it was: what had finished before
stays finished, and derived keys stay the same. Only a word about the whole execution ends it.
"""

from __future__ import annotations

from semel.core.model import Record, Resolution, State
from semel.core.record import is_sound
from semel.errors import ResolveRefused
from semel.steps.doubts import step_of
from semel.steps.rules import Steps, Unpackable, put, unpack_steps, with_result


def steps_after(row: Record | None, word: Resolution, listed: object) -> Steps | None:
    """The list of steps after an operator's or reconciler's word; None where that word ends the execution.

    Parameters: ``row`` the record as it is; ``listed`` its list as it is stored.

    Raises:
        ResolveRefused: the list cannot be read, so that a finished step might be made again; or it holds no such step.
        StepError: the step's result is too long to be recorded.
    """
    if (
        row is None
        or not is_sound(row)
        or row.fence != word.fence
        or row.state not in (State.UNKNOWN, State.PROCESSING)
    ):
        return None  # it has moved on, and nothing will be written
    if word.happened and word.result is None:
        return None
    try:
        steps = unpack_steps(listed, row.generation)
    except Unpackable as error:
        raise ResolveRefused(
            f"{error}, so that nobody knows which steps have finished, and a retry might make them again; settle the "
            "whole command as succeeded, with an answer that tells the client how it ended"
        ) from error
    if step_of(row.doubt) is None:
        return steps or None  # what had not finished goes on, or begins
    return found(steps, row.doubt, word.result)


def found(steps: Steps, doubt: str | None, result: bytes | None) -> Steps:
    """The list once it is known of the step in doubt that it did not happen, or that it finished with this result.

    A step that is recorded as finished stays so: its own record is the better witness. Raises as ``steps_after``.
    """
    step = next((each for each in steps if each.doubt == doubt), None)
    if step is not None and step.finished:
        return steps
    if result is None:
        return steps if step is None else put(steps, step._replace(disproved=True))
    if step is None:
        raise ResolveRefused(f"no start of step {step_of(doubt)!r} is recorded: it did not happen")
    return with_result(steps, step._replace(disproved=False), result)
