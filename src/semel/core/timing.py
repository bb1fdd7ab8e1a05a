"""Arithmetic of leases, fences and the two retentions. All times in microseconds of the store's clock."""

from __future__ import annotations

from typing import NamedTuple

RENEWALS_PER_LEASE = 3
PURGE_GRACE_US = 600_000_000  # ten minutes: a clock that steps back must not meet a record already gone


def next_fence(fence: int, now: int) -> int:
    """The fence of the next grant: grows with every grant, and not even deletion resets it.

    >>> next_fence(fence=7, now=1000), next_fence(fence=1000, now=7)
    (1000, 1001)
    """
    return max(fence + 1, now)


def lease_end(now: int, lease_us: int, deadline_at: int) -> int:
    """When a lease taken or renewed now lapses: never after the handler's deadline."""
    return min(now + lease_us, deadline_at)


def renew_every_us(lease_us: int) -> int:
    """How often a holder renews: a third of the lease, so that two renewals may fail."""
    return lease_us // RENEWALS_PER_LEASE


class Retention(NamedTuple):
    """When the answer and the fact of a settled record end."""

    answer_until: int
    forget_after: int


def retention(now: int, answer_us: int, tombstone_us: int) -> Retention:
    """Both clocks start at settlement, never at the claim."""
    kept_us = answer_us if answer_us > tombstone_us else tombstone_us
    return tuple.__new__(Retention, (now + answer_us, now + kept_us))  # every command pays for one


def may_forget(forget_after: int | None, now: int) -> bool:
    """Whether a purge may delete the row. Open and UNKNOWN records have no end and never may."""
    return forget_after is not None and forget_after + PURGE_GRACE_US <= now


def may_drop_answer(answer_until: int | None, now: int) -> bool:
    """Whether a purge may drop the answer and leave the tombstone."""
    return answer_until is not None and answer_until + PURGE_GRACE_US <= now
