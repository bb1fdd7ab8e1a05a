"""A client's limits per origin: the retry budget and the circuit breaker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from semel.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one ``send()``, and of the retries to one origin.

    Parameters:
        attempts: the most times that the request is sent, 1 to 100.
        seconds: the total deadline over all attempts, pauses and status queries.
        attempt_seconds: the timeout of one attempt; by default a fair share of the remaining time, so that one hanging
            connection does not use up the whole budget.
        pause_seconds: the longest first pause between attempts; it doubles with each attempt, and the real pause is
            random between zero and it (full jitter).
        pause_seconds_max: the upper limit of that doubling.
        retries_at_once: how many retries an origin may get at once: the size of its token bucket. First attempts take
            no token.
        retries_per_second: how fast the bucket refills.

    Raises ConfigurationError for a number out of its range.

    >>> Budget(attempts=3, seconds=20).attempts
    3
    """

    attempts: int = 3
    seconds: float = 20.0
    attempt_seconds: float | None = None
    pause_seconds: float = 0.2
    pause_seconds_max: float = 10.0
    retries_at_once: float = 10.0
    retries_per_second: float = 0.5

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= 100:
            raise ConfigurationError(f"attempts must be a whole number from 1 to 100; it is {self.attempts!r}")
        _check_number("seconds", self.seconds, 0.001, 86_400)
        if self.attempt_seconds is not None:
            _check_number("attempt_seconds", self.attempt_seconds, 0.001, 86_400)
        _check_number("pause_seconds", self.pause_seconds, 0, 3600)
        _check_number("pause_seconds_max", self.pause_seconds_max, self.pause_seconds, 86_400)
        _check_number("retries_at_once", self.retries_at_once, 0, 1_000_000)
        _check_number("retries_per_second", self.retries_per_second, 0, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A circuit breaker: after ``failures`` in a row (no answer, 502, 503, 504) it blocks an origin for ``seconds``.

    Then one request probes it: a success closes the breaker, a failure opens it again.

    Raises ConfigurationError for a number out of its range.

    >>> Breaker(failures=5, seconds=10).failures
    5
    """

    failures: int = 5
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= 1_000_000:
            raise ConfigurationError(f"failures must be a whole number from 1 to 1000000; it is {self.failures!r}")
        _check_number("seconds", self.seconds, 0.001, 86_400)


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise ConfigurationError(f"{name} must be a number from {low:g} to {high:g}; it is {value!r}")


@dataclass(frozen=True, slots=True)
class NotNow:
    """An attempt that must wait ``seconds``, because of ``code``: ``RETRY_BUDGET`` or ``BREAKER_OPEN``."""

    code: str
    seconds: float


class Tokens:
    """A token bucket for retries: it holds ``size`` tokens and refills at ``per_second``."""

    def __init__(self, size: float, per_second: float) -> None:
        self._size = size
        self._per_second = per_second
        self._left = size
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Take a token and return 0.0; if there is none, return the seconds until there is one."""
        if self._at is not None:
            self._left = min(self._size, self._left + max(now - self._at, 0.0) * self._per_second)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_second if self._per_second and self._size >= 1 else float("inf")


class Circuit:
    """The breaker's state for one origin: closed, open, or half open with one probe on its way."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._failures = 0
        self._closed_until: float | None = None  # None: closed; otherwise no request before this time

    def state(self, now: float) -> Literal["closed", "open", "half-open"]:
        """Return the breaker's state now."""
        if self._closed_until is None:
            return "closed"
        return "open" if now < self._closed_until else "half-open"

    def admit(self, now: float) -> float:
        """Return 0.0 if a request may go, otherwise the seconds to wait. Half open, one goes and the others wait."""
        if self._closed_until is None:
            return 0.0
        if now < self._closed_until:
            return self._closed_until - now
        # A probe that never reports its outcome (a killed thread) blocks the others for one period, not for ever.
        self._closed_until = now + self._breaker.seconds
        return 0.0

    def note(self, now: float, *, failed: bool) -> None:
        """Count an answer or a failure."""
        if not failed:
            self._failures, self._closed_until = 0, None
            return
        self._failures += 1
        if self._closed_until is not None or self._failures >= self._breaker.failures:
            self._closed_until = now + self._breaker.seconds


class Gate(Protocol):
    """The state shared by all plans for one origin."""

    def admit(self, now: float, *, retry: bool) -> NotNow | None:
        """Return None if an attempt may be made now."""
        ...

    def note(self, now: float, *, failed: bool) -> None:
        """Record that an attempt was answered, or failed."""
        ...
