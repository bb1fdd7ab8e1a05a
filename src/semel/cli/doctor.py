"""`semel doctor`: look at a store as a careful operator would, and name the remedy for everything found."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.doctor_sqlite import look_at_sqlite
from semel.cli.exits import Exit
from semel.cli.finding import Finding
from semel.cli.store import connect
from semel.cli.terminal import Output, span_text
from semel.drivers.sqlite import SqliteDriver
from semel.engine.sync import Engine
from semel.errors import ConfigurationError, StoreError
from semel.model import Effects, Find, Record, State

PAGE: Final = 1000
CLOCK_STEP_US_MAX: Final = 2_000_000
REAPED_WITHIN_US: Final = 5_000_000  # a reaper looks every half second: later means that none is running
EPOCH_FLOOR_US: Final = 1_704_067_200_000_000  # 2024-01-01: a host clock before this was never set
_MARKS: Final = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}
_STYLES: Final = {"warning": "yellow", "problem": "red"}


@dataclass(frozen=True, slots=True)
class _Standing:
    """How many records of one kind there are (at least), and the oldest of them."""

    count: int
    oldest: Record | None
    more: bool


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "doctor",
        "check the store and what is stuck in it; every finding comes with its remedy",
        "semel doctor\nsemel doctor --json --url sqlite:////var/lib/shop/semel.db",
        "Changes nothing. Exit code 1 where there is a warning or a problem, 3 where the store cannot be used.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Look, and print what was found."""
    engine = connect(options)
    try:
        findings, usable = examine(engine)
    finally:
        engine.close()
    bad = [finding for finding in findings if finding.level in ("warning", "problem")]
    code = Exit.STORE if not usable else Exit.REFUSED if bad else Exit.OK
    out.document({"healthy": not bad, "findings": [asdict(finding) for finding in findings]})
    for finding in findings:
        line = f"{_MARKS[finding.level]:<8} {finding.check:<12} {finding.detail}"
        out.say_styled(_STYLES[finding.level], line) if finding.level in _STYLES else out.say(line)
        if finding.remedy:
            out.say(f"{'':<21} → {finding.remedy}")
    out.say("", f"{len(bad)} finding(s)" if bad else "healthy: nothing found")
    return code


def examine(engine: Engine) -> tuple[list[Finding], bool]:
    """Everything that was found, and whether the store can be used at all."""
    found: list[Finding] = []
    try:
        identity = engine.perform("identity", engine.store.identity)
        found.append(Finding("store", "ok", f"{engine.backend.name} answers"))
        engine.core.check_identity(identity)
    except StoreError as error:
        return [*found, _problem("store", error, "repair the store, then run: semel doctor")], False
    except ConfigurationError as error:
        return [*found, _problem("identity", error, None)], False
    assert identity is not None
    found.append(Finding("identity", "ok", f"{identity.store_id}, schema {identity.schema_version}"))
    try:
        if isinstance(engine.backend.driver, SqliteDriver):
            found += look_at_sqlite(engine, engine.backend.driver)
        found += _look_at_clock(engine)
        found += _look_at_records(engine)
    except StoreError as error:
        return [*found, _problem("store", error, "repair the store, then run: semel doctor")], False
    return found, True


def _problem(check: str, error: Exception, remedy: str | None) -> Finding:
    # Most messages carry their remedy already.
    return Finding(check, "problem", str(error), None if remedy is None or "run:" in str(error) else remedy)


def _look_at_clock(engine: Engine) -> Iterator[Finding]:
    page = engine.perform("find", lambda: engine.store.find(Find(limit=1)))
    host = time.time_ns() // 1000
    ahead = max((record.created_at for record in page.records), default=0) - page.now
    if host < EPOCH_FLOOR_US:
        yield Finding(
            "clock", "problem", "this host's clock was never set", "synchronise it (NTP); leases depend on it"
        )
    elif abs(host - page.now) > CLOCK_STEP_US_MAX:
        yield Finding(
            "clock", "note", f"store and host are {span_text(abs(host - page.now))} apart; the store's counts"
        )
    elif ahead > CLOCK_STEP_US_MAX:
        yield Finding(
            "clock",
            "warning",
            f"the newest record is {span_text(ahead)} in the future: the store's clock was set back",
            "synchronise the clock by slewing it; leases lapse later by as much until it has caught up",
        )
    else:
        yield Finding("clock", "ok", "the store's clock agrees with its records")


def _look_at_records(engine: Engine) -> Iterator[Finding]:
    counts = engine.perform("counts", engine.store.counts)
    names = {int(state): state.name.lower() for state in State}
    listed = ", ".join(f"{count} {names.get(state, f'damaged ({state})')}" for state, count in sorted(counts.items()))
    damaged = [state for state in counts if state not in names]
    yield Finding(
        "records",
        "problem" if damaged else "ok",
        listed or "none yet",
        "restore the damaged records from a backup; their retries are refused meanwhile" if damaged else None,
    )
    now, unknown = _standing(engine, Find(states=(State.UNKNOWN,), limit=PAGE))
    yield _about(
        unknown,
        now,
        "unknown",
        "UNKNOWN",
        "find out what happened, then settle each: semel list --state unknown; semel settle --help",
    )
    now, lapsed = _standing(engine, Find(states=(State.PROCESSING,), lapsed=True, limit=PAGE))
    yield _about_lapsed(lapsed, now)


def _standing(engine: Engine, query: Find) -> tuple[int, _Standing]:
    page = engine.perform("find", lambda: engine.store.find(query))
    oldest = min(page.records, key=lambda record: record.created_at, default=None)
    return page.now, _Standing(len(page.records), oldest, page.next_before is not None)


def _about(kind: _Standing, now: int, check: str, name: str, remedy: str) -> Finding:
    if kind.oldest is None:
        return Finding(check, "ok", "none")
    count = f"{'more than ' if kind.more else ''}{kind.count}"
    return Finding(
        check, "warning", f"{count} {name}, the oldest for {span_text(now - kind.oldest.lease_until)}", remedy
    )


def _about_lapsed(lapsed: _Standing, now: int) -> Finding:
    oldest = lapsed.oldest
    if oldest is None:
        return Finding("lapsed", "ok", "none")
    over = now - oldest.lease_until
    detail = f"{lapsed.count} open with a lapsed lease, the oldest for {span_text(over)}"
    if oldest.effects != Effects.IDEMPOTENT and over > REAPED_WITHIN_US:
        remedy = "start one: semel serve, semel.install(app), or semel.worker.reaper.Reaper in your own process"
        return Finding("lapsed", "warning", f"{detail}; no reaper is running", remedy)
    return Finding("lapsed", "note", detail)
