"""The downstream of a handler with steps: what was attempted, what happened, and what may never happen again.

Each step of each scoped key has its own account. A step that is not repeatable may be attempted once, and once more for
each time that somebody has found out that it did not happen. A repeatable one comes with its derived key: where the
downstream deduplicates, it happens once; where it does not, a second effect is the risk that its author declared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verification.simulate.ledger import Execution, Ledger
from verification.simulate.script import Part, Script
from verification.simulate.violation import Violated
from verification.simulate.world import World


@dataclass(slots=True)
class Account:
    """One step of one key. ``open``: the attempts that are not proven to be without effect."""

    attempts: int = 0
    open: int = 0
    effects: list[int] = field(default_factory=list)  # numbers, which are the results
    finished: bytes | None = None  # its result, once that is recorded


@dataclass(frozen=True, slots=True)
class StepEffect:
    """One step's effect: of which run, under which derived key, and whom to tell its number."""

    execution: Execution
    key: str
    part: Part
    number: int


class StepLedger(Ledger):
    """The accounts of every step. ``deduplicates``: whether the downstream recognises derived keys."""

    def __init__(self, world: World, forgets_after_us: int, script: Script, *, deduplicates: bool) -> None:
        super().__init__(world, forgets_after_us)
        self.script = script
        self.deduplicates = deduplicates
        self.repeated = 0  # second effects that were declared as their author's risk
        self._known: dict[str, tuple[int, int]] = {}  # derived key -> when, number
        self._accounts: dict[tuple[bytes, int, str], Account] = {}
        self._by_hand: set[tuple[bytes, int]] = set()
        self._numbers = 0

    def account(self, id: bytes, life: int, name: str) -> Account:
        """The account of one step."""
        return self._accounts.setdefault((id, life, name), Account())

    def has_happened(self, id: bytes, life: int | None = None) -> bool:
        """Whether all of it took place: every step, or the rest by an operator's hand."""
        at = self.life(id) if life is None else life
        return (id, at) in self._by_hand or all(self.account(id, at, part.name).effects for part in self.script)

    def anything_happened(self, id: bytes) -> bool:
        """Whether any step of its present life took place."""
        return any(self.account(id, self.life(id), part.name).effects for part in self.script)

    def may_have_happened(self, id: bytes) -> bool:
        """Whether any step of its present life took place, or is an attempt that was not disproved.

        Of a local step what counts is what was committed.
        """
        for part in self.script:
            account = self.account(id, self.life(id), part.name)
            if account.effects or (account.open and part.kind != "local"):
                return True
        return False

    def completed_by_hand(self, id: bytes) -> None:
        """An operator has found the doubtful step done, and does the rest without Semel."""
        self._by_hand.add((id, self.life(id)))

    # --- calls --------------------------------------------------------------------------------

    def begin(self, run: Execution, part: Part, *, superseded: bool) -> None:
        """A step's call is made. Raises Violated where it may not be.

        Parameters: ``superseded`` whether another attempt was granted the record since this start was recorded. A
        process that was paused there makes its call nevertheless, which a repeatable step has to bear.
        """
        account = self.account(run.id, run.life, part.name)
        if account.finished is not None and not (superseded and part.repeats):
            raise Violated("I4 no blind rerun", f"step {part.name} is finished, and is run again by {run}")
        if part.kind == "plain" and account.open:
            raise Violated("I4 no blind rerun", f"step {part.name} may not be repeated, and is begun again by {run}")
        account.attempts += 1
        account.open += 1

    def note_proof(self, run: Execution, part: Part) -> None:
        """Note that a call has ended and proved that it had no effect."""
        self.account(run.id, run.life, part.name).open -= 1

    def did_not_happen(self, id: bytes, name: str) -> None:
        """Note the finding that this step did not happen. Raises Violated if it did."""
        account = self.account(id, self.life(id), name)
        if account.effects:
            raise Violated("I4 no blind rerun", f"step {name} was settled as 'did not happen', and it had")
        account.open = 0

    def effect(self, run: Execution, part: Part, key: str) -> StepEffect:
        """An effect that is on its way."""
        self._numbers += 1
        return StepEffect(run, key, part, self._numbers)

    def execute(self, effect: StepEffect) -> int:  # type: ignore[override]  # of another kind of handler
        """An effect arrives; the number that the downstream answers with. Raises Violated where it is one too many."""
        self.attempted += 1
        run, part, now = effect.execution, effect.part, self._world.now
        if part.repeats and self.deduplicates:
            known = self._known.get(effect.key)
            if known is not None and now - known[0] < self._forgets_after_us:
                if self._world.tracing:
                    self._world.tell("provider", f"knows {effect.key[:8]} of {part.name}: nothing more is done")
                return known[1]
            self._known[effect.key] = now, effect.number
        if self._world.tracing:
            self._world.tell("provider", f"EFFECT of {part.name} by {run}")
        effects = self.account(run.id, run.life, part.name).effects
        effects.append(effect.number)
        if len(effects) > 1:
            if not part.repeats or self.deduplicates:
                name = "I1 one effect" if part.repeats else "I4 no blind rerun"
                raise Violated(name, f"step {part.name} happened {len(effects)} times, at last by {run}")
            self.repeated += 1
        return effect.number

    # --- what is recorded -----------------------------------------------------------------------

    def check_recorded(self, id: bytes, finished: dict[str, bytes]) -> None:
        """Check the finished steps that a record stores now. Raises Violated if one is gone or has changed."""
        life = self.life(id)
        for part in self.script:
            account = self.account(id, life, part.name)
            result = finished.get(part.name)
            if result is None and account.finished is None:
                continue
            if result is None:
                raise Violated("I4 no blind rerun", f"the finished step {part.name} is not recorded any more")
            if account.finished is not None and account.finished != result:
                raise Violated("I2 one answer", f"the recorded result of step {part.name} was changed")
            if int(result) not in account.effects:
                raise Violated("I2 one answer", f"step {part.name} is recorded as finished, and it did not happen so")
            account.finished = result

    def check_result(self, run: Execution, part: Part, number: int, *, superseded: bool) -> None:
        """Check the result that a step gave to its handler. Raises Violated if it is not the step's own.

        Parameters: ``superseded`` as for ``begin``: the answer of such a handler is not used.
        """
        account = self.account(run.id, run.life, part.name)
        if number not in account.effects:
            raise Violated("I2 one answer", f"step {part.name} gave {number} to {run}, and it did not happen so")
        if not superseded and account.finished is not None and int(account.finished) != number:
            raise Violated("I2 one answer", f"step {part.name} gave another result than the recorded one to {run}")
