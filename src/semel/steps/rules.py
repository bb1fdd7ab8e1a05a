"""Steps: the recovery points of one execution, and how a later run may treat each.

The record's own row holds the packed list, and its holder writes it whole. A finished step returns its recorded result.
An unfinished one runs again only if it was declared repeatable, still is, and the downstream cannot have forgotten its
derived key yet. Everything else is a doubt that is named after the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from struct import Struct, error
from typing import Final, NamedTuple

from semel.core.model import State
from semel.core.outcomes import Outcome, Released, Unprovable
from semel.errors import StepError
from semel.steps.doubts import DOUBT, names_a_step

STEPS_MAX: Final = 256
NAME_BYTES_MAX: Final = 100
ORDINAL_MAX: Final = 2**31 - 1
STEPS_BYTES_MAX: Final = 1024 * 1024  # written whole with each step: a result is a receipt, not a document

_FORMAT: Final = 1
_HEAD: Final = Struct(">BIH")  # format, generation, how many
_STEP: Final = Struct(">BIqBI")  # bytes of the name, ordinal, started at, flags, bytes of the result
_FINISHED, _REPEATABLE, _DISPROVED = 1, 2, 4
_DIGEST_BYTES: Final = 8

Identity = tuple[str, int]


class Step(NamedTuple):
    """One step as it is recorded.

    ``started_at`` is the first start, in microseconds of the store's clock; ``disproved``: it had begun, and an
    operator or a reconciler found that it did not happen. It keeps its place in the list, and begins again under the
    same derived key.
    """

    name: str
    ordinal: int
    started_at: int
    repeatable: bool
    finished: bool = False
    result: bytes = b""
    disproved: bool = False

    @property
    def identity(self) -> Identity:
        """The identity of a step: its name, and an ordinal if the name is used several times."""
        return self.name, self.ordinal

    @property
    def shown(self) -> str:
        """The step's name for people."""
        return self.name if self.ordinal == 0 else f"{self.name}#{self.ordinal}"

    @property
    def doubt(self) -> str:
        """The doubt of a record that is UNKNOWN because of this step."""
        return f"{DOUBT}{self.shown}"


Steps = tuple[Step, ...]


class Unpackable(ValueError):
    """A stored list of steps that cannot be read: damaged, or written by a newer Semel."""


def pack_steps(generation: int, steps: Steps) -> bytes:
    """Pack the list for storage, with the generation that it belongs to and a digest over the whole."""
    parts = [_HEAD.pack(_FORMAT, generation, len(steps))]
    for step in steps:
        name = step.name.encode()
        flags = (_FINISHED if step.finished else 0) | (_REPEATABLE if step.repeatable else 0)
        flags |= _DISPROVED if step.disproved else 0
        parts += (_STEP.pack(len(name), step.ordinal, step.started_at, flags, len(step.result)), name, step.result)
    packed = b"".join(parts)
    return packed + hashlib.sha256(packed).digest()[:_DIGEST_BYTES]


def unpack_steps(stored: object, generation: int) -> Steps:
    """Unpack the steps of this generation; those of another one mean nothing.

    >>> charge = Step("charge", 0, started_at=1, repeatable=False, finished=True, result=b"1")
    >>> unpack_steps(pack_steps(0, (charge,)), 0) == (charge,), unpack_steps(pack_steps(0, (charge,)), 1)
    (True, ())

    Raises Unpackable.
    """
    if stored is None:
        return ()
    if not isinstance(stored, bytes):  # SQLite keeps a value of any type in any column
        raise Unpackable("the list of steps is damaged")
    packed, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest()[:_DIGEST_BYTES] != digest:
        raise Unpackable("the list of steps is damaged")
    try:
        form, written, count = _HEAD.unpack_from(packed)
        if form != _FORMAT:
            raise Unpackable(f"the list of steps is of format {form}, which this Semel does not know")
        return _unpack(packed, count) if written == generation else ()
    except (error, UnicodeDecodeError):
        raise Unpackable("the list of steps is damaged") from None


