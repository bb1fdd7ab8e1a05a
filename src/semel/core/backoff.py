"""The pauses before a repeated question. Jitter is an argument between 0 and 1: nothing here is random."""

from __future__ import annotations


def poll_seconds(asked: int, jitter: float, *, first: float = 0.02, longest: float = 0.25) -> float:
    """The pause before a waiter's next look at the store, in seconds: doubling, half of it jittered.

    >>> poll_seconds(0, 1.0), poll_seconds(10, 1.0), poll_seconds(10, 0.0)
    (0.02, 0.25, 0.125)
    """
    whole = min(longest, first * 2.0 ** min(asked, 16))
    return whole / 2 + whole / 2 * jitter


def retry_seconds(tried: int, jitter: float, *, first: float = 0.05, longest: float = 2.0) -> float:
    """The pause before a failed store call is repeated, in seconds."""
    return poll_seconds(tried, jitter, first=first, longest=longest)
