"""`semel purge`: forget everything whose time is over now, instead of within the hour."""

from __future__ import annotations

import argparse
import time

from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import opened
from semel.cli.progress import Progress, add_progress
from semel.cli.terminal import Output, span_text
from semel.core.clock import unexplained_gap
from semel.core.flow import perform
from semel.core.model import Find, Purged
from semel.core.purge_flow import KEEP_EVENTS_SECONDS, PurgedAll, purge_all
from semel.core.purge_walk import PURGE_CHUNK, rest_seconds
from semel.core.requests import Perform
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError

_SECONDS_MAX = 10 * 365 * 86_400
_BESIDE = ("operations", "items", "messages", "events")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "purge",
        "drop expired answers and forget everything whose time is over",
        "semel purge\nsemel purge --chunk 100 --json",
        "Safe beside live traffic. What is open, UNKNOWN, parked or waits to be published is never purged. The service "
        "and semel worker do this hourly by themselves.",
    )
    parser.add_argument(
        "--chunk",
        type=whole_number(1, 10_000),
        default=PURGE_CHUNK,
        help=f"how many rows one store call looks at (default {PURGE_CHUNK})",
    )
    parser.add_argument(
        "--keep",
        type=whole_number(0, _SECONDS_MAX),
        default=int(KEEP_EVENTS_SECONDS),
        metavar="SECONDS",
        help="how long published events are kept, as of semel worker (default a day)",
    )
    parser.add_argument(
        "--clock-is-right",
        action="store_true",
        help="purge although the newest record is more than a day old; without it a wrong clock could forget every key",
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Walk the store once."""
    with opened(options) as engine:

        def answer(needed: object) -> Purged:
            assert isinstance(needed, Perform)
            began = time.monotonic()
            done: Purged = engine.perform(needed.verb, needed.make)
            time.sleep(rest_seconds(done, time.monotonic() - began))
            return done

        if not options.clock_is_right:
            _check_clock(engine)
        known = sum(engine.perform("counts", engine.store.counts).values())
        progress = Progress("purge", asked=options.progress, total=known)

        def told(so_far: Purged) -> None:
            progress.tell(so_far.scanned, _work(so_far.answers_dropped, so_far.forgotten))

        total = perform(purge_all(engine.store, options.chunk, options.keep * 1_000_000, told), answer)
        progress.end()
    counted = {"scanned": total.scanned, "answersDropped": total.answers, "recordsForgotten": total.records}
    out.document({**counted, **{f"{name}Forgotten": getattr(total, name) for name in _BESIDE}})
    out.say(f"purged: {total.scanned} looked at, {_work(total.answers, total.records)}{_beside(total)}")
    return Exit.OK


def _check_clock(engine: Engine) -> None:
    """Raise ConfigurationError where nothing explains how late the store's clock says it is."""
    found = engine.perform("find", lambda: engine.store.find(Find(limit=1)))
    gap = unexplained_gap(found.now, max((record.created_at for record in found.records), default=None))
    if gap:
        raise ConfigurationError(
            f"nothing was purged: the newest record is {span_text(gap)} old, so the store's clock may be wrong, and a "
            "purge would forget keys whose time is not over. Check the clock of the store's host; where "
            "it is right, run: semel purge --clock-is-right"
        )


def _work(dropped: int, forgotten: int) -> str:
    return f"{dropped} answers dropped, {forgotten} records forgotten"


def _beside(total: PurgedAll) -> str:
    """What hung on records and is gone, each kind that there was.

    >>> _beside(PurgedAll(9, 0, 0, 2, 0, 5, 0)), _beside(PurgedAll(9, 0, 0, 0, 0, 0, 0))
    (', 2 operations, 5 messages', '')
    """
    return "".join(f", {getattr(total, name)} {name}" for name in _BESIDE if getattr(total, name))
