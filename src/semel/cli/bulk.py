"""`semel bulk`: how far a bulk command is, and what became of its items."""

from __future__ import annotations

import argparse
from typing import Final

from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit, NotFound, UsageFailed
from semel.cli.store import opened
from semel.cli.terminal import Json, Output
from semel.rules.identity import uuid_bytes
from semel.rules.items import ItemOutcome, ItemState, Tally
from semel.stores.items import Items

_ID: Final = "018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41"
_STATES: Final = {"succeeded": ItemState.SUCCEEDED, "failed": ItemState.FAILED, "unknown": ItemState.UNKNOWN}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "bulk",
        "how far a bulk command is, and what became of its items",
        f"semel bulk {_ID}\nsemel bulk {_ID} --items failed --json",
        "The id is the one that the bulk's result and `semel list` show. It may be asked while the bulk runs.",
    )
    parser.add_argument("operation", metavar="OPERATION", help="the bulk's operation id")
    parser.add_argument("--items", choices=("all", *_STATES), help="print the items too, or those of one state")
    parser.add_argument("--after", type=whole_number(0, 10**12), help="begin behind this place")
    parser.add_argument(
        "--limit", type=whole_number(1, 10_000), default=100, help="how many items at most (default 100)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Read the counters, and a page of items where asked."""
    id = uuid_bytes(options.operation)
    if id is None:
        raise UsageFailed(f"OPERATION must be an operation id (a UUID); it is {options.operation!r}; see: semel list")
    with opened(options) as engine:
        items = Items(engine.store)
        tally = engine.perform("bulk", lambda: items.tally(id))
        if tally is None:
            raise NotFound(f"no bulk of this store has the operation id {options.operation}; see: semel list")
        page: list[ItemOutcome] = []
        if options.items is not None:
            after = -1 if options.after is None else options.after
            state = _STATES.get(options.items)
            page = engine.perform("bulk", lambda: items.page(id, after, options.limit, state, False))
    out.document({**tally._asdict(), **({} if options.items is None else {"items": [_shown(each) for each in page]})})
    out.say(line(tally))
    for each in page:
        name = ItemState(each.state).name
        said = " ".join(part for part in (each.result_id, each.error_code) if part)
        out.say(f"  {each.place:>7}  {each.item_id}  {name}{'  ' + said if said else ''}")
    return Exit.OK


def line(tally: Tally) -> str:
    """A tally in one line.

    >>> line(Tally(4, 4, 3, 1, 0, 0))
    '4 of 4 items: 3 succeeded, 1 failed (0 may be tried again), 0 unknown'
    """
    return (
        f"{tally.done} of {tally.total} items: {tally.succeeded} succeeded, {tally.failed} failed "
        f"({tally.retryable} may be tried again), {tally.unknown} unknown"
    )


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
