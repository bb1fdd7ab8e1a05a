"""Apply a finding about a step in doubt to the list of steps.

The step did not happen, or it finished with a result. Either way the execution continues where it was: finished steps
stay finished, and derived keys stay the same. Only a resolution of the whole execution ends it; if nothing is in doubt,
that resolution must cover each step that had begun.
"""

from __future__ import annotations

from semel.core.model import Record, Resolution, State
from semel.core.record import is_sound
from semel.errors import ResolveRefused
from semel.steps.doubts import step_of
from semel.steps.rules import Step, Steps, Unpackable, has_begun, put, unpack_steps, with_result


def steps_after(row: Record | None, resolution: Resolution, listed: object, now: int) -> Steps | None:
    """Return the list of steps after an operator's or reconciler's resolution; None if it ends the execution.

    Parameters: ``row`` the record as it is; ``listed`` its list as it is stored; ``now`` the store's time.

    Raises:
        ResolveRefused: the list cannot be read, so that a finished step might be made again; it holds no such step; or
            a finding that ends the execution does not cover all steps that had begun.
        StepError: the step's result is too long to be recorded.
    """
    if (
        row is None
        or not is_sound(row)
        or row.fence != resolution.fence
        or row.state not in (State.UNKNOWN, State.PROCESSING, State.CLAIMED)
    ):
        return None  # it has moved on, and nothing will be written
    if resolution.ends is not None:
        held = row.state != State.UNKNOWN and now < row.lease_until
        return None if held else _end_steps(row, resolution, dict(resolution.ends), listed)
    if row.state == State.CLAIMED:
        return None
    if resolution.happened and resolution.result is None:
        return None
    try:
        steps = unpack_steps(listed, row.generation)
    except Unpackable as error:
        raise ResolveRefused(
            f"{error}, so that it is not known which steps have finished, and a retry might make them again; settle "
            "the whole command as succeeded, with an answer that tells the client how it ended"
        ) from error
    if step_of(row.doubt) is None:
        return steps or None  # unfinished steps continue, or begin
    return apply_finding(steps, row.doubt, resolution.result)


def apply_finding(steps: Steps, doubt: str | None, result: bytes | None) -> Steps:
    """Return the list after a finding: the step in doubt did not happen, or finished with this result.

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


def _end_steps(row: Record, resolution: Resolution, findings: dict[str, bool], listed: object) -> Steps | None:
    """Return the list of an execution that ends; None: it is unchanged. Raises ResolveRefused as ``steps_after``.

    "It did not happen" frees the key, and so needs a list in which no step has happened. An end with an answer is
    final: no step runs again, whatever the list.
    """
    from semel.bulk.rules import is_bulk  # it is large, and no other resolution needs it

    if is_bulk(row.recipe):
        raise ResolveRefused("this is a bulk, whose items are commands of their own: see semel bulk --help")
    try:
        steps = unpack_steps(listed, row.generation)
    except Unpackable as error:
        if resolution.happened:
            return None
        raise ResolveRefused(
            f"{error}, so that it is not known which steps have finished, and a retry might make them again; end the "
            "command as succeeded or refused, with an answer that tells the client how it ended"
        ) from error
    _check_answered(steps, findings)
    if resolution.happened:
        return None
    done = next((step for step in steps if step.finished or findings.get(step.shown)), None)
    if done is not None:
        raise ResolveRefused(
            f"step {done.shown!r} has happened, so the whole command may not run again; if it was undone, end the "
            "command as refused, with an answer that explains it (--refused --status 409)"
        )
    return tuple(step._replace(disproved=True) for step in steps) or None


def find_unfinished(steps: Steps) -> Steps:
    """Find the steps that an end of the execution must cover: begun, with no recorded end."""
    return tuple(step for step in steps if has_begun(step) and not step.finished)


def _check_answered(steps: Steps, findings: dict[str, bool]) -> None:
    listed = {step.shown: step for step in steps}
    for name, happened in findings.items():
        step = listed.get(name)
        if step is None:
            raise ResolveRefused(f"no step {name!r} of this command has begun; {_list_begun(steps)}")
        if step.finished and not happened:
            raise ResolveRefused(
                f"step {name!r} is recorded as finished, which is the better witness; if its effect was undone since, "
                "say so in the reason and in the answer"
            )
    open = [step.shown for step in find_unfinished(steps) if step.shown not in findings]
    if open:
        raise ResolveRefused(
            f"say of each step that had begun and not finished whether it happened; unanswered: {_join_names(open)} "
            f"(--step {open[0]}=happened, or --step {open[0]}=not)"
        )


def _list_begun(steps: Steps) -> str:
    names = [step.shown for step in steps if has_begun(step)]
    return f"those that have: {_join_names(names)}" if names else "none has"


def _join_names(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def state_text(step: Step) -> str:
    """Describe the recorded state of a step for people.

    >>> state_text(Step("mail", 0, 1, repeatable=True))
    'had begun, and may be repeated'
    """
    if step.finished:
        return "finished"
    if step.disproved:
        return "did not happen"
    return "had begun, and may be repeated" if step.repeatable else "had begun"
