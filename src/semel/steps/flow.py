"""The flows of one run's steps: read the recorded ones, record a start, record an end.

A start is one fenced write of the whole list, which carries the results of the earlier steps: a step costs one round
trip. Nothing here makes a step's call; the shells in ``steps/run.py`` do, between two flows.
"""

from __future__ import annotations

from typing import Final

from semel.atomic.flow import NOT_ROLLED_BACK, has_left_writes
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import Claim, Grant, Proceed, Renewal, Verdict
from semel.core.outcomes import Outcome, Refused, Succeeded
from semel.core.requests import AnyUnit, Begin, Commit, Perform, Rollback, SettleWithin, Within
from semel.errors import (
    EarlyCommit,
    StepError,
    StepInDoubt,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    SupersededError,
)
from semel.steps.doubts import UNREADABLE
from semel.steps.rules import (
    BeginStep,
    DoubtfulStep,
    Finished,
    Identity,
    Step,
    Steps,
    Unpackable,
    doubtful,
    find,
    has_begun,
    meet,
    outcome_after,
    pack_steps,
    put,
    standing,
    unpack_steps,
    with_result,
    without,
)
from semel.steps.store import Recorded, StepRows

_SUPERSEDED: Final = "the record was granted to another attempt, or settled: step {step} was not begun"
_UNSEEN: Final = (
    "the start of an earlier step was not confirmed by the store, and may be written yet, over what comes later: step "
    "{step} was not begun; the next run continues"
)


