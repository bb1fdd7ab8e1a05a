"""All mutants, and what becomes of one of them."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from verification.mutants import in_protocol, in_rules, in_steps, in_stores
from verification.mutants.kit import PARTS
from verification.mutants.mutant import Finding, Mutant

MUTANTS: Final = (*in_rules.MUTANTS, *in_stores.MUTANTS, *in_protocol.MUTANTS, *in_steps.MUTANTS)


@dataclass(frozen=True, slots=True)
class Tried:
    """One mutant, what found it, and how long it took. No finding: it survived."""

    mutant: Mutant
    findings: tuple[Finding, ...]
    seconds: float

    def without_patch(self) -> Tried:
        """The same, fit to be sent to another process."""
        return replace(self, mutant=replace(self.mutant, patch=nullcontext))


def try_mutant(mutant: Mutant, *, everything: bool = False) -> Tried:
    """Let the kit at a mutant: first the part that must find it, then the others until one does.

    Parameters: ``everything`` asks every part, and reports all that found it.
    """
    began = time.perf_counter()
    findings: list[Finding] = []
    with mutant.patch():
        for name in sorted(PARTS, key=lambda name: name != mutant.part):
            finding = PARTS[name]()
            if finding is not None:
                findings.append(finding)
                if not everything:
                    break
    return Tried(mutant, tuple(findings), time.perf_counter() - began)
