"""From options to exit code: 0 measured, 1 a store was wrong or not to be had, 130 interrupted."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from bench import machine
from bench.growth import table
from bench.growth.arguments import Options, parse
from bench.growth.commands import WrongAnswer
from bench.growth.places import PlaceError, place
from bench.growth.run import Results, Site, load, measure
from semel.errors import SemelError


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, measure and print; progress goes to stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    started, busy = time.monotonic(), machine.load_average()
    results = Results()
    try:
        sites = [Site(records, place(options.url, records)) for records in options.sizes]
        try:
            about = _load_missing(sites, results)
            if not options.load:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(measure(sites, options.rounds, options.seconds, options.purge, results))
        finally:
            if not (options.load or options.keep):
                for site in sites:
                    results.drop_seconds[site.records] = site.place.drop()
    except (PlaceError, WrongAnswer, SemelError, OSError, sqlite3.Error, ExceptionGroup) as error:
        print(f"growth: {_first(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("growth: interrupted; nothing was kept", file=sys.stderr)
        return 130
    about = {**machine.describe(_folder(options.url)), **about}
    about["load of the machine"] = f"{busy} at the start, {machine.load_average()} at the end"
    about["command"] = machine.command_line("bench.growth", given)
    about["took"] = f"{time.monotonic() - started:.0f} s"
    _print(options, results, about)
    return 0


def _print(options: Options, results: Results, about: dict[str, str]) -> None:
    if options.json:
        print(table.as_json(results, about))
    else:
        print(table.as_text(results, about))


def _load_missing(sites: Sequence[Site], results: Results) -> dict[str, str]:
    """Load the records that are missing; return the line that describes them."""
    found = [site for site in sites if site.place.exists()]
    for site in found:
        rows = site.place.rows()
        if rows < site.records:
            raise PlaceError(
                f"there is a store at {machine.command_line('growth', [site.place.url]).split()[-1]} with {rows:,} "
                f"records instead of {site.records:,}: it was purged, or its load did not end. Remove it"
            )
    for site in sites:
        if site not in found:
            load(site, results)
    loaded = [f"{records:,} in {seconds:.0f} s" for records, seconds in results.load_seconds.items() if records]
    about = {"loaded": ", ".join(loaded)} if loaded else {}
    if found:
        about["found"] = f"already loaded: {', '.join(f'{site.records:,}' for site in found)}"
    return about


def _folder(url: str) -> Path:
    path = Path(urlsplit(url).path.removeprefix("/")) if url.startswith("sqlite:") else Path.cwd()
    return path.parent


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
