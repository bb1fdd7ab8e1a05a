"""`make conform` from options to exit code: 0 measured and Semel passes, 1 Semel fails or a server did not start."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from bench import machine
from bench.conform import page
from bench.conform.agreement import PAIRS, Row, compare_cells
from bench.conform.run import examine
from bench.conform.subjects import Subject, node_version, subjects
from bench.correctness.cases import CASES
from bench.correctness.run import examine as compare
from bench.correctness.subjects import subjects as compared
from bench.peers.environment import find_installed
from bench.processes import BenchError
from semel.conform import CannotRun, Report
from tests.servers import mariadb, postgres, redis, running

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is there; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m bench.conform", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="such as 'semel-*'; may be repeated"
    )
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder for the page and the document")
    parser.add_argument("--no-compare", action="store_true", help="leave the comparison with `make compare` out")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)  # now, not when everything is measured
    started = time.monotonic()
    chosen, words = subjects()
    chosen = [each for each in chosen if not options.only or any(fnmatchcase(each.name, one) for one in options.only)]
    for text in words:
        print(f"conform: left out: {text}", file=sys.stderr)
    if not chosen:
        print("conform: nothing is left to measure; --only takes names such as semel-sqlite", file=sys.stderr)
        return 1
    servers = running.begin_run()
    try:
        with tempfile.TemporaryDirectory(prefix="semel-conform-") as folder:
            found, rows = measure(chosen, Path(folder), with_compare=not options.no_compare)
    except (BenchError, AssertionError) as error:
        print(f"conform: {error}", file=sys.stderr)
        return 1
    finally:
        running.end_run(servers)
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **machine.describe(Path.cwd()),
        "node": node_version() or "not here",
        "command": "make conform",
        "took": f"{time.monotonic() - started:.0f} s",
        **({"left out": "; ".join(words)} if words else {}),
    }
    if options.only:  # the others are as an earlier run has found them
        former, former_rows, former_about = page.read_json(options.out / "conformance-results.json")
        found = {**former, **found}
        about = (
            {**former_about, "measured again": f"{', '.join(each.name for each in chosen)}, {about['date']}"}
            if former_about
            else about
        )
        rows = [row for row in former_rows if row.subject not in {each.name for each in chosen}] + rows
    (options.out / "conformance-results.md").write_text(page.as_markdown(found, rows, about), "utf-8")
    (options.out / "conformance-results.json").write_text(page.as_json(found, rows, about), "utf-8")
    ours = [outcome for subject, outcome in found.values() if subject.package.startswith("semel")]
    return 0 if all(isinstance(outcome, Report) and outcome.ok for outcome in ours) else 1


def measure(
    chosen: Sequence[Subject], folder: Path, *, with_compare: bool
) -> tuple[dict[str, tuple[Subject, Report | CannotRun]], list[Row]]:
    """Every subject's report, and how it agrees with `make compare`. Raises BenchError."""
    found: dict[str, tuple[Subject, Report | CannotRun]] = {}
    rows: list[Row] = []
    peers = {each.name: each for each in compared(find_installed())}
    cases = [case for case in CASES if case.name in PAIRS]
    for number, subject in enumerate(chosen, start=1):
        print(f"conform: {number} of {len(chosen)}: {subject.name}", file=sys.stderr, flush=True)
        urls = _servers(subject.store)
        profile = "semel" if subject.package.startswith("semel") else "draft-07"
        place = folder / subject.name.replace("/", "-")
        report = examine(subject, profile, place, urls)
        found[subject.name] = (subject, report)
        print(f"    {report.summary() if isinstance(report, Report) else report}", file=sys.stderr, flush=True)
        peer = peers.get(subject.name) if with_compare else None
        if peer is not None and isinstance(report, Report):
            (place / "compared").mkdir()
            findings = asyncio.run(compare(peer, cases, place / "compared", urls))
            rows += compare_cells(subject.name, findings, report)
    return found, rows


def _servers(store: str) -> dict[str, str]:
    """The URL of a store's server, started for this run where it is needed."""
    if store == "redis":
        return {"redis": f"redis://127.0.0.1:{redis.valkey()}/0"}
    if store == "postgresql":
        return {"postgresql": postgres.postgres()}
    if store == "mariadb":
        server = mariadb.mariadb()
        with mariadb.connect(server.port) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {server.database}")
        return {"mariadb": mariadb.url(server)}
    return {}
