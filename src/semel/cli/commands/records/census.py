"""`semel census`: count open, UNKNOWN and new records, from a bounded number of rows."""

from __future__ import annotations

import argparse

from semel.admin.census import READ, READ_MAX, Group, census_document, census_lines, groups, read_census
from semel.admin.recent import last_hour, purge_lag, recent_document, recent_lines
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.timing import span_text

BOUNDED = "Reads a limited number of the newest records and of those that need attention, and reports how many it read."
DOUBT_HEADS = ("DOUBT", "UNKNOWN", "OLDEST", "OPERATIONS")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "census",
        "count open, lapsed, UNKNOWN and new records, from a bounded number of rows",
        "semel census\nsemel census --hour\nsemel census --read 2000 --json\nsemel census --url postgresql://semel@db/shop",
        f"{BOUNDED} On a store of any size it takes as long.",
    )
    parser.add_argument(
        "--hour", action="store_true", help="also count the records of the last hour, and show how late the purge is"
    )
    add_read(parser)
    parser.set_defaults(run=run)


def add_read(parser: Parser) -> None:
    """Declare how many rows are read at most."""
    parser.add_argument(
        "--read",
        type=whole_number(1, READ_MAX),
        default=READ,
        help=f"maximum number of each to read (default {READ}, up to {READ_MAX})",
    )


def run(options: argparse.Namespace, out: Output) -> int:
    """Print one look at the store."""
    with open_store(options) as engine:
        seen = read_census(engine, options.read)
        recent = (last_hour(engine, seen), purge_lag(engine, seen)) if options.hour else None
    out.document({**census_document(seen), **(recent_document(*recent) if recent else {})})
    out.say(*census_lines(seen), *(recent_lines(*recent) if recent else ()))
    doubts = groups(seen, "doubt")
    if doubts:
        out.say("")
        out.table(DOUBT_HEADS, [doubt_row(group) for group in doubts])
    return Exit.OK


def doubt_row(group: Group) -> tuple[str, ...]:
    """Return the cells of one doubt, under :data:`DOUBT_HEADS`."""
    oldest = span_text(int((group.oldest_unknown_seconds or 0) * 1_000_000))
    return group.name, str(group.unknown), oldest, ", ".join(group.operations)
