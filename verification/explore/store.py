"""The memory store's real verbs on the one record of a world, as functions: the reply and the row that is written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from semel.core.flow import MakeFlow, perform
from semel.core.identity import derive_key, key_hash, record_id
from semel.core.model import Answer, Claim, Record, Renewal, Resolution, Resolving, Scope, Settlement, Settling, Verdict
from semel.policy import Policy
from semel.stores.memory.store import MemoryStore, Table

T = TypeVar("T")
SCOPE: Final = Scope("acme", "alice", "pay")
ID: Final = record_id(SCOPE, "k")
STORE: Final = MemoryStore()
_HASH: Final = key_hash("k")


def bits(number: int) -> bytes:
    """A nonce."""
    return number.to_bytes(16)


@lru_cache(maxsize=4096)
def claim_of(nonce: int, policy: Policy, request: int = 0, recipe: str = "1.model") -> Claim:
    """An attempt; ``request`` 1 is another payload under the same key."""
    return Claim(ID, bits(nonce), SCOPE, _HASH, recipe, bits(request) * 2, bits(nonce), f"w{nonce}", policy.terms)


@lru_cache(maxsize=4096)
def key_for(id: bytes, generation: int) -> str:
    """The derived key that a handler gives to the downstream."""
    return derive_key(id, generation, "charge")


def answer_by(nonce: int, status: int = 201) -> Answer:
    """What one execution answers, and no other."""
    return Answer(status, (), b"answer" + bits(nonce))


def call(row: Record | None, now: int, make: MakeFlow[T]) -> tuple[T, Record | None]:
    """Perform a verb; its reply, and the record afterwards."""
    table = Table()
    if row is not None:
        table.put(row)
    answer: Any = lambda needed: needed.act(table, now)  # noqa: E731 - one expression, no name needed
    reply = perform(make(), answer)
    return reply, table.row(ID)


def claim(row: Record | None, now: int, attempt: Claim) -> tuple[Verdict, Record | None]:
    """Perform one claim."""
    replies, after = call(row, now, lambda: STORE.claim((attempt,)))
    return replies[0], after


def settle(row: Record | None, now: int, settlement: Settlement) -> tuple[Settling, Record | None]:
    """Perform one settlement."""
    replies, after = call(row, now, lambda: STORE.settle((settlement,)))
    return replies[0], after


def renew(row: Record | None, now: int, renewal: Renewal) -> tuple[bool, Record | None]:
    """Perform one renewal."""
    replies, after = call(row, now, lambda: STORE.renew((renewal,)))
    return replies[0], after


def abandon(row: Record | None, now: int, nonce: int) -> tuple[bool, Record | None]:
    """Release one claim that was given up."""
    replies, after = call(row, now, lambda: STORE.abandon(((ID, bits(nonce)),)))
    return replies[0], after


def resolve(row: Record | None, now: int, resolution: Resolution) -> tuple[Resolving, Record | None]:
    """Perform one settlement by an operator."""
    return call(row, now, lambda: STORE.resolve(resolution))


def lapse(row: Record | None, now: int) -> tuple[Sequence[Record], Record | None]:
    """Run one round of the reaper."""
    return call(row, now, lambda: STORE.lapse(10))


def purge(row: Record | None, now: int) -> Record | None:
    """Delete one chunk of expired records."""
    return call(row, now, lambda: STORE.purge(None, 10))[1]