def _unpack(packed: bytes, count: int) -> Steps:
    steps, at = [], _HEAD.size
    for _ in range(count):
        name_bytes, ordinal, started_at, flags, result_bytes = _STEP.unpack_from(packed, at)
        at += _STEP.size
        name, at = packed[at : at + name_bytes].decode(), at + name_bytes
        result, at = packed[at : at + result_bytes], at + result_bytes
        told = bool(flags & _REPEATABLE), bool(flags & _FINISHED), result, bool(flags & _DISPROVED)
        steps.append(Step(name, ordinal, started_at, *told))
    return tuple(steps)


def find(steps: Steps, identity: Identity) -> Step | None:
    """Find the step with this identity."""
    return next((step for step in steps if step.identity == identity), None)


def put(steps: Steps, step: Step) -> Steps:
    """Return the list with this step as it is now, in its place."""
    if find(steps, step.identity) is None:
        return (*steps, step)
    return tuple(step if each.identity == step.identity else each for each in steps)


def without(steps: Steps, identity: Identity) -> Steps:
    """Return the list without a step that proved to have no effect; one that others follow keeps its place."""
    if steps and steps[-1].identity == identity:
        return steps[:-1]
    return tuple(step._replace(disproved=True) if step.identity == identity else step for step in steps)


def has_begun(step: Step) -> bool:
    """Whether a recorded step has finished, or may have had its effect."""
    return not step.disproved


def any_begun(stored: object, generation: int) -> bool:
    """Whether a stored list holds a step that has begun; True where it cannot be read.

    >>> any_begun(None, 0), any_begun(b"damaged", 0)
    (False, True)
    """
    try:
        return any(map(has_begun, unpack_steps(stored, generation)))
    except Unpackable:
        return True


def doubtful(steps: Steps) -> Step | None:
    """Find the first step whose effect may have happened, and which may not be repeated."""
    return next((step for step in steps if not step.finished and not step.repeatable and has_begun(step)), None)


def standing(steps: Steps) -> tuple[State, str | None]:
    """Return the state and doubt of a record with these steps.

    CLAIMED lapses to "run again": each begun step is finished or may be repeated. PROCESSING lapses to UNKNOWN.
    """
    step = doubtful(steps)
    return (State.CLAIMED, None) if step is None else (State.PROCESSING, step.doubt)


