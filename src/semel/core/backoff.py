"""The pauses before the next poll or retry. Jitter is an argument between 0 and 1: nothing here is random."""

from __future__ import annotations


def poll_seconds(asked: int, jitter: float, *, first: float = 0.02, longest: float = 0.25) -> float:
    """Return the seconds before a waiter polls the store again: doubled each time, half of it jittered.

    >>> poll_seconds(0, 1.0), poll_seconds(10, 1.0), poll_seconds(10, 0.0)
    (0.02, 0.25, 0.125)
    """
    whole = min(longest, first * 2.0 ** min(asked, 16))
    return whole / 2 + whole / 2 * jitter


def retry_seconds(tried: int, jitter: float, *, first: float = 0.05, longest: float = 2.0) -> float:
    """Return the seconds before a failed store call is retried."""
    return poll_seconds(tried, jitter, first=first, longest=longest)
