"""The simulated world: one clock, one source of chance, one list of what happens next.

Every decision that real time, real networks and real schedulers take by accident is taken here, by a seed.
Times are whole microseconds since the run began.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verification.simulate.violation import Violated

if TYPE_CHECKING:
    from verification.simulate.loop import WorkerLoop

T = TypeVar("T")
SECOND: Final = 1_000_000
STEPS_MAX: Final = 50_000  # some hundred times what a schedule needs: more than that never ends


class World:
    """Time, chance and the order of events of one schedule."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.chance = random.Random(seed)
        self.draw: Callable[[], float] = self.chance.random
        self.now = 0
        self.steps = 0
        self.loops: list[WorkerLoop] = []
        self.shuffles = False
        self.running = False
        self.tracing = tracing
        self.trace: list[str] = []
        self._coming: list[tuple[int, float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._scheduled = 0

    # --- chance -------------------------------------------------------------------------------

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        return self.draw() < probability

    def pick(self, among: Sequence[T]) -> T:
        """Draw one of these."""
        return among[int(self.draw() * len(among))]

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, ``high`` excluded."""
        return low + int(self.draw() * (high - low))

    def bits(self, size: int) -> bytes:
        """So many random bytes."""
        return self.chance.getrandbits(size * 8).to_bytes(size, "big")

    # --- what happens next --------------------------------------------------------------------

    def after(self, us: int, act: Callable[..., object], *given: Any) -> None:
        """Have ``act(*given)`` called so many microseconds from now; at the same moment, in any order."""
        self._scheduled += 1
        heappush(self._coming, (self.now + us, self.draw(), self._scheduled, act, given))

    def stop(self) -> None:
        """End the present ``run``."""
        self.running = False

    def run(self, seconds: float) -> bool:
        """Let things happen until ``stop`` is called; False where the time was over before.

        Raises Violated where nothing comes to an end.
        """
        ends = self.now + int(seconds * SECOND)
        self.running = True
        coming = self._coming
        while self.running:
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Violated("I6 progress", f"no end after {STEPS_MAX} steps: something repeats itself for ever")
            ready = [loop for loop in self.loops if loop.ready and not loop.paused]
            if ready:
                loop = ready[0] if len(ready) == 1 else ready[int(self.draw() * len(ready))]
                loop.step()
                continue
            if not coming or coming[0][0] > ends:
                self.now = max(self.now, ends)
                return False
            self.now, _, _, act, given = heappop(coming)
            act(*given)
        return True

    # --- the record ---------------------------------------------------------------------------

    def tell(self, who: str, what: str) -> None:
        """Add one line to the trace; callers ask for ``tracing`` first, since most runs are never read."""
        self.trace.append(f"{self.now / SECOND:14.6f}  {who:<12} {what}")
