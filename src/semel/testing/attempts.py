"""Attempts and answers for tests, made from small numbers so that a failure can be read.

``attempt("k", nonce=2, request=1)`` is the second caller's claim of key "k" for another request. The same
arguments always give the same claim, as a caller's repeated attempt would.
"""

from __future__ import annotations

import hashlib
from typing import Final

from semel.core.contract import AnswersAtOnce
from semel.core.identity import key_hash, record_id
from semel.core.model import Answer, AnswerKind, Claim, Grant, Renewal, Replay, Scope, Settlement, State, Verdict
from semel.policy import Policy

RECIPE: Final = "1.tests"
EXTERNAL: Final = Policy(lease_seconds=30, deadline_seconds=300)
IDEMPOTENT: Final = Policy(effects="idempotent", dedup_for_seconds=3600, attempts_max=3)
ATOMIC: Final = Policy(effects="atomic")
OK: Final = Answer(201, ((b"content-type", b"text/plain"), (b"location", b"/payments/1")), b"made")


def bits(*parts: object, size: int = 16) -> bytes:
    """Return bytes that are the same for the same parts."""
    return hashlib.sha256(repr(parts).encode()).digest()[:size]


def scope(operation: str = "pay", *, tenant: str = "acme", caller: str = "alice") -> Scope:
    """Make a scope."""
    return Scope(tenant, caller, operation)


def attempt(
    key: str = "k",
    *,
    nonce: int = 1,
    request: int = 0,
    within: Scope | None = None,
    recipe: str = RECIPE,
    policy: Policy = EXTERNAL,
    starts: State = State.PROCESSING,
) -> Claim:
    """Make a claim. ``nonce`` tells callers apart, ``request`` their payloads; ``starts`` as in Terms."""
    place = scope() if within is None else within
    return Claim(
        id=record_id(place, key),
        nonce=bits("nonce", nonce),
        scope=place,
        key_hash=key_hash(key),
        recipe=recipe,
        fingerprint=bits("request", request, size=32),
        operation_id=bits("operation", place, key, nonce),
        holder=f"host:{nonce}",
        terms=policy.terms._replace(starts=starts),
    )


def claim_at_once(driver: AnswersAtOnce, claim: Claim) -> Verdict | int:
    """Claim in a store that replies at once: return the kept answer, or the reply to an ordinary claim."""
    met = driver.claim_at_once(claim.id, claim, lambda asked, id: claim)
    return met if isinstance(met, Replay) else met[1]


def settlement(
    grant: Grant, state: State = State.SUCCEEDED, answer: Answer | None = OK, *, kept: bool = True, doubt: str = ""
) -> Settlement:
    """Make a holder's settlement; only the answered states carry an answer."""
    answered = answer if state in (State.SUCCEEDED, State.FAILED_REPLAYABLE) else None
    kind = AnswerKind.NONE if answered is None else AnswerKind.KEPT if kept else AnswerKind.NOT_KEPT
    return Settlement(grant.id, grant.fence, grant.nonce, state, answered, kind, doubt or None)


def renewal(grant: Grant) -> Renewal:
    """Make a holder's renewal of its lease."""
    return Renewal(grant.id, grant.fence, grant.nonce)
