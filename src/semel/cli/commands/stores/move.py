"""`semel move`: a copy of every settled and UNKNOWN record in another store, so that every key is known there.

Between SQL databases it also copies operations, bulks and items, events, handled messages, recorded steps and imports.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from semel.admin.failures import CommandFailed, UsageFailed
from semel.admin.filters import pages
from semel.admin.move.records import Mover, describe_record, obstacles
from semel.admin.move.rows import RowsMoved, check_fits, check_relays, copy_rows, describe_holdings, holdings
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import connect, hide_password, url_of
from semel.cli.progress import ProgressLine, add_progress
from semel.cli.terminal import Output
from semel.core.model import Effects, Find
from semel.engine.sync_engine import Engine
from semel.operations.flow import is_kept_by
from semel.policy import Policy
from semel.stores.sql.tables import NOUNS, STEPS, UNSAID, Holdings

ID_BYTES: Final = 16
BATCH: Final = 50  # an answer may have a megabyte: keep few in memory at once
NAMED_MAX: Final = 5
MEANWHILE: Final = "the source changed during the move: stop all writers, and run semel move again"


@dataclass(slots=True)
class Survey:
    """The records to move: ids, newest first, and the obstacles."""

    now: int = 0
    ids: bytearray = field(default_factory=bytearray)
    external: set[str] = field(default_factory=set)
    obstacles: list[str] = field(default_factory=list)
    obstacle_count: int = 0

    @property
    def count(self) -> int:
        """Return the number of records."""
        return len(self.ids) // ID_BYTES


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "move",
        "copy every record, operation, event, message, item and import into another store",
        "semel move --from sqlite:///semel.db --to postgresql://app@db/shop --dry-run\n"
        "semel move --from sqlite:///semel.db --to postgresql://app@db/shop --progress",
        "Stop all writers, consumers and relays first: the move refuses open records and a running relay. The source "
        "does not change. You may repeat the move: rows that were copied before are compared, not written again. See "
        "docs/moving.md.",
    )
    parser.add_argument("--from", dest="source", metavar="URL", help="the store to copy (default: --url, $SEMEL_URL)")
    parser.add_argument(
        "--to", dest="target", metavar="URL", required=True, help="the store to copy into; migrate it first"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be copied, and what prevents it")
    parser.add_argument(
        "--records-only",
        action="store_true",
        help="deliberately leave operations, items, events, messages and imports behind",
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Survey, refuse or copy, and report how many records the target has now."""
    source_url = options.source or url_of(options)
    with closing(_connect(source_url, "--from")) as source, closing(_connect(options.target, "--to")) as target:
        source.open()
        target.open()
        _check_different(source, target)
        survey = look(source, asked=options.progress)
        if survey.obstacle_count:
            raise CommandFailed(
                f"{survey.obstacle_count} of {survey.count} records cannot be moved: {'; '.join(survey.obstacles)}. "
                "Stop all writers, wait until the leases expire, and settle the remaining records: semel list --state "
                "processing"
            )
        for operation in sorted(survey.external):
            target.core.needs.declare(operation, Policy(effects="external"))  # refuse a server that evicts records
        held = holdings(source)
        if not options.records_only:
            check_fits(held, target)
            check_relays(source)
        before = source.perform("counts", source.store.counts)
        mover = Mover(source, target, survey.now)
        rows = RowsMoved()
        if not options.dry_run:
            copy(mover, survey, asked=options.progress)
            rows = copy_beside(source, target, held, options)
            if source.perform("counts", source.store.counts) != before:
                raise CommandFailed(MEANWHILE)
    document = {"records": survey.count, "copied": mover.copied, "alreadyThere": mover.there, "over": mover.over}
    beside = {} if held is None else {name: count for name, count in held._asdict().items() if name not in UNSAID}
    out.document({**document, "dryRun": options.dry_run, "beside": beside, "rows": rows.document()})
    places = f"{hide_password(source_url)} to {hide_password(options.target)}"
    also = None if held is None or held.is_empty else describe_holdings(held)
    if options.dry_run:
        noun = "record" if survey.count == 1 else "records"
        out.say(f"{survey.count} {noun} can be moved from {places}; nothing was written")
        if also is not None:
            out.say(f"and {also}")
        return Exit.OK
    out.say(
        f"moved from {places}",
        f"{mover.copied} copied and read back, {mover.there} were there already, {mover.over} expired and left behind",
    )
    if also is not None and options.records_only:
        out.say(f"left where they are: {also}")
    elif also is not None:
        copied, there = sum(rows.copied.values()), sum(rows.there.values())
        out.say(f"and {also}: {copied} rows copied and read back, {there} were there already")
    if held is not None and held.outside and not options.records_only:
        out.say(
            f"the bytes of {held.outside} imports are in a folder or an object store: make that place available to the "
            "processes of the new store"
        )
    return Exit.OK


def copy_beside(source: Engine, target: Engine, held: Holdings | None, options: argparse.Namespace) -> RowsMoved:
    """Copy the rows other than records. Recorded steps of executions without an outcome are copied in any case."""
    if held is None or not is_kept_by(target.store):
        return RowsMoved()
    rows = copy_rows(source, target, held, (STEPS,) if options.records_only else NOUNS, asked=options.progress)
    if not options.records_only:
        check_relays(source)
        if holdings(source) != held:
            raise CommandFailed(MEANWHILE)
    return rows


def _connect(url: str, option: str) -> Engine:
    try:
        return connect(argparse.Namespace(url=url))
    except UsageFailed as error:
        raise UsageFailed(str(error).replace("--url", option, 1)) from None


def _check_different(source: Engine, target: Engine) -> None:
    one, other = (engine.perform("identity", engine.store.identity) for engine in (source, target))
    assert one is not None
    assert other is not None
    if one.store_id == other.store_id:
        raise UsageFailed("--to and --from are the same store: they have the same identity")


def look(source: Engine, *, asked: bool = False) -> Survey:
    """Survey every record of a store, without bodies."""
    survey = Survey()
    progress = ProgressLine("survey", asked=asked)
    for page in pages(source, Find()):
        survey.now = survey.now or page.now
        for record in page.records:
            survey.ids += record.id
            if record.effects == Effects.EXTERNAL:
                survey.external.add(record.operation)
            for why in obstacles(record):
                survey.obstacle_count += 1
                if len(survey.obstacles) < NAMED_MAX:
                    survey.obstacles.append(f"{describe_record(record)} {why}")
        progress.tell(survey.count)
    progress.end()
    return survey


def copy(mover: Mover, survey: Survey, *, asked: bool = False) -> None:
    """Copy the surveyed records, oldest first, so that lists roughly keep their order. Raises CommandFailed,
    StoreError.
    """
    progress = ProgressLine("move", asked=asked, total=survey.count)
    done = 0
    for end in range(len(survey.ids), 0, -BATCH * ID_BYTES):
        begin = max(0, end - BATCH * ID_BYTES)
        ids = [bytes(survey.ids[at : at + ID_BYTES]) for at in range(end - ID_BYTES, begin - ID_BYTES, -ID_BYTES)]
        mover.move(ids)
        done += len(ids)
        progress.tell(done)
    progress.end()
