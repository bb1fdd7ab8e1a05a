"""How the growth measurements are shown: Markdown for documents, or one JSON document with every sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from bench.growth.purge import Purging
from bench.growth.run import WAYS, Results
from bench.results import Spread
from bench.table import as_markdown

RATE_GOAL: Final = 0.85  # of the rate beside a tenth of the records
P99_GOAL: Final = 2.0  # times the p99 without a purge

_RATES: Final = (
    "records",
    "commands/s, one at a time",
    "claim p50 / p99 ms",
    f"commands/s, {WAYS} at once",
    "claim p50 / p99 ms",
    f"replays/s, {WAYS} at once",
    "bytes logged per command",
)
_SIZES: Final = ("records", "table MB", "indexes MB", "bytes per record")
_PURGES: Final = (
    "records",
    "over",
    "purged/s alone",
    "looked at/s where nothing is over",
    "purged/s beside commands",
    "bytes logged per purged record",
    "p99 ms at a pace: without, beside",
    f"p99 ms, {WAYS} at once: without, beside",
)
_LEGEND: Final = """\
Median (min–max) of alternating rounds. A command is one claim and one settlement with an answer of 107 bytes, in one
process with its store's own driver; latencies are of the claim. Replays ask for records chosen at random and compare
the answers. p99 beside a purge: of whole commands, in stretches that alternate with and without it."""


def as_json(results: Results, about: Mapping[str, str]) -> str:
    """Every sample, and where it was taken; the latencies beside a purge as their p99."""
    purged = {}
    for records, purging in results.purged.items():
        document = asdict(purging)
        for name, load in (("paced", purging.paced), ("crowded", purging.crowded)):
            document[name] = {
                "commands": [len(load.without), len(load.with_purge)],
                "p99_ms": load.p99_ms,
            }
        purged[records] = document
    whole: dict[str, Any] = {
        "about": about,
        "cells": {records: asdict(cell) for records, cell in results.cells.items()},
        "purged": purged,
        "sizes_purged": None if results.sizes_purged is None else asdict(results.sizes_purged),
        "load_seconds": results.load_seconds,
        "drop_seconds": results.drop_seconds,
    }
    return json.dumps(whole, indent=2)


def as_text(results: Results, about: Mapping[str, str]) -> str:
    """Markdown: tables, goals, and where it was measured."""
    parts = []
    if results.cells:
        parts += [
            as_markdown(_RATES, [_rates(results, records) for records in results.cells]),
            as_markdown(_SIZES, [_sizes(results, records) for records in results.cells]),
        ]
    if results.purged:
        parts.append(as_markdown(_PURGES, [_purge(records, found) for records, found in results.purged.items()]))
        parts.append("\n".join(_afterwards(results)))
    if results.cells:
        parts += [_LEGEND, as_markdown(("compared", "median (min–max)", "goal"), _goals(results))]
    parts.append("\n".join(f"- {name}: {text}" for name, text in about.items()))
    return "\n\n".join(parts)


def _rates(results: Results, records: int) -> list[str]:
    cell = results.cells[records]
    return [
        f"{records:,}",
        _spread(cell.alone),
        f"{_median(cell.alone_p50)} / {_median(cell.alone_p99)}",
        _spread(cell.crowd),
        f"{_median(cell.crowd_p50)} / {_median(cell.crowd_p99)}",
        _spread(cell.replays),
        _spread(cell.logged),
    ]


def _sizes(results: Results, records: int) -> list[str]:
    cell = results.cells[records]
    sizes = cell.sizes_after or cell.sizes
    if sizes is None:
        return [f"{records:,}", "-", "-", "-"]
    indexes = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in sorted(sizes.indexes.items()))
    loaded = f"{records:,}" if cell.sizes_after is None else f"{records:,}, and {sizes.rows:,} that the rounds wrote"
    return [loaded, f"{sizes.table / 1e6:,.0f}", indexes, f"{sizes.per_record:,.0f}"]


def _purge(records: int, found: Purging) -> list[str]:
    return [
        f"{records:,}",
        f"{found.forgotten:,} records forgotten, {found.dropped:,} answers dropped",
        _spread(found.work_rates),
        _spread(found.walk_rates),
        _spread(found.beside_rates),
        _spread(found.log_per_record),
        _beside(found.paced.p99_ms),
        _beside(found.crowded.p99_ms),
    ]


def _afterwards(results: Results) -> list[str]:
    lines = []
    for records, found in results.purged.items():
        if found.clean_up_seconds is not None:
            lines.append(f"- VACUUM after the purge of {records:,} records: {found.clean_up_seconds:.1f} s")
    for records, seconds in results.drop_seconds.items():
        lines.append(f"- dropping the whole store of {records:,} records: {seconds:.2f} s")
    after = results.sizes_purged
    if after is not None:
        largest = max(results.cells)
        indexes = sum(after.indexes.values())
        lines.append(
            f"- the store of {largest:,} afterwards: table {after.table / 1e6:,.0f} MB, indexes {indexes / 1e6:,.0f} MB"
        )
    return lines


def _goals(results: Results) -> list[list[str]]:
    sizes = sorted(results.cells)
    largest, smaller = sizes[-1], sizes[-2]
    rows = []
    for what, words in (
        ("crowd", f"commands/s, {WAYS} at once"),
        ("alone", "commands/s, one at a time"),
        ("replays", "replays/s"),
    ):
        for other in (smaller, 0):
            ratios = results.ratios(what, largest, other)
            goal = f"at least {RATE_GOAL}" if what == "crowd" and other == smaller else ""
            rows.append([f"{words}: {largest:,} by {other:,} records", _spread(ratios, "{:.2f}"), goal])
    purging = results.purged.get(largest)
    if purging is not None:
        for load, words in ((purging.paced, "at a pace"), (purging.crowded, f"{WAYS} at once")):
            without, beside = load.p99_ms
            if without and beside:
                rows.append(
                    [
                        f"p99 beside the purge by p99 without, {words}",
                        f"{beside / without:.2f}",
                        f"at most {P99_GOAL:.1f}",
                    ]
                )
    return rows


def _beside(p99: tuple[float, float]) -> str:
    return f"{p99[0]:.1f}, {p99[1]:.1f}" if all(p99) else "-"


def _spread(samples: Sequence[float], form: str = "{:,.0f}") -> str:
    spread = Spread.of(samples)
    if spread is None:
        return "-"
    return f"{form.format(spread.median)} ({form.format(spread.least)}–{form.format(spread.greatest)})"


def _median(samples: Sequence[float]) -> str:
    spread = Spread.of(samples)
    return "-" if spread is None else f"{spread.median:.2f}"
