"""`semel bulk`: a bulk command's progress, its items' outcomes, and the items that a new list may hold."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Final

from semel.admin.bulks import (
    bulk_names,
    bulk_standing,
    code_document,
    find_bulk,
    newest_bulks,
    tally_line,
)
from semel.admin.failures import CommandFailed, NotFound, UsageFailed
from semel.admin.find import is_beginning, key_of, name_of
from semel.bulk.declaration import PAGE, fill
from semel.bulk.rules import ItemOutcome, ItemState, ListTerms, Tally, is_bulk, item_document, unnamed_id
from semel.bulk.spool import ItemSpool
from semel.bulk.store import ANY_BULK, Items
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.commands.records.explain import find
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.identity import uuid_bytes, uuid_text
from semel.core.model import Record
from semel.engine.sync_engine import Engine
from semel.errors import BulkRefused

CODES_MAX: Final = 20
# The bulk's own limits do not matter: the fingerprint shows whether the list is the same.
_ANY_LIST: Final = (100_000_000, 16 * 1024 * 1024, "fail")
_ID: Final = "018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41"
_STATES: Final = {"succeeded": ItemState.SUCCEEDED, "failed": ItemState.FAILED, "unknown": ItemState.UNKNOWN}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "bulk",
        "show the progress of a bulk command and the outcome of each item",
        f"semel bulk\nsemel bulk {_ID}\n"
        "semel bulk monday --operation cases.approve --tenant default --caller alice\n"
        f"semel bulk {_ID} --items failed --json\n"
        "semel bulk monday --failed-retryable --list list.jsonl > again.jsonl",
        "Works while the bulk runs. Semel stores the names and outcomes of items, not their content: give the "
        "original list to get the items to retry. The bulk's fingerprint proves that it is the same list.",
    )
    parser.add_argument(
        "key",
        nargs="?",
        metavar="KEY",
        help="the bulk's key, its operation id, or at least 6 hex digits that it or the key's hash begins with; "
        "without it the newest bulks are listed",
    )
    parser.add_argument("--operation", help="only of this operation")
    parser.add_argument("--tenant", help="only of this tenant")
    parser.add_argument("--caller", help="only of this caller")
    parser.add_argument("--items", choices=("all", *_STATES), help="print the items too, or those of one state")
    parser.add_argument("--after", type=whole_number(0, 10**12), help="start after this place")
    parser.add_argument("--before", metavar="ID", help="without KEY: the next page: start where the previous one ended")
    parser.add_argument(
        "--limit", type=whole_number(1, 10_000), default=100, help="maximum number of items, or bulks (default 100)"
    )
    parser.add_argument(
        "--failed-retryable",
        action="store_true",
        help="print only the failed items that may be retried, as JSON lines: the list for a new bulk",
    )
    parser.add_argument("--list", metavar="FILE", help="with --failed-retryable: the same list, as JSON lines")
    parser.add_argument(
        "--member", default="clientItemId", help="with --list: the member that names an item (default clientItemId)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Read the counters, and a page of items where asked; or make the list of a new bulk, or list the bulks."""
    if options.key is None:
        return _list(options, out)
    if options.before is not None:
        raise UsageFailed("--before belongs to the list of bulks: leave out KEY")
    if options.failed_retryable is (options.list is None):
        raise UsageFailed("--failed-retryable and --list FILE belong together: the content of items is not stored")
    if not is_beginning(options.key):
        key_of(options.key, "KEY")
    with open_store(options) as engine:
        record, id, tally = _find(engine, options)
        items = Items(engine.store)
        if options.failed_retryable:
            _again(engine, items, record, id, options, out)
            return Exit.OK
        codes = engine.perform("bulk", lambda: items.codes(id, CODES_MAX))
        page: list[ItemOutcome] = []
        if options.items is not None:
            after = -1 if options.after is None else options.after
            state = _STATES.get(options.items)
            page = engine.perform("bulk", lambda: items.page(id, after, options.limit, state, False))
        now = engine.perform("now", engine.store.now)
    document = {**bulk_names(record, id, now), **tally._asdict(), "codes": [code_document(each) for each in codes]}
    out.document({**document, **({} if options.items is None else {"items": [item_document(each) for each in page]})})
    out.say(tally_line(tally))
    if record is not None:
        out.say(f"{record.operation} of {record.tenant}/{record.caller}, {bulk_standing(record, now)}")
    for each in codes:
        again = ", may be retried" if each.retryable else ""
        out.say(f"  {each.state.name} {each.error_code or '(no code)'}: {each.items}{again}")
    for item in page:
        name = ItemState(item.state).name
        said = " ".join(part for part in (item.result_id, item.error_code) if part)
        out.say(f"  {item.place:>7}  {item.item_id}  {name}{'  ' + said if said else ''}")
    return Exit.OK


