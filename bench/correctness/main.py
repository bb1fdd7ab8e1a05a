"""The table from options to exit code: 0 filled, 1 a case could not be brought about, 130 interrupted."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import machine
from bench.correctness import table
from bench.correctness.arguments import Options, parse
from bench.correctness.cases import CASES
from bench.correctness.run import compare
from bench.correctness.subjects import Subject, subjects
from bench.peers.environment import Installed, find_installed
from bench.peers.registry import find_peer
from bench.processes import BenchError
from bench.stores import REMEDY, StoreServerError, redis_program, redis_server, redis_version


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; progress and what is left out go to stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    started, found = time.monotonic(), find_installed()
    chosen, left_out = choose(options, found)
    for words in left_out:
        print(f"bench: left out: {words}", file=sys.stderr)
    if not chosen:
        print("bench: nothing is left to compare; --help names the subjects", file=sys.stderr)
        return 1
    cases = [case for case in CASES if case.name in options.cases]
    try:
        with tempfile.TemporaryDirectory(prefix="semel-compare-") as folder, ExitStack() as stack:
            place = Path(folder)
            needed = any(subject.store == "redis" for subject in chosen)
            urls = {"redis": stack.enter_context(redis_server(place))} if needed else {}
            findings = compare(chosen, cases, place, urls)
            about = machine.describe(place) | versions(chosen, found)
    except (BenchError, StoreServerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped, nothing was kept", file=sys.stderr)
        return 130
    if left_out:
        about["left out"] = "; ".join(left_out)
    about["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    about["command"] = machine.command_line("bench.correctness", given)
    about["took"] = f"{time.monotonic() - started:.0f} s"
    print(table.as_json(findings, about) if options.json else table.as_text(findings, chosen, cases, about))
    return 0


def choose(options: Options, found: Installed) -> tuple[list[Subject], list[str]]:
    """The subjects that are asked for and can be compared; and words on those that are left out."""
    asked = [subject for subject in subjects(found, options.url) if options.includes(subject.name)]
    words = []
    missing = found.left_out()
    if missing is not None:
        words.append(missing)
    if redis_program() is None and any(subject.store == "redis" for subject in asked):
        names = ", ".join(subject.name for subject in asked if subject.store == "redis")
        words.append(f"no Redis server here: {names} ({REMEDY})")
        asked = [subject for subject in asked if subject.store != "redis"]
    return asked, words


def versions(chosen: Sequence[Subject], found: Installed) -> dict[str, str]:
    """Return the versions of the other software that a reader needs to know."""
    peers = [find_peer(name) for name in dict.fromkeys(subject.package for subject in chosen) if name in found.versions]
    about = {"peers": found.describe(peers)} if peers else {}
    program = redis_program()
    if program is not None and any(subject.store == "redis" for subject in chosen):
        about["redis"] = redis_version(program)
    return about
