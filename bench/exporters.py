"""What the Prometheus exporter adds to a command: the events of a fresh one, timed in this process.

``python -m bench.exporters`` prints microseconds a command; the goal is 3 at most, on an idle core.
"""

from __future__ import annotations

import timeit
from typing import Final

from prometheus_client import CollectorRegistry

from semel.exporters.prometheus import Prometheus
from semel.telemetry import Observer, Silence

GOAL_MICROSECONDS: Final = 3.0
_DETAIL: Final = {"caller": "alice", "key_hash": "01234567"}
_CLAIM: Final = {"operation": "pay", "verdict": "Proceed"}
_SETTLED: Final = {"operation": "pay", "outcome": "Succeeded"}
_CLAIMING: Final = {"verb": "claim"}
_SETTLING: Final = {"verb": "settle"}


def microseconds(observer: Observer, commands: int, rounds: int) -> float:
    """The least of several rounds, for each command."""
    event = observer.event

    def one() -> None:
        event("store_call_seconds", 0.003, _CLAIMING, {})
        event("claims", 1, _CLAIM, _DETAIL)
        event("store_call_seconds", 0.003, _SETTLING, {})
        event("settlements", 1, _SETTLED, _DETAIL)

    return min(timeit.repeat(one, number=commands, repeat=rounds)) / commands * 1e6


def main(commands: int = 500, rounds: int = 1_000) -> float:
    """Print and return what a command costs more than with an observer that does nothing."""
    idle = microseconds(Silence(), commands, rounds)
    taken = microseconds(Prometheus(CollectorRegistry()), commands, rounds) - idle
    print(f"the Prometheus exporter: {taken:.2f} µs a command (goal: at most {GOAL_MICROSECONDS:g})")
    return taken


if __name__ == "__main__":
    main()
