"""`semel size`: a store's rows, bytes, memory and purge time, from the commands per second and the retention."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from typing import Any, Final

from semel.admin.sizes import DAY_SECONDS, sizes
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.terminal import Output

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS, "y": 365 * DAY_SECONDS, "": 1}
_SPAN: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhdy]?)", re.ASCII).fullmatch
_RATE_MAX: Final = 10_000_000.0
_SPAN_MAX: Final = 100 * 365 * DAY_SECONDS


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "size",
        "estimate rows, bytes, memory and purge time of a store, from its commands per second and retention",
        "semel size --commands-per-second 50 --answer-bytes 800 --keep 30d\n"
        "semel size --commands-per-second 4 --answer-bytes 200 --keep 8y --keep-answers 7d --json",
        (
            "Computed from the measurements in docs/growth.md, without reading a store: use it to choose a store, "
            "then measure yours."
        ),
    )
    parser.add_argument("--commands-per-second", type=_rate, required=True, help="new keys a second, on average")
    parser.add_argument(
        "--answer-bytes",
        type=whole_number(0, 10**9),
        required=True,
        help="bytes of a stored answer, body and headers",
    )
    parser.add_argument(
        "--keep", type=_span, default=30 * DAY_SECONDS, help="how long a key is kept, such as 90s, 12h, 30d (default)"
    )
    parser.add_argument(
        "--keep-answers", type=_span, default=DAY_SECONDS, help="how long its answer is kept (default 1d)"
    )
    parser.set_defaults(run=run)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _RATE_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of more than 0 and at most {_RATE_MAX:.0f}, not {text!r}")
    return value


def _span(text: str) -> float:
    found = _SPAN(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _SPAN_MAX:
        raise argparse.ArgumentTypeError(
            f"must be a time such as 90s, 15m, 12h, 30d or 8y, of at most 100y, not {text!r}"
        )
    return seconds


def run(options: argparse.Namespace, out: Output) -> int:
    """Compute the sizes and print them."""
    found = sizes(options.commands_per_second, options.answer_bytes, options.keep, options.keep_answers)
    documents: list[dict[str, Any]] = []
    rows = []
    for size in found:
        fields = asdict(size)
        documents.append(
            {
                "engine": fields["engine"],
                "rows": fields["rows"],
                "bytes": fields["bytes"],
                "memoryBytes": fields["memory"],
                "purgesPerSecond": round(size.purges_per_second, 3),
                "purgeShare": None if size.purge_share is None else round(size.purge_share, 6),
            }
        )
        share = "by the server" if size.purge_share is None else _share(size.purge_share)
        purges = f"{size.purges_per_second:,.1f}/s, {share}"
        rows.append((size.engine, f"{size.rows:,}", bytes_text(size.bytes), bytes_text(size.memory), purges))
    out.document({"engines": documents})
    out.table(("ENGINE", "ROWS", "BYTES", "IN MEMORY", "PURGE"), rows)
    out.say(
        "The size once as many records expire as begin. In memory: the index of ids (SQLite, PostgreSQL), the table, "
        "which is ordered by id (MariaDB), everything (Redis)."
    )
    return Exit.OK


def _share(share: float) -> str:
    if share >= 1:
        return "more than one purge can do: shorten the retention, or divide the store"
    return f"{share * 100:.2g} % of one purge's time"


def bytes_text(count: float) -> str:
    """Format a size for people.

    >>> bytes_text(999), bytes_text(12_340_000_000)
    ('999 B', '12.3 GB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
