"""Thread-safe state shared by requests to one origin: the retry budget and the circuit breaker."""

from __future__ import annotations

import threading
from typing import Literal

from semel.client.answers import origin_of
from semel.client.limits import Breaker, Budget, Circuit, NotNow, Tokens


class Origin:
    """The gate of one origin."""

    def __init__(self, budget: Budget, breaker: Breaker | None) -> None:
        self._tokens = Tokens(budget.retries_at_once, budget.retries_per_second)
        self._circuit = Circuit(breaker) if breaker is not None else None
        self._lock = threading.Lock()

    def state(self, now: float) -> Literal["closed", "open", "half-open"]:
        """Return the breaker's state; closed if there is no breaker."""
        with self._lock:
            return "closed" if self._circuit is None else self._circuit.state(now)

    def admit(self, now: float, *, retry: bool) -> NotNow | None:
        """Return None if an attempt may be made now."""
        with self._lock:
            # The order matters: a retry that the breaker blocks takes no token, and one without a token does not probe.
            if self._circuit is not None and self._circuit.state(now) == "open":
                return NotNow("BREAKER_OPEN", self._circuit.admit(now))
            if retry and (seconds := self._tokens.take(now)) > 0:
                return NotNow("RETRY_BUDGET", seconds)
            if self._circuit is not None:
                self._circuit.admit(now)
            return None

    def note(self, now: float, *, failed: bool) -> None:
        """Record that an attempt was answered, or failed."""
        with self._lock:
            if self._circuit is not None:
                self._circuit.note(now, failed=failed)


class Origins:
    """The gates of all origins that a client has talked to."""

    def __init__(self, budget: Budget, breaker: Breaker | None) -> None:
        self._budget = budget
        self._breaker = breaker
        self._origins: dict[tuple[str, str, int | None], Origin] = {}
        self._lock = threading.Lock()

    def of(self, url: str) -> Origin:
        """Return the gate of a URL's origin."""
        name = origin_of(url)
        with self._lock:
            return self._origins.setdefault(name, Origin(self._budget, self._breaker))
