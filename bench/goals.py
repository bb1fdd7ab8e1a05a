"""What is to be reached: one figure of a run against another of the same round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Goal:
    """``name`` at ``number`` connections (or ways) shall be at least ``least`` times ``other`` at ``other_number``."""

    name: str
    number: int
    other: str
    other_number: int
    least: float

    @property
    def words(self) -> str:
        """For a table."""
        beside = f" at {self.other_number}" if self.other_number != self.number else ""
        return f"{self.name} at {self.number}, at least {self.least:.2f} of {self.other}{beside}"


MIDDLEWARE_US_GOAL: Final = 15.0


def _of_bare(name: str, number: int, least: float) -> Goal:
    return Goal(name, number, "bare", number, least)


# pgbench at 32 clients is what PostgreSQL does alone; with 128 it does no more.
GOALS: Final = (
    _of_bare("memory-fresh", 32, 0.70),
    _of_bare("memory-replay", 32, 1.3),
    _of_bare("sqlite-fresh", 32, 0.40),
    _of_bare("sqlite-replay", 32, 0.95),
    _of_bare("redis-fresh", 32, 0.50),
    _of_bare("redis-replay", 32, 0.90),
    *(
        goal
        for driver in ("postgresql", "asyncpg")
        for goal in (
            _of_bare(f"{driver}-fresh", 32, 0.42),
            _of_bare(f"{driver}-fresh", 128, 0.52),
            _of_bare(f"{driver}-replay", 32, 0.90),
            Goal(f"{driver}-fresh", 32, "pgbench", 32, 1.0),
            Goal(f"{driver}-fresh", 128, "pgbench", 32, 1.6),
            Goal(f"{driver}-calls", 32, "pgbench", 32, 2.5),
            Goal(f"{driver}-calls", 1, f"{driver}-plain", 1, 0.85),
            # Claim, row and answer as three plain statements.
            *(Goal(f"{driver}-atomic", number, f"{driver}-by-hand", number, 1.2) for number in (1, 32, 128)),
        )
    ),
    Goal("fastapi-unprotected", 32, "bare-fastapi", 32, 0.97),
    # Semel's own three-commit form, whose claims and answers share their commits with others'.
    *(Goal("postgresql-atomic", number, "postgresql-commits", number, 1.2) for number in (1, 32, 128)),
)
