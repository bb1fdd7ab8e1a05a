"""The deterministic simulator: the real engine, flows, rules and stores in a world that a seed decides.

Several workers (each a real ``AsyncEngine`` with its upkeep and reaper on an event loop of its own), clients that
retry, an operator and a downstream ledger meet on one store behind a network that delays, loses, repeats and
reorders; processes crash and pause, the store's clock is set on and back. What must hold is checked at every write
and at every answer: I1 to I7 of the design. A seed gives the same schedule, byte for byte, on every machine.

Handlers with *steps* have schedules of their own (``Shape(steps=1.0)``, ``--steps``): scripts of two or three plain,
repeatable and local steps on the real SQLite store, completers, and a downstream that deduplicates or does not.

    violation = search(range(10_000))
    if violation is not None:
        print(violation.report())

**Patches are honoured.** Nothing of the real code is copied or kept: what a test puts in place of a function or
a method of ``semel.engine`` (the async half), the rules and flows of any room, ``semel.stores.memory.store``
and ``semel.stores.sqlite.store`` before it calls ``search`` is what runs, as long as it is put where it is looked
up (a name imported by ``from … import`` lives in the importing module: ``semel.stores.memory.store.settle_row``).
Drivers are not under test here: ``wire.Wire`` is the driver. The second opinion in ``watch`` uses no
function of the rules.

What is left out: the sync engine, threads, real drivers and files (``tests/crash`` and the races have them); ATOMIC
units are copies of the store's data under one writer's gate, as SQLite's are, and a commit that was given up
never comes late. No connection delivers the list of a run's steps twice; their statements on servers are not run here.
"""

from verification.simulate.search import FORMAT, Run, Violation, replay, search
from verification.simulate.shape import Shape
from verification.simulate.violation import Violated

__all__ = ["FORMAT", "Run", "Shape", "Violated", "Violation", "replay", "search"]
