"""The parts of the kit, each asked the same question: is anything wrong with what runs now?

What is exhaustive elsewhere is cut here to what a mutant of a minute can be given: a part that is silent after that
much is counted as silent, though the whole part might still have found something.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from semel.testing import conformance
from semel.testing.bench import MakeSubject, Mode
from semel.testing.cases import races
from semel.testing.interleave import MemoryWorld, SqliteWorld
from semel.testing.verbs import NotAtomic, check, pairs
from verification.explore import MODES, explore
from verification.mutants import stories, wire
from verification.mutants.mutant import Finding
from verification.simulate import Shape, search

SEEDS: Final = range(600)
STEP_SEEDS: Final = range(200)
STEPS: Final = Shape(steps=1.0, trouble=0.6)
STATES_MAX: Final = 1500
_RACES: Final = {case.__name__ for case in races.ALL}
_MEETING: Final = frozenset(
    {"claim", "claim by a third", "settle succeeded", "settle unknown", "renew", "mark_not_kept", "abandon", "purge"}
)


def contract() -> Finding | None:
    """The conformance suite, on both stores, one verb after the other; on SQLite also as an event loop asks."""
    number = 0
    with tempfile.TemporaryDirectory(prefix="semel-mutants-") as folder:
        for name in conformance.CASES:
            if name in _RACES:
                continue
            sqlite: MakeSubject = lambda clock: conformance.sqlite_subject(str(Path(folder) / f"{number}.db"), clock)  # noqa: B023, E731 - typed
            runs: tuple[tuple[MakeSubject, Mode], ...] = (
                (conformance.memory_subject, "sync"),
                (sqlite, "sync"),
                (sqlite, "async"),  # there what is as usual is written by other statements
            )
            for make, mode in runs:
                number += 1
                try:
                    conformance.run(name, make, mode)
                except Exception as error:  # noqa: BLE001 - whatever a mutant does, it was noticed
                    return Finding("contract", number, "cases", f"{name}: {_line(error)}")
    return None


def model() -> Finding | None:
    """The explorer, the first states of every mode: one mode of each Effects before the others."""
    states = 0
    first = {mode.policy.effects: mode for mode in reversed(MODES)}.values()
    for mode in sorted(MODES, key=lambda mode: mode not in first):
        try:
            found = explore(mode, states_max=STATES_MAX)
        except Exception as error:  # noqa: BLE001 - as above
            return Finding("model", states, "states", f"{mode.name}: {_line(error)}")
        states += found.states
        if found.violation is not None:
            broken = found.violation
            said = f"{mode.name}: {broken.invariant}: {broken.why}, in {len(broken.trace)} steps"
            return Finding("model", states, "states", said)
    return None


def orders() -> Finding | None:
    """Pairs of verbs that meet, in every order of their steps, on both stores."""
    count = 0
    for situation, names in pairs():
        if not _MEETING.issuperset(names):
            continue
        for make in (MemoryWorld, SqliteWorld):
            try:
                count += check(make, situation, names)
            except NotAtomic as error:
                return Finding("orders", count, "interleavings", _line(error))
            except Exception as error:  # noqa: BLE001 - as above
                return Finding("orders", count, "interleavings", f"{' and '.join(names)}: {_line(error)}")
    return None


def faults() -> Finding | None:
    """Commands under every fault, and what their callers get afterwards."""
    with tempfile.TemporaryDirectory(prefix="semel-mutants-") as folder:
        return _first("faults", "stories", stories.stories(Path(folder)))


def http() -> Finding | None:
    """The wire, as a client sees it."""
    return _first("http", "checks", wire.checks())


def simulator() -> Finding | None:
    """The simulator's first seeds."""
    return _search("simulator", SEEDS, Shape())


def steps() -> Finding | None:
    """The simulator's first seeds, with handlers that have steps."""
    return _search("steps", STEP_SEEDS, STEPS)


def _search(part: str, seeds: range, shape: Shape) -> Finding | None:
    try:
        violation = search(seeds, shape=shape)
    except Exception as error:  # noqa: BLE001 - as above
        return Finding(part, 0, "seeds", _line(error))
    if violation is None:
        return None
    return Finding(part, violation.seed + 1, "seeds", f"{violation.invariant}: {violation.seen}")


def _first(part: str, unit: str, told: Iterator[object]) -> Finding | None:
    number = 0
    try:
        for _ in told:
            number += 1
    except Exception as error:  # noqa: BLE001 - as above
        note = getattr(error, "__notes__", [""])[0]
        return Finding(part, number + 1, unit, f"{_line(error)} ({note})")
    return None


def _line(error: BaseException) -> str:
    """What an error says, in one line. A mutant that merely falls over proves nothing about the kit."""
    if isinstance(error, (TypeError, NameError, AttributeError)):
        raise error
    text = str(error).strip().splitlines()
    if text:
        return text[0][:160]
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {frames[-1].line}"


PARTS: Final[Mapping[str, Callable[[], Finding | None]]] = {
    "http": http,
    "contract": contract,
    "model": model,
    "faults": faults,
    "orders": orders,
    "simulator": simulator,
    "steps": steps,
}
"""Every part by its name, the quickest first."""
