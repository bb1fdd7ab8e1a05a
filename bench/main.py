"""The bench from options to exit code: 0 measured, 1 an answer or a process was wrong, 130 interrupted."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import machine, probes, table
from bench.arguments import Options, parse
from bench.peers.environment import Installed, find_installed
from bench.peers.registry import PEERS
from bench.processes import BenchError
from bench.run import measure
from bench.servers import SERVER_OF, Started, mariadb_program, missing, slow_flush, start_servers, version_of
from bench.stores import StoreServerError, redis_program, redis_version
from bench.subjects import BARE_FASTAPI, PEER_NAMES, PROBES, SUBJECTS, Probe, Subject, of_peers, of_url, with_bare


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; progress goes to stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    began, busy = time.monotonic(), machine.load_average()
    found = find_installed()
    chosen, beside, left_out = choose(options, found)
    for words in left_out:
        print(f"bench: left out: {words}", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder, ExitStack() as stack:
            place = Path(folder)
            settings = {"postgresql": slow_flush(options.flush_ms)}
            servers = stack.enter_context(start_servers(_servers(chosen, beside), place, settings))
            results = measure(options, chosen, beside, place, servers)
            about = machine.describe(place) | others(chosen, beside, found, servers)
    except (BenchError, StoreServerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped, nothing was kept", file=sys.stderr)
        return 130
    if options.flush_ms and "postgresql" in about:
        about["postgresql"] += f", each flush {options.flush_ms:g} ms longer"
    if left_out:
        about["left out"] = "; ".join(left_out)
    about["load of the machine"] = f"{busy} at the start, {machine.load_average()} at the end"
    about["command"] = machine.command_line("bench", given)
    about["took"] = f"{time.monotonic() - began:.0f} s"
    print(table.as_json(results, about) if options.json else table.as_text(results, about))
    return 0


def choose(options: Options, found: Installed) -> tuple[list[Subject], list[Probe], list[str]]:
    """The subjects and probes that are asked for and can be measured; and words on those that cannot."""
    by_url = [subject for url in options.url for subject in of_url(url)]
    known = [*SUBJECTS, BARE_FASTAPI, *by_url, *of_peers(found)]
    asked = [subject for subject in known if options.includes(subject.name)]
    beside = [probe for probe in PROBES if options.includes(probe.name)]
    words = []
    peers = found.left_out() if any(options.includes(name) for name in PEER_NAMES) else None
    if peers is not None:
        words.append(peers)
    for server in sorted(_servers(asked, beside)):
        why = missing(server)
        if why is not None:
            both: list[Subject | Probe] = [*asked, *beside]
            gone = [one for one in both if _is_on(one, server)]
            words.append(f"{', '.join(one.name for one in gone)}: {why}")
            asked = [subject for subject in asked if subject not in gone]
            beside = [probe for probe in beside if probe not in gone]
    for probe in list(beside):
        why = probes.missing(probe)
        if why is not None:
            words.append(f"{probe.name}: {why}")
            beside.remove(probe)
    return with_bare(asked), beside, words


def _servers(chosen: Sequence[Subject], beside: Sequence[Probe]) -> set[str]:
    """The servers that these are on."""
    both: list[Subject | Probe] = [*chosen, *beside]
    return {server for server in SERVER_OF.values() for one in both if _is_on(one, server)}


def _is_on(one: Subject | Probe, server: str) -> bool:
    return one.store is not None and SERVER_OF.get(one.store) == server


def others(chosen: Sequence[Subject], beside: Sequence[Probe], found: Installed, servers: Started) -> dict[str, str]:
    """The versions of what is not Semel's."""
    peers = [peer for peer in PEERS if any(subject.module == peer.module for subject in chosen)]
    about = {"peers": found.describe(peers)} if peers else {}
    on = _servers(chosen, beside)
    program = redis_program()
    if program is not None and "redis" in on:
        about["redis"] = redis_version(program)
    if servers.programs is not None:
        about["postgresql"] = f"{version_of(servers.programs / 'postgres')}, fsync and synchronous_commit on"
    if "mariadb" in on:
        about["mariadb"] = f"{version_of(mariadb_program())}, innodb-flush-log-at-trx-commit=1"
    return about
