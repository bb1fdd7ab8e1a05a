"""`semel bulk`: how far a bulk command is, what became of its items, and which of them a new list may hold."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Final

from semel.admin.describe import shown_state, state_name
from semel.admin.find import is_beginning, key_of, name_of
from semel.bulk.declaration import PAGE, fill
from semel.bulk.rules import ItemOutcome, ItemState, ListTerms, Tally, is_bulk, unnamed_id
from semel.bulk.spool import ItemSpool
from semel.bulk.store import Failures, Items
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.commands.explain import find
from semel.cli.exits import CommandFailed, Exit, NotFound, UsageFailed
from semel.cli.open_store import opened
from semel.cli.terminal import Json, Output, span_text
from semel.core.identity import uuid_bytes, uuid_text
from semel.core.model import OPEN_STATES, Find, Record
from semel.engine.sync_engine import Engine
from semel.errors import BulkRefused

CODES_MAX: Final = 20
# Whatever the bulk's own limits were: that it is the same list its fingerprint tells.
_ANY_LIST: Final = (100_000_000, 16 * 1024 * 1024, "fail")
_ID: Final = "018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41"
_STATES: Final = {"succeeded": ItemState.SUCCEEDED, "failed": ItemState.FAILED, "unknown": ItemState.UNKNOWN}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "bulk",
        "how far a bulk command is, and what became of its items",
        f"semel bulk {_ID}\n"
        "semel bulk monday --operation cases.approve --tenant default --caller alice\n"
        f"semel bulk {_ID} --items failed --json\n"
        "semel bulk monday --failed-retryable --list list.jsonl > again.jsonl",
        "It may be asked while the bulk runs. Items are stored by their names and outcomes, not by their content: what "
        "may be tried again is taken out of the same list, which the bulk's fingerprint tells.",
    )
    parser.add_argument(
        "key",
        metavar="KEY",
        help="the bulk's key, its operation id, or at least 6 hex digits that it or the key's hash begins with",
    )
    parser.add_argument("--operation", help="only of this operation")
    parser.add_argument("--tenant", help="only of this tenant")
    parser.add_argument("--caller", help="only of this caller")
    parser.add_argument("--items", choices=("all", *_STATES), help="print the items too, or those of one state")
    parser.add_argument("--after", type=whole_number(0, 10**12), help="begin behind this place")
    parser.add_argument(
        "--limit", type=whole_number(1, 10_000), default=100, help="how many items at most (default 100)"
    )
    parser.add_argument(
        "--failed-retryable",
        action="store_true",
        help="print only the items that failed and may be tried again, as JSON lines: the list of a new bulk",
    )
    parser.add_argument("--list", metavar="FILE", help="with --failed-retryable: the same list, as JSON lines")
    parser.add_argument(
        "--member", default="clientItemId", help="with --list: the member that names an item (default clientItemId)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Read the counters, and a page of items where asked; or make the list of a new bulk."""
    if options.failed_retryable is (options.list is None):
        raise UsageFailed("--failed-retryable and --list FILE belong together: what an item holds is not stored")
    if not is_beginning(options.key):
        key_of(options.key, "KEY")
    with opened(options) as engine:
        record, id, tally = _found(engine, options)
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
        now = engine.perform("find", lambda: engine.store.find(Find(limit=1))).now
    document = {**_named(record, id, now), **tally._asdict(), "codes": [_code(each) for each in codes]}
    out.document({**document, **({} if options.items is None else {"items": [_shown(each) for each in page]})})
    out.say(line(tally))
    if record is not None:
        out.say(f"{record.operation} of {record.tenant}/{record.caller}, {_standing(record, now)}")
    for each in codes:
        again = ", may be tried again" if each.retryable else ""
        out.say(f"  {each.state.name} {each.error_code or '(no code)'}: {each.items}{again}")
    for item in page:
        name = ItemState(item.state).name
        said = " ".join(part for part in (item.result_id, item.error_code) if part)
        out.say(f"  {item.place:>7}  {item.item_id}  {name}{'  ' + said if said else ''}")
    return Exit.OK


