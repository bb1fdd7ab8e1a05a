"""Arithmetic of leases, fences and the two retentions, in microseconds of the store's clock; and limits of spans."""

from __future__ import annotations

from typing import Final

from semel.errors import PolicyError

RENEWALS_PER_LEASE = 3  # so that two of them may fail
COUNT_MAX: Final = 2**31 - 1  # the largest value of the stores' columns
PURGE_GRACE_US = 600_000_000  # ten minutes: after a clock steps back, the record must still be there


def next_fence(fence: int, now: int) -> int:
    """Return the fence of the next grant: it grows with every grant, and not even deletion resets it.

    >>> next_fence(fence=7, now=1000), next_fence(fence=1000, now=7)
    (1000, 1001)
    """
    return max(fence + 1, now)


def lease_end(now: int, lease_us: int, deadline_at: int) -> int:
    """Return the end of a lease that is taken or renewed now: never after the handler's deadline."""
    return min(now + lease_us, deadline_at)


def retention(now: int, answer_us: int, tombstone_us: int) -> tuple[int, int]:
    """Return the ends of a settled record's answer and tombstone: both start at settlement, never at the claim."""
    return now + answer_us, now + (answer_us if answer_us > tombstone_us else tombstone_us)


def may_forget(forget_after: int | None, now: int) -> bool:
    """Return whether a purge may delete the row: never if it is open, UNKNOWN or damaged, since it has no end."""
    return isinstance(forget_after, int) and 0 <= forget_after <= now - PURGE_GRACE_US


def may_drop_answer(answer_until: int | None, now: int) -> bool:
    """Return whether a purge may drop the answer and leave the tombstone; not if the time is damaged."""
    return isinstance(answer_until, int) and 0 <= answer_until <= now - PURGE_GRACE_US


def check_seconds(name: str, value: object, *, most: float, least: float = 0.001) -> None:
    """Require a number of seconds from ``least`` to ``most``. Raises PolicyError, naming the option.

    >>> check_seconds("lease_seconds", 30, most=3600)
    >>> check_seconds("lease_seconds", 30_000, most=3600)
    Traceback (most recent call last):
        ...
    semel.errors.PolicyError: lease_seconds must be 0.001 to 3600 seconds; it is 30000. It is given in seconds, not \
milliseconds
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise PolicyError(f"{name} must be a number of seconds; it is {value!r}")
    if not least <= value <= most:
        shown = f"{max(-1e300, min(1e300, value)):.15g}"  # an int may be larger than any float
        hint = ". It is given in seconds, not milliseconds" if value > most else ""
        raise PolicyError(f"{name} must be {least:g} to {most:.15g} seconds; it is {shown}{hint}")


def check_count(name: str, value: object) -> None:
    """Require a whole number from 1 to 2,147,483,647. Raises PolicyError, naming the option."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        raise PolicyError(f"{name} must be a whole number from 1 to {COUNT_MAX}; it is {value!r}")


def span_text(microseconds: int) -> str:
    """Return a span as readable text.

    >>> span_text(90_000_000), span_text(-1), span_text(200_000)
    ('90 s', '0 s', '0.2 s')
    """
    seconds = max(microseconds, 0) / 1_000_000
    if 0.05 <= seconds < 1:
        return f"{seconds:.1f} s"
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
