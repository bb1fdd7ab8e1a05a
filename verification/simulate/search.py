"""Runs schedules: many until the first violation, or one with its whole story."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from semel.errors import ConfigurationError
from verification.simulate.coverage import Counts, add
from verification.simulate.schedule import Schedule
from verification.simulate.shape import Shape
from verification.simulate.violation import Violated

FORMAT: Final = 1
"""Grows when the same seed gives another schedule than before, whatever the code under test."""

COLLECT_EVERY: Final = 200  # schedules: collecting garbage in the middle of one would cost more than the schedule


def seed_of(given: object) -> int:
    """A seed as the command line takes it: a whole number from 0, or its text, which may name its format: "1:1227".

    Raises ConfigurationError: it is none, or one of another format, where it meant another schedule.

    >>> seed_of(1227), seed_of("1227"), seed_of("1:1227")
    (1227, 1227, 1227)
    """
    made_under, _, number = given.rpartition(":") if isinstance(given, str) else ("", "", given)
    if made_under and made_under != str(FORMAT):
        raise ConfigurationError(
            f"seed {given} has format {made_under!r}; this simulator draws by format {FORMAT}, where it is another "
            f"schedule. Run it on the commit that reported it"
        )
    if isinstance(number, str) and number.isascii() and number.isdigit():
        return int(number)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    raise ConfigurationError(
        f"a seed of format {FORMAT} is a whole number from 0, such as 1227 or {FORMAT}:1227; it is {given!r}"
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One schedule, described: the violation or None, the events in their order, what it covered."""

    seed: int
    violated: Violated | None
    trace: tuple[str, ...]
    coverage: Counts
    executions: int


@dataclass(frozen=True, slots=True)
class Violation:
    """The first seed at which something does not hold. ``report()`` tells the story."""

    seed: int
    invariant: str
    seen: str
    shape: Shape

    def report(self) -> str:
        """What was broken, by which schedule, event by event, and how to see it again.

        The schedule runs again for it, with the current patches.
        """
        again = replay(self.seed, shape=self.shape)
        lines = [
            f"seed {self.seed} (format {FORMAT}) breaks {self.invariant}",
            f"  {self.seen}",
            "",
            "what happened, in simulated seconds:",
            *again.trace,
            "",
        ]
        if again.violated is None or again.violated.seen != self.seen:
            lines.append("the second run ended otherwise: what is under test is not deterministic")
        steps = " --steps" if self.shape.steps else ""
        lines.append(f"see it again: python -m verification.simulate{steps} --seed {FORMAT}:{self.seed}")
        return "\n".join(lines)


def search(
    seeds: Iterable[int],
    *,
    shape: Shape = Shape(),  # noqa: B008 - a frozen value
    covered: Counts | None = None,
    progress: Callable[[int], None] | None = None,
) -> Violation | None:
    """Run these seeds one by one; the first violation, or None if everything held in all of them.

    Parameters: ``seeds`` whole numbers; ``shape`` of the schedules; ``covered`` is added to, (state, event) by
    (state, event); ``progress`` is called after each schedule with how many were run.

    Raises ConfigurationError: something among the seeds is none.

    >>> search(range(20)) is None
    True
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number, seed in enumerate(seeds, start=1):
            schedule = Schedule(seed_of(seed), shape)
            violated = _perform(schedule)
            if covered is not None:
                add(covered, schedule.coverage)
            if violated is not None:
                return Violation(seed, violated.invariant, violated.seen, shape)
            if progress is not None:
                progress(number)
            if number % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        if collecting:
            gc.enable()
    return None


def replay(seed: int, *, shape: Shape = Shape()) -> Run:  # noqa: B008 - a frozen value
    """Run one seed and tell it: the same seed, shape and code give the same trace, byte for byte.

    Raises ConfigurationError: the seed is none.

    >>> replay(7).trace == replay(7).trace
    True
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        schedule = Schedule(seed_of(seed), shape, tracing=True)
        violated = _perform(schedule)
        return Run(seed, violated, tuple(schedule.world.trace), schedule.coverage, schedule.executions)
    finally:
        if collecting:
            gc.enable()


def _perform(schedule: Schedule) -> Violated | None:
    try:
        schedule.perform()
    except Violated as violated:
        return violated
    except Exception as error:  # noqa: BLE001 - what the code under test raises here reached no caller that expects it
        return Violated("no crash", f"{type(error).__name__} reached nobody: {error}")
    return None
