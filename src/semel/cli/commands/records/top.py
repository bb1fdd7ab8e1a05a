"""`semel top`: the operations, callers or doubts with the most UNKNOWN, stuck and new records."""

from __future__ import annotations

import argparse

from semel.admin.census import BY, Group, groups, read_census, read_document, what_was_read
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.commands.records.census import BOUNDED, DOUBT_HEADS, add_read, doubt_row
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output

_HEADS = ("UNKNOWN", "LAPSED", "OPEN", "NEW", "NEW/S")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "top",
        "show which operations, callers or doubts have the most UNKNOWN, stuck and new records",
        "semel top\nsemel top --by doubt\nsemel top --by caller --limit 5 --json",
        BOUNDED,
    )
    parser.add_argument("--by", choices=BY, default="operation", help="group the records by this (default operation)")
    parser.add_argument("--limit", type=whole_number(1, 1000), default=20, help="number of groups to show (default 20)")
    add_read(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Print the groups of one look."""
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
    if options.by == "doubt":
        out.table(DOUBT_HEADS, [doubt_row(group) for group in shown])
    else:
        out.table((options.by.upper(), *_HEADS), [_row(group) for group in shown])
    if len(found) > len(shown):
        out.say(f"{len(found) - len(shown)} more: --limit {len(found)}")
    out.say(f"read: {what_was_read(seen)}")
    return Exit.OK


def _row(group: Group) -> tuple[str, ...]:
    numbers = (group.unknown, group.lapsed, group.open, group.new)
    return group.name, *map(str, numbers), f"{group.new_per_second:.1f}"
