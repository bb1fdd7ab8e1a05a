"""`semel purge`: delete everything that has expired now, instead of within the hour."""

from __future__ import annotations

import argparse
import json
import time

from semel.admin.failures import UsageFailed
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.progress import ProgressLine, add_progress
from semel.cli.terminal import Output
from semel.cli.whole_file import WholeFile
from semel.core.flow import perform
from semel.core.model import Find, Purged
from semel.core.requests import Perform
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.retention.archive import Archive, fix_now
from semel.retention.flow import KEEP_EVENTS_SECONDS, PURGE_CHUNK, PurgedAll, purge_all, rest_seconds
from semel.retention.rules import bound_now, clock_gap

_SECONDS_MAX = 10 * 365 * 86_400
_BESIDE = ("operations", "items", "messages", "events")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "purge",
        "delete expired answers and every record that has expired",
        "semel purge\nsemel purge --chunk 100 --json\nsemel purge --archive purged-2026-11.jsonl",
        "Safe during live traffic. Never purges open or UNKNOWN records, parked events or events that wait to be "
        "published. The service and semel worker purge every hour on their own.",
    )
    parser.add_argument(
        "--chunk",
        type=whole_number(1, 10_000),
        default=PURGE_CHUNK,
        help=f"how many rows one store call reads (default {PURGE_CHUNK})",
    )
    parser.add_argument(
        "--keep",
        type=whole_number(0, _SECONDS_MAX),
        default=int(KEEP_EVENTS_SECONDS),
        metavar="SECONDS",
        help="how long published events are kept, as for semel worker (default a day)",
    )
    parser.add_argument(
        "--archive",
        metavar="FILE",
        help="first write every purged row, with its answer, to a new file of JSON lines",
    )
    parser.add_argument(
        "--clock-is-right",
        action="store_true",
        help="trust the clock although the newest record is more than a day old; without it, only rows that expired "
        "within a day of that record are purged, because a wrong clock could purge every key",
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Purge the store in one walk; with an archive, only after the archive is on the disk."""
    if options.archive == "-":
        raise UsageFailed("--archive must be a file: whatever reads stdout could lose purged rows")
    with open_store(options) as engine:
        now = None if options.clock_is_right else _judge_time(engine, out)
        known = sum(engine.perform("counts", engine.store.counts).values())
        archive, archived = _archive(engine, options, known, now) if options.archive else (None, 0)
        progress = ProgressLine("purge", asked=options.progress, total=known)

        def answer(needed: object) -> Purged:
            assert isinstance(needed, Perform)
            began = time.monotonic()
            at = now if archive is None else archive.now
            make = needed.make if at is None else fix_now(at, needed.make)
            done: Purged = engine.perform(needed.verb, make)
            time.sleep(rest_seconds(done, time.monotonic() - began))
            return done

        def tell(so_far: Purged) -> None:
            progress.tell(so_far.scanned, _work(so_far.answers_dropped, so_far.forgotten))

        bulks = None if archive is None else archive.bulks
        total = perform(purge_all(engine.store, options.chunk, _keep_us(options), tell, bulks=bulks), answer)
        progress.end()
    counted = {"scanned": total.scanned, "answersDropped": total.answers, "recordsForgotten": total.records}
    beside = {f"{name}Forgotten": getattr(total, name) for name in _BESIDE}
    written = {"archive": options.archive, "archived": archived} if options.archive else {}
    out.document({**counted, **beside, **written})
    if options.archive:
        out.say(f"archived: {archived} rows to {options.archive}")
    out.say(f"purged: {total.scanned} looked at, {_work(total.answers, total.records)}{_beside(total)}")
    return Exit.OK


def _keep_us(options: argparse.Namespace) -> int:
    return int(options.keep) * 1_000_000


def _archive(engine: Engine, options: argparse.Namespace, known: int, now: int | None) -> tuple[Archive, int]:
    """Write the rows that the purge will delete to a complete file on disk, and return their number."""
    archive = Archive(engine, _keep_us(options), now)
    progress = ProgressLine("archive", asked=options.progress, total=known)
    count = 0
    remedy = "an archive is never replaced, give another name"
    with WholeFile(options.archive, "--archive", replace=False, remedy=remedy) as file:
        for document in archive.documents():
            file.write(json.dumps(document) + "\n")
            count += 1
            progress.tell(count)
        file.keep()
    progress.end()
    return archive, count


def _judge_time(engine: Engine, out: Output) -> int | None:
    """Return the time by which to judge every row, or None if the store's clock is implausibly late.

    Raises ConfigurationError on Redis, whose scripts read its own clock.
    """
    found = engine.perform("find", lambda: engine.store.find(Find(limit=1)))
    newest = max((record.created_at for record in found.records), default=None)
    gap = clock_gap(found.now, newest)
    if not gap:
        return None
    doubt = (
        f"the newest record is {span_text(gap)} old: the service was quiet, or the store's clock is wrong, and a purge "
        "would delete keys that have not expired"
    )
    remedy = "Check the clock of the store's host; where it is right, run: semel purge --clock-is-right"
    if engine.store.capabilities.forgets_by_itself:
        raise ConfigurationError(f"nothing was purged: {doubt}. {remedy}")
    out.note(f"warning: only rows that expired within a day of the newest record are purged; {doubt}. {remedy}")
    return bound_now(found.now, newest)


def _work(dropped: int, forgotten: int) -> str:
    return f"{dropped} answers dropped, {forgotten} records forgotten"


def _beside(total: PurgedAll) -> str:
    """List the deleted dependent rows, by kind.

    >>> _beside(PurgedAll(9, 0, 0, 2, 0, 5, 0)), _beside(PurgedAll(9, 0, 0, 0, 0, 0, 0))
    (', 2 operations, 5 messages', '')
    """
    return "".join(f", {getattr(total, name)} {name}" for name in _BESIDE if getattr(total, name))
