"""`semel list`: a page of records, without keys, requests or answers."""

from __future__ import annotations

import argparse
from typing import Final

from semel.admin.describe import has_lapsed, row_document, state_label, state_name
from semel.admin.filters import add_filters, find_bounded, pages, query_of
from semel.admin.reconciliations import left_to_operators
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.identity import uuid_text
from semel.core.model import CURSOR_MAX, Record, State
from semel.core.timing import span_text

LIMIT_MAX: Final = 1000
_HEADS: Final = ("STATE", "OPERATION", "CALLER", "AGE", "ATTEMPT", "OPERATION ID")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "list",
        "list records, newest first",
        "semel list\nsemel list --state unknown --operation payments.create\nsemel list --lapsed --json\n"
        "semel list --caller alice --whole",
        "A list with filters searches the newest records: 50,000 in a SQL database, 10,000 elsewhere. If the search "
        "stops before the page is full, the list ends with a note, and --before continues with older records.",
    )
    add_filters(parser)
    parser.add_argument(
        "--limit", type=whole_number(1, LIMIT_MAX), default=50, help=f"at most so many (default 50, up to {LIMIT_MAX})"
    )
    parser.add_argument(
        "--before", type=whole_number(1, CURSOR_MAX), help="the next page: the cursor that ended the previous page"
    )
    parser.add_argument(
        "--whole", action="store_true", help="search until the page is full, however many records that takes"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Print a page of records."""
    query = query_of(options)._replace(limit=options.limit, before=options.before)
    with open_store(options) as engine:
        page = next(pages(engine, query, query.limit)) if options.whole else find_bounded(engine, query)
        left = left_to_operators(engine, page.records)
    rows = [{**row_document(record, page.now), "needsOperator": record.id in left} for record in page.records]
    out.document({"records": rows, "nextBefore": page.next_before})
    out.table_styled(
        _HEADS,
        [_row(record, page.now, needs_operator=record.id in left) for record in page.records],
        [_style(record, page.now) for record in page.records],
    )
    if page.next_before is not None and len(page.records) < options.limit:
        out.say(f"only the newest records were searched; for older ones: --before {page.next_before}, or --whole")
    elif page.next_before is not None:
        out.say(f"there are more: --before {page.next_before}")
    return Exit.OK


def _style(record: Record, now: int) -> str | None:
    return "red" if record.state == State.UNKNOWN else "yellow" if has_lapsed(record, now) else None


def _row(record: Record, now: int, *, needs_operator: bool) -> tuple[str, ...]:
    return (
        state_label(state_name(record, now))
        + (", lapsed" if has_lapsed(record, now) else "")
        + (", needs operator" if needs_operator else ""),
        record.operation,
        f"{record.tenant}/{record.caller}",
        span_text(now - record.created_at),
        str(record.attempt),
        uuid_text(record.operation_id),
    )
