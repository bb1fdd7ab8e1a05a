"""Is the kit's silence worth anything? Semel with one line wrong, seventy times over, and every one must be found.

    python -m verification.mutants                    the table: mutant, found by, after how much
    python -m verification.mutants --only lapse-proceeds --all

A mutant is a patch over the real code: rules, stores, flows, engine, wire. The kit is what ``semel.testing`` ships:
the conformance suite, the explorer, commands under faults, the orders of verbs, the wire's checks, the simulator.
"""

from verification.mutants.catalogue import MUTANTS
from verification.mutants.kit import PARTS
from verification.mutants.mutant import Finding, Mutant

__all__ = ["MUTANTS", "PARTS", "Finding", "Mutant"]