def _found(engine: Engine, options: argparse.Namespace) -> tuple[Record | None, bytes, Tally]:
    """The bulk's record (None: it is forgotten, its items not yet), operation id and tally. Raises NotFound."""
    items = Items(engine.store)
    id = uuid_bytes(options.key)
    if id is not None:
        tally = engine.perform("bulk", lambda: items.tally(id))
        if tally is not None:
            [record] = engine.perform("read_operations", lambda: engine.store.read_operations((id,)))
            return record, id, tally
    record = find(engine, options)
    tally = engine.perform("bulk", lambda: items.tally(record.operation_id))
    if tally is None or not is_bulk(record.recipe):
        raise NotFound(f"KEY names {name_of(record)}, which is no bulk")
    return record, record.operation_id, tally


def _again(
    engine: Engine, items: Items, record: Record | None, id: bytes, options: argparse.Namespace, out: Output
) -> None:
    """Those of the same list that failed and may be tried again, a page at a time."""
    if record is None:
        raise NotFound("the bulk's record is forgotten: nothing tells whether FILE is its list")
    with closing(ItemSpool(ListTerms(options.member or None, *_ANY_LIST), _refused(engine, items, id))) as spool:
        try:
            fill(spool, Path(options.list))
            same = spool.fingerprint() == record.fingerprint
        except BulkRefused as refused:
            raise CommandFailed(f"--list: {refused}") from None
        if not same:
            raise CommandFailed(
                "--list: it is not the list of this bulk: order, names and contents must be the same; where another "
                "member than clientItemId names its items, give --member"
            )
        after = -1
        while page := _failed(engine, items, id, after, retryable=True):
            for outcome in page:
                [listed] = spool.page(outcome.place, 1)
                out.raw(listed.raw.decode() + "\n")
            after = page[-1].place
    out.flush()


def _refused(engine: Engine, items: Items, id: bytes) -> set[int]:
    """The places of items that the bulk's own limits refused, which nobody else knows; they failed without a name."""
    places: set[int] = set()
    after = -1
    while page := _failed(engine, items, id, after, retryable=False):
        places.update(outcome.place for outcome in page if outcome.item_id == unnamed_id(outcome.place))
        after = page[-1].place
    return places


def _failed(engine: Engine, items: Items, id: bytes, after: int, *, retryable: bool) -> list[ItemOutcome]:
    return engine.perform("bulk", lambda: items.page(id, after, PAGE, ItemState.FAILED, retryable))


def line(tally: Tally) -> str:
    """A tally in one line.

    >>> line(Tally(4, 4, 3, 1, 0, 0))
    '4 of 4 items: 3 succeeded, 1 failed (0 may be tried again), 0 unknown'
    """
    return (
        f"{tally.done} of {tally.total} items: {tally.succeeded} succeeded, {tally.failed} failed "
        f"({tally.retryable} may be tried again), {tally.unknown} unknown"
    )


def _standing(record: Record, now: int) -> str:
    if record.state not in OPEN_STATES:
        return shown_state(state_name(record, now))
    if record.lease_until > now:
        return f"running: its lease is for {span_text(record.lease_until - now)} more, and renewed"
    return "interrupted: nobody runs it; call it again with the same key and list, and it goes on"


def _named(record: Record | None, id: bytes, now: int) -> dict[str, Json]:
    named: dict[str, Json] = {"operationId": uuid_text(id)}
    if record is not None:
        named |= {"operation": record.operation, "tenant": record.tenant, "caller": record.caller}
        named |= {"state": state_name(record, now), "running": record.state in OPEN_STATES and record.lease_until > now}
    return named


def _code(each: Failures) -> dict[str, Json]:
    return {
        "state": each.state.name,
        "errorCode": each.error_code,
        "retryable": each.retryable,
        "count": each.items,
    }


def _shown(outcome: ItemOutcome) -> dict[str, Json]:
    return {
        "place": outcome.place,
        "id": outcome.item_id,
        "state": outcome.state.name,
        "targetId": outcome.target_id,
        "resultId": outcome.result_id,
        "errorCode": outcome.error_code,
        "retryable": outcome.retryable,
    }
