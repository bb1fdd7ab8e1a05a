"""The downstream: what really happened, independent of the records.

Every effect that reaches it is written down with the scoped key, the grant and the worker it came from.
For IDEMPOTENT commands it deduplicates by the derived key, for as long as it promises; for EXTERNAL ones it
performs every call. A scoped key has one *life* from its first grant until its retention is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.core.model import Effects
from verification.simulate.violation import Violated
from verification.simulate.world import World

_BROKEN: Final = {
    Effects.ATOMIC: "I1 one effect",
    Effects.IDEMPOTENT: "I1 one effect",
    Effects.EXTERNAL: "I4 no blind rerun",
}


@dataclass(slots=True)
class Execution:
    """One run of a handler."""

    number: int
    id: bytes
    life: int
    nonce: bytes
    fence: int
    generation: int
    attempt: int
    worker: str
    effects: Effects
    payload: int
    begun: bool = False
    running: bool = True
    committed_early: bool = False
    done: bool = False  # its effect is in the ledger, by whomever it got there

    def __str__(self) -> str:
        return (
            f"execution {self.number} on {self.worker} (attempt {self.attempt}, generation {self.generation}, "
            f"fence {self.fence})"
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect: whose it is, under which derived key."""

    execution: Execution
    key: str


class Ledger:
    """What the provider did, in order. ``forgets_after_us`` is how long it deduplicates."""

    def __init__(self, world: World, forgets_after_us: int) -> None:
        self._world = world
        self._forgets_after_us = forgets_after_us
        self._keys: dict[str, int] = {}
        self._lives: dict[bytes, int] = {}
        self._executed: dict[tuple[bytes, int], Execution] = {}
        self.on_their_way: dict[bytes, int] = {}  # charges that were sent and have not arrived, by record id
        self.attempted = 0

    def life(self, id: bytes) -> int:
        """Which life of the scoped key it is."""
        return self._lives.get(id, 0)

    def begin_life(self, id: bytes) -> None:
        """Begin a new life of a key whose retention is over: what comes now is another command."""
        self._lives[id] = self.life(id) + 1

    def has_happened(self, id: bytes, life: int | None = None) -> bool:
        """Whether the effect of this key took place, in its present life."""
        return (id, self.life(id) if life is None else life) in self._executed

    def execute(self, effect: Effect) -> None:
        """An effect arrives. Raises Violated where it is the second of its kind."""
        run = effect.execution
        self.attempted += 1
        now = self._world.now
        if run.effects is Effects.IDEMPOTENT:
            known = self._keys.get(effect.key)
            if known is not None and now - known < self._forgets_after_us:
                run.done = True
                if self._world.tracing:
                    self._world.tell("provider", f"knows {effect.key[:8]} of {run}: nothing more is done")
                return
            self._keys[effect.key] = now
        if self._world.tracing:
            self._world.tell("provider", f"EFFECT of {run}")
        first = self._executed.setdefault((run.id, run.life), run)
        run.done = True
        if first is not run:
            raise Violated(
                _BROKEN[run.effects],
                f"the effect of one {run.effects.name} command happened twice: by {first}, and again by {run}",
            )