def _list(options: argparse.Namespace, out: Output) -> int:
    """Print a page of the newest bulks."""
    for name in ("items", "after", "list", "operation", "tenant", "caller"):
        if getattr(options, name) is not None:
            raise UsageFailed(f"--{name} needs the KEY of a bulk")
    if options.failed_retryable:
        raise UsageFailed("--failed-retryable needs the KEY of a bulk")
    before = ANY_BULK if options.before is None else uuid_bytes(options.before)
    if before is None:
        raise UsageFailed("--before must be an operation id, as semel bulk prints it")
    with open_store(options) as engine:
        bulks = newest_bulks(engine, before, options.limit)
    more = uuid_text(bulks[-1].id) if len(bulks) == options.limit else None
    out.document({"bulks": [bulk.document() for bulk in bulks], "nextBefore": more})
    for bulk in bulks:
        operation = "" if bulk.record is None else f"{bulk.record.operation}, "
        out.say(f"{uuid_text(bulk.id)}  {operation}{bulk.standing()}", f"  {tally_line(bulk.tally)}")
    if not bulks:
        out.say("no bulks")
    if more is not None:
        out.say(f"there may be more: --before {more}")
    return Exit.OK


def _find(engine: Engine, options: argparse.Namespace) -> tuple[Record | None, bytes, Tally]:
    """Find the bulk's record (None: purged before its items), operation id and tally. Raises NotFound."""
    items = Items(engine.store)
    id = uuid_bytes(options.key)
    if id is not None:
        bulk = find_bulk(engine, id)
        if bulk is not None:
            return bulk.record, id, bulk.tally
    record = find(engine, options)
    tally = engine.perform("bulk", lambda: items.tally(record.operation_id))
    if tally is None or not is_bulk(record.recipe):
        raise NotFound(f"KEY names {name_of(record)}, which is not a bulk")
    return record, record.operation_id, tally


def _again(
    engine: Engine, items: Items, record: Record | None, id: bytes, options: argparse.Namespace, out: Output
) -> None:
    """Print the failed items of the same list that may be retried, a page at a time."""
    if record is None:
        raise NotFound("the bulk's record has been purged: FILE cannot be compared with its list")
    with closing(ItemSpool(ListTerms(options.member or None, *_ANY_LIST), _refused_places(engine, items, id))) as spool:
        try:
            fill(spool, Path(options.list))
            same = spool.fingerprint() == record.fingerprint
        except BulkRefused as refused:
            raise CommandFailed(f"--list: {refused}") from None
        if not same:
            raise CommandFailed(
                "--list: this is not the list of the bulk: order, names and contents must be the same; where another "
                "member than clientItemId names its items, give --member"
            )
        after = -1
        while page := _failed_items(engine, items, id, after, retryable=True):
            for outcome in page:
                [listed] = spool.page(outcome.place, 1)
                out.raw(listed.raw.decode() + "\n")
            after = page[-1].place
    out.flush()


def _refused_places(engine: Engine, items: Items, id: bytes) -> set[int]:
    """Return the places of items that the bulk's own limits refused; these items failed without a name."""
    places: set[int] = set()
    after = -1
    while page := _failed_items(engine, items, id, after, retryable=False):
        places.update(outcome.place for outcome in page if outcome.item_id == unnamed_id(outcome.place))
        after = page[-1].place
    return places


def _failed_items(engine: Engine, items: Items, id: bytes, after: int, *, retryable: bool) -> list[ItemOutcome]:
    return engine.perform("bulk", lambda: items.page(id, after, PAGE, ItemState.FAILED, retryable))
