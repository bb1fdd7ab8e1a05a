"""`semel purge`: drop expired answers and forget expired tombstones now, instead of within the hour."""

from __future__ import annotations

import argparse
import time

from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.progress import Progress, add_progress
from semel.cli.store import opened
from semel.cli.terminal import Output
from semel.flow import perform
from semel.model import Purged
from semel.protocol.asks import Perform
from semel.protocol.operations import is_kept_by, purge_operations
from semel.protocol.upkeep import PURGE_CHUNK, purge_walk, rest_seconds


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "purge",
        "drop expired answers and forget expired tombstones",
        "semel purge\nsemel purge --chunk 100 --json",
        "Safe beside live traffic. What is open or UNKNOWN is never purged. The service does this hourly by itself.",
    )
    parser.add_argument(
        "--chunk",
        type=whole_number(1, 10_000),
        default=PURGE_CHUNK,
        help=f"how many records one store call looks at (default {PURGE_CHUNK})",
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

        known = sum(engine.perform("counts", engine.store.counts).values())
        progress = Progress("purge", asked=options.progress, total=known)

        def told(so_far: Purged) -> None:
            progress.tell(so_far.scanned, _work(so_far))

        total = perform(purge_walk(engine.store, options.chunk, told), answer)
        progress.end()
        kept = perform(purge_operations(engine.store, options.chunk), answer) if is_kept_by(engine.store) else None
    gone = 0 if kept is None else kept.forgotten
    counted = {"scanned": total.scanned, "answersDropped": total.answers_dropped, "recordsForgotten": total.forgotten}
    out.document({**counted, "operationsForgotten": gone})
    also = f", {gone} operations forgotten" if gone else ""
    out.say(f"purged: {total.scanned} looked at, {_work(total)}{also}")
    return Exit.OK


def _work(total: Purged) -> str:
    return f"{total.answers_dropped} answers dropped, {total.forgotten} records forgotten"
