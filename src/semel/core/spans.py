"""Durations and counts that a developer gives: refused where they cannot be meant, in words that name the remedy."""

from __future__ import annotations

from semel.errors import PolicyError
from semel.policy import COUNT_MAX


def check_seconds(name: str, value: object, *, most: float, least: float = 0.001) -> None:
    """Refuse what is no number of seconds from ``least`` to ``most``. Raises PolicyError, naming the option.

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


def check_count(name: str, value: object, *, most: int = COUNT_MAX) -> None:
    """Require a whole number from 1 to ``most``. Raises PolicyError, naming the option."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise PolicyError(f"{name} must be a whole number from 1 to {most}; it is {value!r}")