class StepLedger:
    """The steps known to the holder of one grant.

    Only one of its flows may write at a time, which their performer ensures; calls of steps may overlap.
    """

    def __init__(self, rows: StepRows, grant: Grant, dedup_us: int) -> None:
        self._rows = rows
        self._holder = Renewal(grant.id, grant.fence, grant.nonce)
        self._generation = grant.generation
        self._dedup_us = dedup_us
        self._first = grant.attempt == 1
        self._learned = self._first
        self._steps: Steps = ()
        self._stored: Steps = ()  # the last list that the store is known to have
        self._passed: Steps = ()  # steps of this run that did not begin, or had no effect; their places are reserved
        self._asked: set[Identity] = set()
        self._running: set[Identity] = set()
        self._repeated: set[Identity] = set()  # running steps whose earlier call may have had its effect
        self._changes = 0  # the number of changes of the list
        self._written = 0  # the number of changes that the store has confirmed
        self._unseen = False  # a list was sent, and the store may have it now, or later
        self._committing = False  # a local step's list was sent with its writes: nothing may overwrite it
        self.doubt: str | None = None  # the doubt that made a step be refused

    # --- a step whose effects are elsewhere ------------------------------------------------

    def begin(self, want: Step) -> Flow[Finished | Step]:
        """Return a step's recorded result, or record its start and return the step: then make its call.

        Raises StepError, StepInDoubt, SupersededError, StoreError: its call must not be made.
        """
        met = yield from self._meet(want)
        if isinstance(met, Finished):
            return met
        step = met.step
        self._asked.add(step.identity)
        self._running.add(step.identity)
        before = find(self._steps, step.identity)
        if before is not None and has_begun(before):
            self._repeated.add(step.identity)
        steps = put(self._with_room_for(step), step)
        try:
            held = yield from self._write(steps)
        except StoreError:
            self._running.discard(step.identity)  # the write may have landed: the list must be written again
            self._passed = put(self._passed, step)
            raise
        if not held:
            self._running.discard(step.identity)
            raise SupersededError(_SUPERSEDED.format(step=repr(step.shown)))
        self._steps = steps
        return step

    def _with_room_for(self, step: Step) -> Steps:
        """Return the list with a place for each earlier step: the next run calls them in that order."""
        known = {*(each.identity for each in self._steps), step.identity}
        room = (each._replace(disproved=True) for each in self._passed if each.identity not in known)
        return (*self._steps, *room)

    def finish(self, step: Step, result: bytes) -> None:
        """Note a returned call, whose result travels with the next write. Raises StepError: it is too long."""
        self._running.discard(step.identity)
        self._steps = with_result(self._steps, step, result)
        self._changes += 1

    def fail(self, step: Step, *, nothing_happened: bool) -> None:
        """Note a call that raised; ``nothing_happened``: its exception proves that it had no effect."""
        self._running.discard(step.identity)
        if nothing_happened and step.identity not in self._repeated:
            self._asked.discard(step.identity)
            self._steps = without(self._steps, step.identity)
            self._passed = put(self._passed, step)
            self._changes += 1

    # --- a step that is local writes --------------------------------------------------------

    def open(self, want: Step, begin: Begin) -> Flow[Finished | tuple[Step, AnyUnit, Recorded]]:
        """Return the recorded result, or the step with an open unit for its call's writes. Raises as ``begin``."""
        met = yield from self._meet(want)
        if isinstance(met, Finished):
            return met
        self._passed = put(self._passed, met.step)  # until it is committed, the store has nothing of it
        unit = yield from ask(begin)
        try:
            seen = yield from ask(Within(unit, "read_steps", lambda: self._rows.read(self._holder, within=True)))
            if seen is not None:
                unit.hand_out()
                self._asked.add(met.step.identity)
                self._running.add(met.step.identity)
                return met.step, unit, seen
        except Exception:  # a unit that is never ended would keep its connection
            yield from ask(Rollback(unit))
            raise
        yield from ask(Rollback(unit))
        raise SupersededError(_SUPERSEDED.format(step=repr(want.shown)))

    def commit(self, opened: tuple[Step, AnyUnit, Recorded], result: bytes) -> Flow[None]:
        """Record the step as finished in its unit, and commit both.

        Raises:
            SupersededError, EarlyCommit, StoreError: as the unit's end says; the writes are undone where they can be.
            StepInDoubt: the commit was not answered, and could not be read back.
        """
        step, unit, seen = opened
        self._check_seen(step)
        steps = with_result(self._with_room_for(step), step, result)
        packed, changes = pack_steps(self._generation, steps), self._changes
        try:
            if self._rows.settles_by_proof:
                needed = self._rows.write_within(self._holder, packed, standing(steps), seen.transaction)
                held = yield from ask(SettleWithin(unit, needed))
            else:
                write = self._rows.write
                held = yield from ask(Within(unit, "write_steps", lambda: write(self._holder, packed, standing(steps))))
                if held:
                    yield from ask(Commit(unit))
        except StoreTimeout:
            yield from self._confirm(step, packed)
            held = True
        except Exception:
            yield from self._roll_back(unit)
            raise
        if not held:
            yield from self._refuse(step, unit)
        self._running.discard(step.identity)
        self._steps = with_result(self._with_room_for(step), step, result)
        self._stored = steps
        if self._changes == changes:
            self._written = changes

    def undo(self, opened: tuple[Step, AnyUnit, Recorded]) -> Flow[None]:
        """Undo the writes of a call that raised; the step may be called again."""
        step, unit, _ = opened
        self._running.discard(step.identity)
        self._asked.discard(step.identity)
        yield from self._roll_back(unit)

    def _roll_back(self, unit: AnyUnit) -> Flow[None]:
        """Roll back the call's writes; if the server could not undo all of them, the operation is UNKNOWN."""
        yield from ask(Rollback(unit))
        if has_left_writes(unit):
            self.doubt = NOT_ROLLED_BACK

    def _confirm(self, step: Step, packed: bytes) -> Flow[None]:
        """Resolve an unanswered commit: the recorded state is the evidence."""
        try:
            seen = yield from ask(Perform("read_steps", lambda: self._rows.read(self._holder)))
        except StoreError:
            seen = None
        if seen is None or seen.steps != packed:  # invisible, but a server may still be committing it
            self.doubt, self._committing = step.doubt, True
            raise StepInDoubt(f"the commit of step {step.shown!r} was not answered, and cannot be seen: not known yet")

    def _refuse(self, step: Step, unit: AnyUnit) -> Flow[None]:
        yield from self._roll_back(unit)
        seen = yield from ask(Perform("read_steps", lambda: self._rows.read(self._holder)))
        if seen is None:
            raise SupersededError(_SUPERSEDED.format(step=repr(step.shown)))
        self.doubt = step.doubt
        raise EarlyCommit(
            f"the transaction of step {step.shown!r} was over before Semel ended it; leave COMMIT and ROLLBACK to Semel"
        )

    # --- the end of the run -------------------------------------------------------------------

    def close(self, outcome: Outcome) -> Flow[None]:
        """Before the outcome: check for recorded steps that were not called, and write results not covered by an
        answer.

        If the store fails, the settlement names the step in doubt.
        """
        try:
            yield from self._learn()
            ends = outcome_after(outcome, self._steps, self._asked, self.doubt, first=self._first)
            if isinstance(ends, (Succeeded, Refused)):
                return
            if self._changes != self._written and not self._committing:
                _ = yield from self._write(self._steps)
        except (StoreError, StepInDoubt, SupersededError):
            stored = {step.identity for step in self._stored if step.finished}
            lost = (step for step in self._steps if step.finished and not step.repeatable)
            unwritten = next((step for step in lost if step.identity not in stored), None)
            if self._changes != self._written and self.doubt is None and unwritten is not None:
                self.doubt = unwritten.doubt

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome of this run: see :func:`semel.steps.rules.outcome_after`."""
        return outcome_after(outcome, self._steps, self._asked, self.doubt, first=self._first)

    @property
    def in_doubt(self) -> bool:
        """Whether a step may have happened and may not be repeated."""
        return self.doubt is not None or doubtful(self._steps) is not None

    # --- what is recorded ---------------------------------------------------------------------

    def _meet(self, want: Step) -> Flow[Finished | BeginStep]:
        if want.identity in self._running:
            raise StepError(f"step {want.shown!r} is already running; give the second one its own ordinal")
        if self.doubt is not None:
            raise StepInDoubt(f"the operation is UNKNOWN ({self.doubt}): step {want.shown!r} was not begun")
        try:
            yield from self._learn()
        except StoreError:
            self._passed = put(self._passed, want)
            raise
        met = meet(self._with_room_for(want), self._asked, want, self._dedup_us)
        if isinstance(met, DoubtfulStep):
            self.doubt = met.doubt
            raise StepInDoubt(f"{met.why}; the operation is UNKNOWN until that is found out")
        if isinstance(met, Finished):
            self._asked.add(want.identity)
        else:
            self._check_seen(want)
        return met

    def _check_seen(self, step: Step) -> None:
        if self._unseen:  # a late write would drop this step from the list, and the next run would repeat it
            raise StoreTimeout(_UNSEEN.format(step=repr(step.shown)))

    def _learn(self) -> Flow[None]:
        """Read the list once, unless none can have been written."""
        if self._learned:
            return
        seen = yield from ask(Perform("read_steps", lambda: self._rows.read(self._holder)))
        if seen is None:
            raise SupersededError("the record was granted to another attempt, or settled: no step was begun")
        try:
            self._steps = self._stored = unpack_steps(seen.steps, self._generation)
        except Unpackable as error:
            self.doubt = UNREADABLE
            raise StepInDoubt(f"the record of the previous run cannot be read: {error}") from error
        self._learned = True

    def _write(self, steps: Steps) -> Flow[bool]:
        self._changes += 1  # until the store has confirmed this list, it may hold another one
        changes = self._changes
        packed, stands = pack_steps(self._generation, steps), standing(steps)
        was_unseen, self._unseen = self._unseen, True
        try:
            held = yield from ask(Perform("write_steps", lambda: self._rows.write(self._holder, packed, stands)))
        except StoreUnavailable:  # nothing was written
            self._unseen = was_unseen
            raise
        self._unseen = was_unseen
        if held:
            self._written, self._stored = changes, steps
        return held


def keep_request(store: Store, claim: Claim, verdict: Verdict) -> Flow[Verdict]:
    """Return a claim's verdict; if it was granted, keep a resumable command's request beside the record.

    Raises StoreTimeout if that is uncertain: the caller must give up the claim.
    """
    if not isinstance(verdict, Proceed) or claim.request is None:
        return verdict
    rows, request, grant = StepRows(store), claim.request, verdict.grant
    holder = Renewal(grant.id, grant.fence, grant.nonce)
    try:
        held = yield from ask(Perform("keep_request", lambda: rows.keep_request(holder, request)))
    except StoreError as error:
        raise StoreTimeout(f"the request could not be kept beside its claim, which is given up: {error}") from error
    if not held:
        raise StoreTimeout("the claim was lost before its request could be kept; retry with the same key")
    return verdict
