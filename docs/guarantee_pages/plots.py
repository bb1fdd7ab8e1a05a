"""Plots of what the bench measured, from its JSON in ``docs/figures``, as SVG."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, Final

from guarantee_pages.drawing import bar, line, picture, words

FIGURES: Final = Path(__file__).resolve().parents[1] / "figures"
STORES: Final = {
    "memory": "memory",
    "sqlite": "SQLite, FULL",
    "redis": "Redis",
    "postgresql": "PostgreSQL, psycopg",
    "asyncpg": "PostgreSQL, asyncpg",
    "mariadb": "MariaDB",
}
WIDTH: Final = 860
LEFT: Final = 170
ROW: Final = 46


def _rows(name: str) -> dict[str, dict[str, Any]]:
    document = json.loads((FIGURES / name).read_text("utf-8"))
    return {row["subject"]: row for row in document["rows"]}


def _bars(title: str, note: str, figures: dict[str, tuple[float, float]], names: tuple[str, str], unit: str) -> str:
    """Two bars for each store, fresh and replay."""
    greatest = max(max(pair) for pair in figures.values())
    scale = (WIDTH - LEFT - 110) / greatest
    parts = [words(20, 28, title, "title"), words(20, 46, note, "small")]
    parts += [bar(WIDTH - 250, 18, 12, 12, "a"), words(WIDTH - 232, 28, names[0], "small")]
    parts += [bar(WIDTH - 130, 18, 12, 12, "b"), words(WIDTH - 112, 28, names[1], "small")]
    for number, (store, pair) in enumerate(figures.items()):
        y = 62 + number * ROW
        parts.append(words(LEFT - 12, y + 22, STORES[store], "end"))
        for place, (value, kind) in enumerate(zip(pair, "ab", strict=True)):
            top = y + 2 + place * 17
            parts += [bar(LEFT, top, round(value * scale, 1), 15, kind)]
            parts.append(
                words(LEFT + value * scale + 6, top + 12, f"{value:,.{0 if unit == '/s' else 2}f}{unit}", "small")
            )
    height = 62 + len(figures) * ROW + 12
    parts.insert(0, line(LEFT, 58, LEFT, height - 10))
    return picture(title, WIDTH, height, parts)


def throughput() -> str:
    """Fresh commands and replays a second on each store."""
    rows = _rows("http-32.json")
    bare = statistics.median(rows["bare"]["rates"])
    figures = {
        store: (statistics.median(rows[f"{store}-fresh"]["rates"]), statistics.median(rows[f"{store}-replay"]["rates"]))
        for store in STORES
    }
    note = f"One uvicorn worker, 32 connections, 2 cores. The bare application in the same run: {bare:,.0f}/s."
    return _bars("Requests a second, by store", note, figures, ("fresh", "replay"), "/s")


def latency() -> str:
    """The median and the 99th percentile of a fresh command on each store."""
    rows = _rows("http-32.json")
    figures = {
        store: tuple(statistics.median(rows[f"{store}-fresh"][which]) for which in ("p50_ms", "p99_ms"))
        for store in STORES
    }
    bare = rows["bare"]
    median, tail = statistics.median(bare["p50_ms"]), statistics.median(bare["p99_ms"])
    note = f"As above. The bare application: {median:.2f} and {tail:.2f} ms."
    pairs = {store: (pair[0], pair[1]) for store, pair in figures.items()}
    return _bars("Latency of a fresh command, 32 at once", note, pairs, ("median", "99th percentile"), " ms")


def growth() -> str:
    """Commands and replays a second with none, one million and ten million records."""
    measured = json.loads((FIGURES / "growth.json").read_text("utf-8"))
    sizes: list[int] = measured["records"]
    curves = [
        (store, kind, measured["stores"][store][kind]) for store in measured["stores"] for kind in ("fresh", "replay")
    ]
    greatest = max(max(values) for _, _, values in curves)
    left, top, width, height = 90, 70, 520, 240
    parts = [words(20, 28, "Commands a second as the store grows, 32 at once", "title")]
    parts.append(
        words(20, 46, "On a busy machine: compare the slopes, not the heights. Source: the tables of Growth.", "small")
    )
    for step in range(0, 5):
        y = top + height - height * step / 4
        parts += [
            line(left, y, left + width, y, "grid"),
            words(left - 8, y + 4, f"{greatest * step / 4:,.0f}", "end small"),
        ]
    places = [left + 40 + number * (width - 80) / (len(sizes) - 1) for number in range(len(sizes))]
    for x, size in zip(places, sizes, strict=True):
        parts.append(words(x, top + height + 18, f"{size:,} records", "middle small"))
    colours = {"postgresql": "#174ea6", "sqlite": "#b3261e"}
    for store, kind, values in curves:
        points = [(x, top + height - height * value / greatest) for x, value in zip(places, values, strict=True)]
        dash = "" if kind == "fresh" else ";stroke-dasharray:6 4"
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path style="stroke:{colours[store]};stroke-width:2{dash}" d="{path}"/>')
        parts.append(
            words(
                points[-1][0] + 12,
                points[-1][1] + 4,
                f"{STORES['asyncpg' if store == 'postgresql' else store]}: {kind}",
                "small",
            )
        )
    return picture("Commands a second with none, one million and ten million records", WIDTH, top + height + 40, parts)
