"""`semel doctor`: a careful operator's checks of a store, and the remedy for every finding."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Final

from semel.admin.describe import time_text
from semel.admin.doctor.messages import look_at_messages
from semel.admin.doctor.records import look_at_records
from semel.admin.doctor.schema import look_at_schema
from semel.admin.doctor.server import look_at_store
from semel.admin.doctor.settings import look_at_settings
from semel.admin.filters import pages
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import connect
from semel.cli.progress import add_progress, show_elapsed
from semel.cli.terminal import Output
from semel.core.contract import DoctorFinding, Identity, Level, Observable
from semel.core.model import Find
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError, StoreError
from semel.sealing.reseal import look_at_sealing

CLOCK_STEP_US_MAX: Final = 2_000_000
EPOCH_FLOOR_US: Final = 1_704_067_200_000_000  # 2024-01-01: a host clock before this was never set
_MARKS: Final = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}
_WIDTH: Final = 15  # the longest check's name, and one
_STYLES: Final = {"warning": "yellow", "problem": "red"}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "doctor",
        "check the store and find stuck commands; every finding comes with its remedy",
        "semel doctor\nsemel doctor --full --progress\nsemel doctor --json --url sqlite:////var/lib/shop/semel.db",
        "Changes nothing. Exit code 1 where there is a warning or a problem, 3 where the store cannot be used.",
    )
    parser.add_argument("--full", action="store_true", help="check the integrity of a file of any size, and every row")
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Run the checks and print the findings."""
    engine = connect(options)
    try:
        findings, usable = examine(engine, full=options.full, progress=options.progress)
        findings += look_at_settings(options)
    finally:
        engine.close()
    bad = [finding for finding in findings if finding.is_bad]
    code = Exit.STORE if not usable else Exit.REFUSED if bad else Exit.OK
    out.document({"healthy": not bad, "findings": [asdict(finding) for finding in findings]})
    for finding in findings:
        out.say_hanging(
            f"{_MARKS[finding.level]:<8} {finding.check:<{_WIDTH}} ", finding.detail, _STYLES.get(finding.level)
        )
        if finding.remedy:
            out.say_hanging(f"{'':<8} {'':<{_WIDTH}} → ", finding.remedy)
    out.say("", f"{len(bad)} finding{'s' if len(bad) != 1 else ''}" if bad else "healthy: nothing found")
    return code


def examine(
    engine: Engine, *, full: bool = False, progress: bool = False, quick: bool = False
) -> tuple[list[DoctorFinding], bool]:
    """Return all findings on the store, and whether it can be used at all.

    Parameters: ``full`` checks the integrity of a large file too; ``progress`` as given by ``--progress``;
    ``quick`` leaves out checks that read every row.
    """
    found: list[DoctorFinding] = []
    identity: Identity | None = None
    try:
        identity = engine.perform("identity", engine.store.identity)
        found.append(DoctorFinding("store", "ok", f"{engine.backend.name} answers"))
        engine.core.check_identity(identity)
    except StoreError as error:
        return [*found, _problem("store", error, "repair the store, then run: semel doctor")], False
    except ConfigurationError as error:
        found.append(_problem("identity", error, None))
        return [*found, *_look_at_lost(engine, identity)], False
    assert identity is not None
    made = made_at(identity.store_id)
    since = "" if made is None else f", made {time_text(made)}"
    found.append(DoctorFinding("identity", "ok", f"{identity.store_id}{since}, schema {identity.schema_version}"))
    try:
        schema = look_at_schema(engine, identity)
        if schema.level == "problem":
            return [*found, schema], False
        found += look_at_store(engine, full=full, quick=quick, show=partial(show_elapsed, asked=progress))
        found.append(schema)
        found += _look_at_clock(engine)
        found += look_at_records(engine, quick=quick)
        found += look_at_messages(engine, full=full, quick=quick)
        found += look_at_sealing(engine)
    except (StoreError, SchemaError) as error:
        return [*found, _problem("store", error, "repair the store, then run: semel doctor")], False
    if quick:
        detail = "checks that read every row were skipped: damage, overdue rows, the number of records in each state"
        found.append(DoctorFinding("quick", "note", detail, "run: semel doctor"))
    return found, True


def _look_at_lost(engine: Engine, identity: Identity | None) -> Iterator[DoctorFinding]:
    """Check the server's settings where a store has no identity: the server may have lost it."""
    if identity is not None or not isinstance(engine.store, Observable):
        return
    with suppress(StoreError, SchemaError):  # the missing identity is reported already
        server = list(look_at_store(engine))
        yield from server
        keeping = [finding for finding in server if finding.check in ("eviction", "persistence")]
        if keeping:  # such a server can be flushed under any settings
            detail = (
                "if this store was migrated before, the server has lost its identity, and records may be lost with it"
            )
            remedy = "find out from your own systems which commands ran before you run: semel migrate"
            level: Level = "problem" if any(finding.is_bad for finding in keeping) else "warning"
            yield DoctorFinding("records", level, detail, remedy)


def _problem(check: str, error: Exception, remedy: str | None) -> DoctorFinding:
    # Most messages carry their remedy already.
    return DoctorFinding(check, "problem", str(error), None if remedy is None or "run:" in str(error) else remedy)


def _look_at_clock(engine: Engine) -> Iterator[DoctorFinding]:
    before = time.time_ns() // 1000
    page = next(pages(engine, Find(), 1))
    after = time.time_ns() // 1000
    ahead = max((record.created_at for record in page.records), default=0) - page.now
    if before < EPOCH_FLOOR_US:
        yield DoctorFinding(
            "clock", "problem", "this host's clock is not synchronised", "synchronise it (NTP); leases depend on it"
        )
    elif ahead > CLOCK_STEP_US_MAX:
        yield DoctorFinding(
            "clock",
            "warning",
            f"the newest record is {span_text(ahead)} in the future: the store's clock was set back",
            "synchronise the clock by slewing it; leases lapse later by as much until it has caught up",
        )
    else:
        yield clock_offset(before, page.now, after)


def made_at(store_id: str) -> int | None:
    """Return the time in a UUIDv7, in microseconds; None where the text is not a UUIDv7.

    >>> made_at("01890a5d-ac96-774b-bcce-b302099a8057"), made_at("a name")
    (1688096058518000, None)
    """
    digits = str(store_id).replace("-", "")  # a damaged row may hold anything
    if len(digits) != 32 or digits[12] != "7" or not all(digit in "0123456789abcdef" for digit in digits):
        return None
    return int(digits[:12], 16) * 1000


def clock_offset(before: int, store: int, after: int) -> DoctorFinding:
    """Return the finding on the store's clock, read between two reads of this host's, all in microseconds.

    >>> clock_offset(1_000_000, 1_001_500, 1_003_000).detail
    "the store's clock agrees with its records, and with this host's within 0.003 s"
    """
    off = max(before - store, store - after, 0)
    if off > CLOCK_STEP_US_MAX:
        ahead = "ahead" if store > after else "behind"
        detail = f"store and host are {span_text(off)} apart (the store is {ahead}); the store's counts"
        return DoctorFinding("clock", "note", detail, "synchronise both (NTP), so that logs can be compared")
    within = (off or after - before) / 1_000_000
    return DoctorFinding(
        "clock", "ok", f"the store's clock agrees with its records, and with this host's within {within:.3f} s"
    )
