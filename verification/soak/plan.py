"""What a soak is to reach, and how far it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from semel.stores.backend import hide_password
from verification.soak.summary import Summary


@dataclass(frozen=True, slots=True)
class Plan:
    """Totals to reach (effective kills, checked operations, pauses past the lease, schedules), and within what.

    ``hours`` None: until all are reached. ``lanes`` rounds run at the same time. ``url`` of the server that they are
    played on, None for SQLite files.
    """

    folder: Path
    kills: int
    operations: int
    pauses: int
    simulations: int
    hours: float | None
    lanes: int
    seed: int
    url: str | None = None

    def as_json(self) -> dict[str, object]:
        """The plan for a JSON document that may be published: without the URL's password."""
        return {
            **asdict(self),
            "folder": str(self.folder),
            "url": None if self.url is None else hide_password(self.url),
        }

    def goals(self, summary: Summary) -> list[tuple[str, int, int]]:
        """Name, reached and wanted, of each."""
        return [
            ("kills", summary.kills, self.kills),
            ("operations", summary.operations, self.operations),
            ("pauses", summary.pauses, self.pauses),
            ("schedules", summary.simulations, self.simulations),
        ]

    def needs_rounds(self, summary: Summary) -> bool:
        """Whether something is missing that only rounds can give."""
        return any(reached < wanted for name, reached, wanted in self.goals(summary) if name != "schedules")

    def needs_simulations(self, summary: Summary) -> int:
        """How many schedules are missing."""
        return max(0, self.simulations - summary.simulations)

    def left_seconds(self, summary: Summary, before: Summary, seconds: float) -> float | None:
        """How long it will take at the pace of this run's ``seconds``; None where a goal has not moved yet."""
        left = 0.0
        for (_, reached, wanted), (_, began, _) in zip(self.goals(summary), self.goals(before), strict=True):
            if reached < wanted:
                if reached == began:
                    return None
                left = max(left, (wanted - reached) * seconds / (reached - began))
        return left

    def line(self, summary: Summary, before: Summary, seconds: float) -> str:
        """One line of progress."""
        shown = ", ".join(f"{reached:,}/{wanted:,} {name}" for name, reached, wanted in self.goals(summary) if wanted)
        left = self.left_seconds(summary, before, seconds)
        eta = "unknown" if left is None else f"{left / 3600:.1f} h" if left >= 5400 else f"{left / 60:.0f} min"
        return f"{shown}; {summary.rounds} rounds, {seconds / 60:.1f} min, {eta} to go"
