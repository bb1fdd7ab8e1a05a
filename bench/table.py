"""How results are shown: one Markdown text for documents, or one JSON document with every sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from bench.goals import GOALS, MIDDLEWARE_US_GOAL
from bench.probes import LIMITS
from bench.results import Results, Row, Spread

_HEAD: Final = (
    "application",
    "connections",
    "requests/s",
    "of bare",
    "server CPU µs",
    "p50 ms",
    "p99 ms",
    "store calls",
    "commits",
    "generator CPU",
)
_LEGEND: Final = """\
Median (min–max) of the rounds; `of bare` compares with the bare application in the same round, and where a subject
works in FastAPI alone, with bare FastAPI. One uvicorn worker (uvloop, httptools); a POST of about 200 bytes of JSON
with a UUID as its key, answered with 201 and about 100 bytes; the load generator shares the machine. Semel's SQLite
commits with synchronous=FULL, peers are set up as their documents say. CPU is user and system time of the server
process per request. Semel's store calls and commits per request were counted in a pass of their own."""

_PROBED_HEAD: Final = ("without HTTP", "ways", "pairs/s", "of the server's own benchmark", "CPU µs per pair")
_PROBED_LEGEND: Final = """\
A pair is what one fresh request costs the store: a claim and a completion. `pgbench` and `redis-benchmark` send the
least that they can be, with as many clients as there are ways, and no pipelining; `calls` are Semel's store calls
from as many tasks of one process, `plain` the statements of pgbench from one task through the same client library.
CPU is user and system time of the calling process."""


def as_json(results: Results, about: Mapping[str, str]) -> str:
    """Every sample, and where it was taken."""
    document: dict[str, Any] = {
        "about": about,
        "rows": [asdict(row) for row in results.rows()],
        "middleware": [asdict(cost) for cost in results.middleware],
        "limit": [asdict(limit) for limit in results.limits],
        "probes": [
            {"name": probe.name, "ways": ways, "samples": [asdict(each) for each in found]}
            for (probe, ways), found in results.probed.items()
        ],
    }
    return json.dumps(document, indent=2)


def as_text(results: Results, about: Mapping[str, str]) -> str:
    """Markdown: tables, goals, and where it was measured."""
    parts = []
    rows = results.rows()
    if rows:
        parts += [as_markdown(_HEAD, [_cells(row) for row in rows]), _LEGEND]
    inside = _inside(results)
    if inside:
        parts.append(as_markdown(("in one process, without a server", "median (min–max)"), inside))
    probed = _probe_rows(results)
    if probed:
        parts += [as_markdown(_PROBED_HEAD, probed), _PROBED_LEGEND]
    reached = _goals(results)
    if reached:
        parts.append(as_markdown(("goal", "measured", ""), reached))
    parts.append("\n".join(f"- {name}: {text}" for name, text in about.items()))
    return "\n\n".join(parts)


def _cells(row: Row) -> list[str]:
    counted = row.counted
    return [
        row.subject,
        str(row.connections),
        _spread(row.rates, "{:,.0f}"),
        row.failed or (_spread(row.ratios, "{:.2f}") if row.ratios else "the load generator was the bottleneck"),
        _spread(row.cpu_us, "{:.0f}"),
        _median(row.p50_ms),
        _median(row.p99_ms),
        "-" if counted is None else f"{counted.store_calls:.2f}",
        "-" if counted is None or counted.commits is None else f"{counted.commits:.2f}",
        f"{max(row.generator_shares, default=0):.0%}",
    ]


def _inside(results: Results) -> list[list[str]]:
    rows = []
    costs = results.middleware
    if costs:
        rows += [
            ["bare pass-through, CPU µs per request", _spread([cost.bare_us for cost in costs], "{:.1f}")],
            ["the middleware adds, memory, fresh, CPU µs", _spread([cost.fresh_us for cost in costs], "{:.1f}")],
            ["the middleware adds, memory, replay, CPU µs", _spread([cost.replay_us for cost in costs], "{:.1f}")],
        ]
    limits = results.limits
    if limits:
        pairs = _spread([limit.pairs_per_second for limit in limits], "{:,.0f}")
        cpu = _spread([limit.pair_cpu_us for limit in limits], "{:.1f}")
        rows += [
            ["SQLite FULL, plain loop, 32 claims a commit, then 32 settlements a commit: pairs/s", pairs],
            ["the same, CPU µs per pair", cpu],
        ]
    return rows


def _goals(results: Results) -> list[list[str]]:
    found = []
    for goal in GOALS:
        mine, other = results.rates(goal.name, goal.number), results.rates(goal.other, goal.other_number)
        ratio = Spread.of([own / beside for own, beside in zip(mine, other, strict=False)])
        if ratio is not None:
            shown = _spread([own / beside for own, beside in zip(mine, other, strict=False)], "{:.2f}")
            found.append([goal.words, shown, _describe_goal(ratio.median >= goal.least)])
    fresh = Spread.of([cost.fresh_us for cost in results.middleware])
    if fresh is not None:
        what = f"the middleware itself, at most {MIDDLEWARE_US_GOAL:.0f} µs of CPU"
        found.append([what, f"{fresh.median:.1f}", _describe_goal(fresh.median <= MIDDLEWARE_US_GOAL)])
    return found


def _probe_rows(results: Results) -> list[list[str]]:
    """What was measured without HTTP, each beside the server's own benchmark of the same round."""
    rows = []
    for (probe, ways), found in results.probed.items():
        limit = LIMITS.get(probe.store)
        beside = [] if limit is None else results.rates(limit, ways)
        ratios = [each.pairs_per_second / other for each, other in zip(found, beside, strict=False)]
        rows.append(
            [
                probe.name,
                str(ways),
                _spread([each.pairs_per_second for each in found], "{:,.0f}"),
                _spread(ratios, "{:.2f}"),
                _spread([each.pair_cpu_us for each in found if each.pair_cpu_us is not None], "{:.0f}"),
            ]
        )
    return rows


def _describe_goal(yes: bool) -> str:
    return "reached" if yes else "not reached"


def as_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _spread(samples: Sequence[float], form: str) -> str:
    spread = Spread.of(samples)
    if spread is None:
        return "-"
    return f"{form.format(spread.median)} ({form.format(spread.least)}–{form.format(spread.greatest)})"


def _median(samples: Sequence[float]) -> str:
    spread = Spread.of(samples)
    return "-" if spread is None else f"{spread.median:.2f}"
