"""What sealing adds to one command: the CPU time of sealing and of opening an answer, beside storing it as it is.

``python -m bench.sealing`` prints microseconds for answers of 1 KiB and of 64 KiB, the fastest round of each.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final

from semel.core.model import Answer, AnswerKind, Replay, Settlement, State, Unseal
from semel.policy import Policy
from semel.sealing.rules import cover, reveal
from semel.sealing.sealer import Sealer

SIZES: Final = (1024, 65_536)
GOAL_US: Final = 10.0  # at 1 KiB
ROUNDS: Final = 30
CALLS: Final = 300
_ID: Final = bytes(16)


def fastest_us(call: Callable[[], object], rounds: int = ROUNDS, calls: int = CALLS) -> float:
    """The CPU time of one call in the fastest round, in microseconds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time_ns() - began) / calls / 1000)
    return best


def measure(size: int, rounds: int = ROUNDS, calls: int = CALLS) -> tuple[float, float]:
    """How long sealing and opening an answer of so many bytes take, in microseconds."""
    sealer, policy = Sealer({"2026-01": secrets.token_bytes(32)}), Policy(answers="seal")
    headers = ((b"content-type", b"application/json"), (b"location", b"/payments/1"))
    answer = Answer(201, headers, secrets.token_bytes(size))
    settlement = Settlement(_ID, 1, _ID, State.SUCCEEDED, answer, AnswerKind.KEPT)
    sealed = cover(settlement, policy, sealer).answer
    assert sealed is not None
    verdict = Unseal(_ID, sealed, _ID, State.SUCCEEDED)
    seen = reveal(verdict, sealer)
    assert isinstance(seen, Replay), seen
    assert seen.answer == answer
    return (
        fastest_us(lambda: cover(settlement, policy, sealer), rounds, calls),
        fastest_us(lambda: reveal(verdict, sealer), rounds, calls),
    )


def main() -> None:
    """Print one line for each size."""
    for size in SIZES:
        seal, open_ = measure(size)
        goal = f" (goal: {GOAL_US:g})" if size == SIZES[0] else ""
        print(f"sealing {size:>6} bytes: {seal:6.1f} µs, opening: {open_:6.1f} µs{goal}")


if __name__ == "__main__":
    main()