# --- what a run that asks for a step meets ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """The step is done, with this recorded result."""

    result: bytes


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Record this start, then make the call: for the first time, or again with the same derived key."""

    step: Step


@dataclass(frozen=True, slots=True)
class DoubtfulStep:
    """The step may have happened, and must not be repeated."""

    doubt: str
    why: str


Met = Finished | BeginStep | DoubtfulStep


def check_name(name: object, ordinal: object) -> None:
    """Raise StepError if this cannot name a step."""
    if not isinstance(name, str) or not name:
        raise StepError(f"a step needs a name, such as permit.step('charge', call); it is {name!r}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise StepError(f"a step's name must be valid Unicode; it is {name!a}") from None
    if length > NAME_BYTES_MAX:
        raise StepError(f"a step's name must have at most {NAME_BYTES_MAX} bytes; it has {length}")
    if isinstance(ordinal, bool) or not isinstance(ordinal, int) or not 0 <= ordinal <= ORDINAL_MAX:
        raise StepError(
            f"the ordinal of step {name!r} must be a whole number from 0 to {ORDINAL_MAX}; it is {ordinal!r}"
        )


def meet(recorded: Steps, asked: Collection[Identity], want: Step, dedup_us: int) -> Met:
    """Decide how to treat a step that a run calls.

    Parameters: ``recorded`` all steps of this execution; ``asked`` what this run has asked for before; ``want`` the
    step as the code declares it now, started now.

    Raises StepError: the name was used in this run, the list is full, or it holds a step that the code has skipped.
    """
    known = find(recorded, want.identity)
    if known is None:
        _check_new(recorded, asked, want)
        return BeginStep(want)
    if not has_begun(known):
        return BeginStep(want)
    if known.finished:
        if want.identity in asked:
            raise StepError(
                f"step {want.shown!r} was called twice in one run; give the second one an ordinal: "
                f"permit.step({want.name!r}, call, ordinal={want.ordinal + 1})"
            )
        return Finished(known.result)
    why = _why_not_again(known, want, dedup_us)
    return BeginStep(known) if why is None else DoubtfulStep(known.doubt, f"step {known.shown!r} had begun, and {why}")


def _check_new(recorded: Steps, asked: Collection[Identity], want: Step) -> None:
    skipped = next((step for step in recorded if step.identity not in asked and has_begun(step)), None)
    if skipped is not None:
        # It may be the same effect under another name: beginning it would be a silent rerun.
        raise StepError(
            f"step {want.shown!r} is not recorded, and {skipped.shown!r} is, which this run has not called: were the "
            "steps renamed or reordered? Finish open commands with the previous code, or call the recorded steps "
            "first, in their order"
        )
    if len(recorded) >= STEPS_MAX:
        raise StepError(
            f"an execution has at most {STEPS_MAX} steps, those that did not happen among them; {want.shown!r} would "
            "be one more. Put several into one step, or make a command of each part"
        )


def _why_not_again(known: Step, want: Step, dedup_us: int) -> str | None:
    if not known.repeatable:
        return "it is not declared with repeat=True"
    if not want.repeatable:
        return "it was declared with repeat=True, and is not any more"
    if want.started_at - known.started_at >= dedup_us:
        return "its first start is longer ago than the downstream deduplicates (dedup_for_seconds)"
    return None


def with_result(steps: Steps, step: Step, result: bytes) -> Steps:
    """Return the list with this step finished. Raises StepError if the whole would be too long."""
    ended = put(steps, step._replace(finished=True, result=result))
    total = _HEAD.size + sum(_STEP.size + len(each.name.encode()) + len(each.result) for each in ended)
    if total > STEPS_BYTES_MAX:
        raise StepError(
            f"step {step.shown!r} ran, and its result of {len(result)} bytes cannot be recorded: the results of one "
            f"execution may have {STEPS_BYTES_MAX} bytes together. Return only the data that the next steps need, such "
            "as an id"
        )
    return ended


# --- what the end of a run means --------------------------------------------------------------


def outcome_after(
    outcome: Outcome, recorded: Steps, asked: Collection[Identity], doubt: str | None, *, first: bool
) -> Outcome:
    """Return the outcome of a handler whose every effect is inside a step.

    Parameters: ``outcome`` as for any EXTERNAL handler; ``doubt`` with which a step was refused; ``first``
    whether this is the execution's first run.
    """
    if isinstance(outcome, Unprovable) and names_a_step(outcome.doubt):
        return outcome  # it was recorded already
    if doubt is None:
        step = doubtful(recorded)
        if step is None and not isinstance(outcome, (Released, Unprovable)):
            # The code no longer has a step that had begun: how far it came is unknown.
            dropped = (each for each in recorded if not each.finished and each.identity not in asked)
            step = next(filter(has_begun, dropped), None)
        elif not isinstance(outcome, (Released, Unprovable)):
            return outcome  # the handler knows of its failed step, and has answered anyway
        doubt = None if step is None else step.doubt
    match outcome:
        case Released(reason):
            if doubt is not None:
                return Unprovable(doubt, reason)
            return replace(outcome, resumes=any(map(has_begun, recorded)) or not first)
        case Unprovable(reason):
            if doubt is not None:
                return outcome if reason == doubt else Unprovable(doubt, reason)
            return Released(reason, proven=True, resumes=any(map(has_begun, recorded)) or not first)
        case _:
            return outcome if doubt is None else Unprovable(doubt, "answered")
