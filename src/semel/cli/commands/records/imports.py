"""`semel imports`: list the files that suppliers sent and the outcomes of their rows; retry or purge imports."""

from __future__ import annotations

import argparse
import getpass
import time
from dataclasses import dataclass
from typing import Any, Final

from semel.admin.failures import CommandFailed, NotFound, UsageFailed
from semel.bulk.declaration import with_details
from semel.bulk.rules import ItemOutcome, ItemState
from semel.bulk.store import Items
from semel.cli.arguments import Commands, Parser, add_command, seconds, whole_number
from semel.cli.commands.records.watch import rest
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.identity import uuid_bytes, uuid_text
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, ImportRefused, RecordUnreadableError
from semel.imports.booking import RowOutcome, row_outcome
from semel.imports.preview import PAGE
from semel.imports.rules import (
    OPEN_STATES,
    OVERDUE_US,
    TAKE_OVER,
    ImportJob,
    ImportState,
    Job,
    clock_text,
    waiting_text,
)
from semel.imports.run import reopen
from semel.imports.store import ANY_ID, ImportRows, Purged

ACTIONS: Final = ("list", "show", "rows", "retry", "purge", "watch")
CHUNK: Final = 1000
EVERY_SECONDS: Final = 1.0
_HEADS: Final = ("ID", "STATE", "ROWS", "BOOKED", "SKIPPED", "FAILED", "UNKNOWN", "CREATED", "KEY")
_NAMED_MAX: Final = 3
_ID: Final = "018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41"
_STATES: Final = {state.name.lower(): state for state in ImportState}
_ROW_STATES: Final = {"booked": 3, "skipped": 3, "failed": 5, "unknown": 6}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "imports",
        "list the files that suppliers sent and their rows; retry, purge or watch an import",
        "semel imports list --supplier ACME --state failed\n"
        "semel imports show ACME:a3f8\n"
        f"semel imports rows {_ID} --state failed --json\n"
        f"semel imports retry {_ID} --reason 'the stock table was restored from last night'\n"
        "semel imports purge\n"
        f"semel imports watch {_ID}",
        "IMPORT is a job's id, its key, or the beginning of its key. retry resumes a job that stopped, and processes "
        "the bytes of any other job again; a process of the service runs it. Both are written to the audit.",
    )
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list")
    parser.add_argument("job", nargs="?", metavar="IMPORT", help="of show, rows, retry and watch")
    parser.add_argument("--operation", default="", help="list: only of these imports")
    parser.add_argument("--supplier", default="", help="list: only of this supplier")
    parser.add_argument("--state", help=f"list: {', '.join(_STATES)}; rows: {', '.join(_ROW_STATES)}")
    parser.add_argument("--limit", type=whole_number(1, 10_000), default=50, help="how many at most (default 50)")
    parser.add_argument("--after", type=whole_number(0, 10**12), default=0, help="rows: start after this row number")
    parser.add_argument("--before", metavar="ID", help="list: the next page: start where the previous one ended")
    parser.add_argument("--reason", help="retry: why; it is written to the audit")
    parser.add_argument("--actor", help="retry: who (default: the user name)")
    parser.add_argument(
        "--every", type=seconds(0.1, 3600), default=EVERY_SECONDS, help="watch: seconds between looks (default 1)"
    )
    parser.add_argument("--count", type=whole_number(1, 10**9), help="watch: end after so many looks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Do one of the actions."""
    named = options.action in ("show", "rows", "retry", "watch")
    if named is (options.job is None):
        raise UsageFailed(f"semel imports {options.action} {'needs an IMPORT' if named else 'takes no IMPORT'}")
    states = _ROW_STATES if options.action == "rows" else _STATES
    if options.state is not None and options.state not in states:
        raise UsageFailed(f"--state must be one of {', '.join(states)}; it is {options.state!r}")
    actions = {"list": _list, "show": _show, "rows": _rows, "retry": _retry, "purge": _purge, "watch": _watch}
    with open_store(options) as engine:
        try:
            return actions[options.action](engine, ImportRows(engine.store), options, out)
        except ImportRefused as refused:
            raise CommandFailed(str(refused)) from None


def _list(engine: Engine, rows: ImportRows, options: argparse.Namespace, out: Output) -> int:
    before = ANY_ID if options.before is None else uuid_bytes(options.before)
    if before is None:
        raise UsageFailed("--before must be an id, as semel imports list prints it")
    state = 0 if options.state is None else int(_STATES[options.state])
    found = engine.perform(
        "import",
        lambda: rows.page(before, options.limit, state=state, operation=options.operation, supplier=options.supplier),
    )
    jobs = [_load_job(engine, rows, job) for job in found]
    lapses = [_lapse_us(engine, rows, job) for job in found]
    more = jobs[-1].id if len(jobs) == options.limit else None
    documents = [_document(job, lapse_us) for job, lapse_us in zip(jobs, lapses, strict=True)]
    out.document({"imports": documents, "nextBefore": more})
    if not jobs:
        out.say("no imports")
        return Exit.OK
    out.table(_HEADS, [_row(job) for job in jobs])
    if more is not None:
        out.say(f"there may be more: --before {more}")
    overdue = [job for job, lapse_us in zip(jobs, lapses, strict=True) if lapse_us > OVERDUE_US]
    for job in overdue[:_NAMED_MAX]:
        lapse_us = lapses[jobs.index(job)]
        out.say(f"{job.id}: {waiting_text(job.state, lapse_us)}")
    if overdue:
        out.say(f"{len(overdue)} of these wait for a process: {TAKE_OVER}")
    return Exit.OK


def _lapse_us(engine: Engine, rows: ImportRows, job: Job) -> int:
    """Return how long any process could have taken an open job; 0 where the job is over."""
    return engine.perform("import", lambda: rows.lapse(job)) if ImportState(job.state) in OPEN_STATES else 0


def _document(job: ImportJob, lapse_us: int) -> dict[str, Any]:
    """Return a job as JSON, with the seconds for which no process has taken it; 0 if one has, or it is over."""
    return {**job.document(), "overdueSeconds": lapse_us // 1_000_000 if lapse_us > OVERDUE_US else 0}


def _row(job: ImportJob) -> tuple[str, ...]:
    counts = job.counts
    known = "" if counts.rows is None else str(counts.rows)
    sums = (counts.booked, counts.skipped, counts.failed, counts.unknown)
    return job.id, job.state.name, known, *map(str, sums), clock_text(job.created_at), job.key


def _show(engine: Engine, rows: ImportRows, options: argparse.Namespace, out: Output) -> int:
    found = _find_job(engine, rows, options.job)
    job, lapse_us = _load_job(engine, rows, found), _lapse_us(engine, rows, found)
    out.document(_document(job, lapse_us))
    out.say(f"{job.key}: {job_line(job)}")
    if not job.is_over:
        out.say(f"  {waiting_text(job.state, lapse_us)}")
    if lapse_us > OVERDUE_US:
        out.say(f"  {TAKE_OVER}")
    out.say(f"  id {job.id}, {job.operation} of {job.tenant}/{job.supplier}, {job.size} bytes of {job.media_type}")
    out.say(
        f"  created {clock_text(job.created_at)}, sent {job.submissions} times, last {clock_text(job.last_seen_at)}"
    )
    if job.ended_at is not None:
        out.say(f"  ended {clock_text(job.ended_at)}; its bytes are {'kept' if job.has_content else 'no longer kept'}")
    for name, times, _, _ in job.names:
        out.say(f"  file name {name!r}, {times} times")
    return Exit.OK


def job_line(job: ImportJob) -> str:
    """Describe a job in one line."""
    counts = job.counts
    if counts.rows is not None:
        of = f" {counts.done} of {counts.rows} rows,"
    else:  # Semel reads the whole file before it books the first row
        of = " its file is being read," if job.state is ImportState.RUNNING else ""
    why = f"; {job.error_code}: {job.reason}" if job.error_code else f"; {job.reason}" if job.reason else ""
    return (
        f"{job.state.name},{of} {counts.booked} booked, {counts.skipped} skipped, {counts.failed} failed, "
        f"{counts.unknown} unknown{why}"
    )


def _rows(engine: Engine, rows: ImportRows, options: argparse.Namespace, out: Output) -> int:
    job = _find_job(engine, rows, options.job)
    closed: list[str] = []
    page = row_page(engine, job, options.state, options.after, options.limit, closed)
    out.document({"id": uuid_text(job.id), "rows": [row.document() for row in page]})
    for row in page:
        where = "" if row.line is None else f"  line {row.line}"
        column = "" if row.column is None else f", {row.column}"
        said = " ".join(part for part in (row.result_id, row.error_code, row.reason) if part)
        out.say(f"  {row.number:>7}  {row.state}{where}{column}{'  ' + said if said else ''}")
    if len(page) == options.limit:
        out.say(f"there may be more: --after {page[-1].number}")
    if closed:
        out.note(f"semel: shown without lines, reasons and results: {closed[0]}")
    return Exit.OK


def row_page(
    engine: Engine, job: Job, wanted: str | None, after: int, limit: int, closed: list[str]
) -> list[RowOutcome]:
    """Read the rows after a number. Items do not distinguish some states: these are searched page by page.

    Parameters: ``closed`` collects the reasons that details do not open.
    """
    if job.bulk_id is None:
        return []
    items, id = Items(engine.store), job.bulk_id
    state = None if wanted is None else ItemState(_ROW_STATES[wanted])
    found: list[RowOutcome] = []
    place = after - 1
    while page := engine.perform("bulk", lambda: items.page(id, place, PAGE, state, False)):  # noqa: B023 - at once
        for outcome in page:
            row = row_outcome(_open_detail(engine, id, outcome, closed))
            if wanted is None or row.state == wanted.upper():
                found.append(row)
                if len(found) == limit:
                    return found
        place = page[-1].place
    return found


def _open_detail(engine: Engine, bulk_id: bytes, outcome: ItemOutcome, closed: list[str]) -> ItemOutcome:
    """Return a row's outcome with its detail in clear, or without it where this process cannot open it."""
    try:
        [shown] = with_details([outcome], bulk_id, engine.core.sealer)
    except ConfigurationError as error:
        closed.append(f"{error} (here: SEMEL_SEAL_KEYS_FILE)")
    except RecordUnreadableError:
        closed.append(
            f"the detail of row {outcome.place + 1} was changed, or was sealed with a different key of the same name"
        )
    else:
        return shown
    return outcome._replace(detail=None)


def _retry(engine: Engine, rows: ImportRows, options: argparse.Namespace, out: Output) -> int:
    if not options.reason:
        raise UsageFailed("semel imports retry needs a --reason: it is written to the audit")
    job = _find_job(engine, rows, options.job)
    actor = options.actor or _user()
    engine.perform("import", lambda: reopen(rows, job, actor, options.reason))
    shown = _load_job(engine, rows, _find_job(engine, rows, uuid_text(job.id)))
    out.document(shown.document())
    out.say(f"{shown.key}: {job_line(shown)}; a process of the service will run it")
    return Exit.OK


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _purge(engine: Engine, rows: ImportRows, options: argparse.Namespace, out: Output) -> int:
    while due := engine.perform("import", lambda: rows.content_due(CHUNK)):
        for id, _, _ in due:
            engine.perform("import", lambda id=id: rows.drop_content(id))  # type: ignore[misc]
    jobs = known = contents = 0
    while gone := engine.perform("import", lambda: rows.forget(CHUNK)):
        jobs += gone
    while gone := engine.perform("import", lambda: rows.forget_rows(CHUNK)):
        known += gone
    for digest in engine.perform("import", lambda: rows.find_unused(CHUNK)):
        contents += engine.perform("import", lambda id=digest: rows.drop_blob(id))  # type: ignore[misc]
    purged = Purged(jobs, contents, known)
    out.document({f"{name}Forgotten": count for name, count in purged._asdict().items()})
    out.say(f"purged: {jobs} imports, the bytes of {contents} files in the database, {known} known rows")
    out.say("the service's own worker deletes the files in folders")
    return Exit.OK


# --- watching -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Pace:
    """The speed of booking rows between looks.

    >>> pace = Pace()
    >>> pace.look(0, 1000, 0.0), pace.look(200, 1000, 2.0)
    ('', ', 100 rows/s, about 8 s left')
    """

    done: int | None = None
    at: float = 0.0

    def look(self, done: int, rows: int | None, now: float) -> str:
        """Describe the speed after another look."""
        before, self.done = self.done, done
        since, self.at = now - self.at, now
        if before is None or since <= 0 or rows is None:  # None: the file is still being read, and no row is booked
            return ""
        rate = max(0.0, (done - before) / since)
        left = f", about {span_text(int((rows - done) / rate * 1_000_000))} left" if rate else ""
        return f", {rate:.0f} rows/s{left}"


def _watch(engine: Engine, rows: ImportRows, options: argparse.Namespace, out: Output) -> int:
    """Print a line for each look, until the job is over."""
    pace, looks = Pace(), 0
    job = _find_job(engine, rows, options.job)
    try:
        while True:
            found = _find_job(engine, rows, uuid_text(job.id))
            shown, lapse_us = _load_job(engine, rows, found), _lapse_us(engine, rows, found)
            looks += 1
            speed = pace.look(shown.counts.done, shown.counts.rows, time.monotonic())
            out.document(_document(shown, lapse_us))
            if lapse_us > OVERDUE_US:
                speed = f"; {waiting_text(shown.state, lapse_us)} (see semel imports show)"
            text = f"{shown.key}: {job_line(shown)}{'' if shown.is_over else speed}"
            if out.on_terminal:
                out.redraw([text])
            else:
                out.say(text)
            if shown.is_over or looks == options.count:
                if out.on_terminal:
                    out.say("")
                return Exit.OK
            rest(options.every)
    except KeyboardInterrupt:
        out.say("")
        return Exit.OK


# --- finding ------------------------------------------------------------------------------------


def _find_job(engine: Engine, rows: ImportRows, name: str) -> Job:
    """Find the one job with this id, key or key prefix. Raises NotFound and UsageFailed."""
    id = uuid_bytes(name)
    if id is not None:
        job = engine.perform("import", lambda: rows.by_id(id))
        if job is not None:
            return job
    found = engine.perform("import", lambda: rows.found_by_key(name.rstrip("\u2026"), 3))
    exact = [job for job in found if job.key == name]
    if len(found) > 1 and len(exact) != 1:
        raise UsageFailed(f"IMPORT names several: {', '.join(uuid_text(job.id) for job in found)}; give an id")
    if not found:
        raise NotFound("no such import; see semel imports list")
    return exact[0] if exact else found[0]


def _load_job(engine: Engine, rows: ImportRows, job: Job) -> ImportJob:
    return engine.perform("import", lambda: rows.show(job))
