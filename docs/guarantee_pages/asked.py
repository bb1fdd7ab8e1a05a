"""Commands and records to ask the rules about."""

from __future__ import annotations

from typing import Final

from semel.core.decide import first_grant
from semel.core.model import Claim, Record, Scope
from semel.policy import Policy
from semel.stores.memory.store import grant_row

SECOND: Final = 1_000_000
NOW: Final = 1_000_000 * SECOND


def claim_of(policy: Policy, nonce: int = 1) -> Claim:
    """An attempt at one command."""
    scope = Scope("t", "c", "o")
    return Claim(bytes(16), bytes([nonce]) * 16, scope, bytes(8), "r", bytes(32), bytes(16), "holder", policy.terms)


def make_running_record(policy: Policy) -> Record:
    """The record of that command while its handler runs."""
    claim = claim_of(policy)
    return grant_row(None, claim, first_grant(claim, NOW))
