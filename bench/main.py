"""The bench from options to exit code: 0 measured, 1 an answer or a process was wrong, 130 interrupted."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import machine, table
from bench.arguments import Options, parse
from bench.peers.environment import Installed, installed
from bench.peers.registry import PEERS
from bench.processes import BenchError
from bench.run import measure
from bench.stores import REMEDY, StoreServerError, redis_program, redis_server, redis_version
from bench.subjects import BARE_FASTAPI, PEER_NAMES, SUBJECTS, Subject, of_peers, of_url, with_bare


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; progress goes to stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    started, busy = time.monotonic(), machine.load_average()
    found = installed()
    chosen, left_out = choose(options, found)
    for words in left_out:
        print(f"bench: left out: {words}", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder, ExitStack() as stack:
            place = Path(folder)
            needed = any(subject.store == "redis" for subject in chosen)
            urls = {"redis": stack.enter_context(redis_server(place))} if needed else {}
            results = measure(options, chosen, place, urls)
            about = machine.describe(place) | others(chosen, found)
    except (BenchError, StoreServerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped, nothing was kept", file=sys.stderr)
        return 130
    if left_out:
        about["left out"] = "; ".join(left_out)
    about["load of the machine"] = f"{busy} at the start, {machine.load_average()} at the end"
    about["command"] = machine.command_line("bench", given)
    about["took"] = f"{time.monotonic() - started:.0f} s"
    print(table.as_json(results, about) if options.json else table.as_text(results, about))
    return 0


def choose(options: Options, found: Installed) -> tuple[list[Subject], list[str]]:
    """The subjects that are asked for and can be measured; and words on those that cannot."""
    by_url = [subject for url in options.url for subject in of_url(url)]
    known = [*SUBJECTS, BARE_FASTAPI, *by_url, *of_peers(found)]
    asked = [subject for subject in known if options.includes(subject.name)]
    words = []
    missing = found.left_out() if any(options.includes(name) for name in PEER_NAMES) else None
    if missing is not None:
        words.append(missing)
    if redis_program() is None and any(subject.store == "redis" for subject in asked):
        names = ", ".join(subject.name for subject in asked if subject.store == "redis")
        words.append(f"no Redis server here: {names} ({REMEDY})")
        asked = [subject for subject in asked if subject.store != "redis"]
    return with_bare(asked), words


def others(chosen: Sequence[Subject], found: Installed) -> dict[str, str]:
    """The versions of what is not Semel's."""
    peers = [peer for peer in PEERS if any(subject.module == peer.module for subject in chosen)]
    about = {"peers": found.named(peers)} if peers else {}
    program = redis_program()
    if program is not None and any(subject.store == "redis" for subject in chosen):
        about["redis"] = redis_version(program)
    return about
