"""`semel census` and `semel top`: count open, UNKNOWN and new records, from a bounded number of rows."""

from __future__ import annotations

import argparse

from semel.admin.census import (
    BY,
    READ,
    READ_MAX,
    Group,
    census_document,
    census_lines,
    groups,
    read_census,
    read_document,
    what_was_read,
)
from semel.admin.recent import last_hour, purge_lag, recent_document, recent_lines
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.timing import span_text

_BOUNDED = (
    "Reads a limited number of the newest records and of those that need attention, and reports how many it read."
)


def add(commands: Commands[Parser]) -> None:
    """Declare both commands."""
    census = add_command(
        commands,
        "census",
        "count open, lapsed, UNKNOWN and new records, from a bounded number of rows",
        "semel census\nsemel census --hour\nsemel census --read 2000 --json\nsemel census --url postgresql://semel@db/shop",
        f"{_BOUNDED} On a store of any size it takes as long.",
    )
    census.add_argument(
        "--hour", action="store_true", help="also count the records of the last hour, and show how late the purge is"
    )
    _add_read(census)
    census.set_defaults(run=run_census)
    top = add_command(
        commands,
        "top",
        "show which operations, callers or doubts have the most UNKNOWN, stuck and new records",
        "semel top\nsemel top --by doubt\nsemel top --by caller --limit 5 --json",
        _BOUNDED,
    )
    top.add_argument("--by", choices=BY, default="operation", help="group the records by this (default operation)")
    top.add_argument("--limit", type=whole_number(1, 1000), default=20, help="number of groups to show (default 20)")
    _add_read(top)
    top.set_defaults(run=run_top)


def _add_read(parser: Parser) -> None:
    parser.add_argument(
        "--read",
        type=whole_number(1, READ_MAX),
        default=READ,
        help=f"maximum number of each to read (default {READ}, up to {READ_MAX})",
    )


def run_census(options: argparse.Namespace, out: Output) -> int:
    """Print one look at the store."""
    with open_store(options) as engine:
        seen = read_census(engine, options.read)
        recent = (last_hour(engine, seen), purge_lag(engine, seen)) if options.hour else None
    out.document({**census_document(seen), **(recent_document(*recent) if recent else {})})
    out.say(*census_lines(seen), *(recent_lines(*recent) if recent else ()))
    doubts = groups(seen, "doubt")
    if doubts:
        out.say("")
        out.table(_HEADS["doubt"], [_row("doubt", group) for group in doubts])
    return Exit.OK


_HEADS = {
    "operation": ("OPERATION", "UNKNOWN", "LAPSED", "OPEN", "NEW", "NEW/S"),
    "caller": ("CALLER", "UNKNOWN", "LAPSED", "OPEN", "NEW", "NEW/S"),
    "doubt": ("DOUBT", "UNKNOWN", "OLDEST", "OPERATIONS"),
}


def run_top(options: argparse.Namespace, out: Output) -> int:
    """The groups of one look."""
    with open_store(options) as engine:
        seen = read_census(engine, options.read)
    found = groups(seen, options.by)
    shown = found[: options.limit]
    out.document(
        {
            "by": options.by,
            "read": read_document(seen),
            "groups": [{options.by: group.name, **group.document()} for group in shown],
            "more": len(found) - len(shown),
        }
    )
    out.table(_HEADS[options.by], [_row(options.by, group) for group in shown])
    if len(found) > len(shown):
        out.say(f"{len(found) - len(shown)} more: --limit {len(found)}")
    out.say(f"read: {what_was_read(seen)}")
    return Exit.OK


def _row(by: str, group: Group) -> tuple[str, ...]:
    if by == "doubt":
        oldest = span_text(int((group.oldest_unknown_seconds or 0) * 1_000_000))
        return group.name, str(group.unknown), oldest, ", ".join(group.operations)
    numbers = (group.unknown, group.lapsed, group.open, group.new)
    return group.name, *map(str, numbers), f"{group.new_per_second:.1f}"
