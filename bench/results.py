"""What the rounds add up to: rows of medians, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.inprocess import MiddlewareCost, StoreLimit
from bench.load import Report
from bench.probes import Probed
from bench.subjects import BARES, Probe, Subject

SATURATED_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some samples, the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread | None:
        """None where there are no samples."""
        return cls(statistics.median(samples), min(samples), max(samples)) if samples else None


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Store calls and commits of one request, counted. ``commits`` is None for a store that knows none."""

    store_calls: float
    commits: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One subject at one number of connections; each list has one entry for each round.

    ``failed`` says why a peer's cell could not be measured; then the lists are empty.
    """

    subject: str
    connections: int
    rates: list[float]  # requests per second
    cpu_us: list[float]  # of the server process, per request
    p50_ms: list[float]
    p99_ms: list[float]
    generator_shares: list[float]  # of one core
    ratios: list[float]  # to the bare application of the same round; empty where the generator was the bottleneck
    counted: PerRequest | None
    failed: str | None = None


@dataclass(slots=True)
class Results:
    """Everything that was measured."""

    reports: dict[tuple[Subject, int], list[Report]] = field(default_factory=dict)
    counted: dict[tuple[Subject, int], PerRequest] = field(default_factory=dict)
    middleware: list[MiddlewareCost] = field(default_factory=list)
    limits: list[StoreLimit] = field(default_factory=list)
    failed: dict[tuple[Subject, int], str] = field(default_factory=dict)
    probed: dict[tuple[Probe, int], list[Probed]] = field(default_factory=dict)

    def rates(self, name: str, number: int) -> list[float]:
        """What was measured of a subject or a probe, a figure a round; empty where it was not, or cannot be trusted."""
        for (subject, connections), reports in self.reports.items():
            if (subject.name, connections) == (name, number):
                trusted = all(report.generator_share <= SATURATED_SHARE for report in reports)
                return [rate(report) for report in reports] if trusted else []
        for (probe, ways), found in self.probed.items():
            if (probe.name, ways) == (name, number):
                return [each.pairs_per_second for each in found]
        return []

    def rows(self) -> list[Row]:
        """The rows in the order of the plan."""
        return [self._row(subject, connections) for subject, connections in self.reports]

    def _row(self, subject: Subject, connections: int) -> Row:
        failed = self.failed.get((subject, connections))
        if failed is not None:
            return Row(subject.name, connections, [], [], [], [], [], [], None, failed)
        reports = self.reports[subject, connections]
        bare = self.reports[next(bare for bare in BARES if bare.name == subject.bare), connections]
        saturated = max(report.generator_share for report in (*reports, *bare)) > SATURATED_SHARE
        ratios = [rate(mine) / rate(other) for mine, other in zip(reports, bare, strict=True)]
        return Row(
            subject.name,
            connections,
            [rate(report) for report in reports],
            [
                report.server_cpu_seconds / report.requests * 1e6
                for report in reports
                if report.server_cpu_seconds is not None
            ],
            [report.p50_ms for report in reports],
            [report.p99_ms for report in reports],
            [report.generator_share for report in reports],
            [] if saturated else ratios,
            self.counted.get((subject, connections)),
        )


def rate(report: Report) -> float:
    """Requests per second."""
    return report.requests / report.seconds
