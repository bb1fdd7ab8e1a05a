"""One run: the counted pass, then the timed rounds, interleaved; and how far it is, on stderr."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.arguments import Options
from bench.inprocess import middleware_cost, sqlite_limit
from bench.load import REPLAYED_KEYS, Plan, Report
from bench.probes import measure_probe
from bench.processes import BenchError, Server, counts, load, payments_made, serving
from bench.results import PerRequest, Results
from bench.servers import Started
from bench.setup import Setup
from bench.subjects import Mode, Probe, Subject

WARMUP_SHARE: Final = 0.2  # of a measurement's length, in addition to it
WARMUP_SECONDS_MAX: Final = 0.4
COUNTED_REQUESTS_MIN: Final = 300
COUNTED_PER_CONNECTION: Final = 20
COUNTED_SECONDS_MAX: Final = 30.0
LIMIT_SHARE: Final = 0.5  # a plain loop needs less time to be known than a server


class Progress:
    """Which cell is being measured, and how long the rest will take if it goes on like this."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._done = 0
        self._started = time.monotonic()

    def begin(self, what: str) -> None:
        """Say what comes next."""
        spent = time.monotonic() - self._started
        left = f", {_minutes(spent / self._done * (self._cells - self._done))} left" if self._done else ""
        self._done += 1
        print(f"bench: {self._done} of {self._cells}{left}: {what}", file=sys.stderr, flush=True)


def measure(
    options: Options, chosen: Sequence[Subject], probes: Sequence[Probe], folder: Path, started: Started
) -> Results:
    """Measure the chosen subjects and probes; database files are made below ``folder``.

    Parameters: ``chosen`` with the bare applications they are compared with; ``started`` the servers of the run.
    Raises BenchError: an answer was wrong, or a process did not do what it must. Where that is a peer's, its cell says
    so and the run continues.
    """
    ours = [subject for subject in chosen if subject.store is not None and not subject.peer]
    results = Results({(subject, number): [] for number in options.connections for subject in chosen})
    each = (len(chosen) + len(probes)) * len(options.connections) + options.middleware + options.limit
    progress = Progress(len(ours) * len(options.connections) + options.rounds * each)
    _count(results, ours, options, Stores(folder, "counted", started.urls), progress)
    for number in range(options.rounds):
        stores = Stores(folder, f"round-{number}", started.urls)
        _round(results, (chosen, probes), options, stores, started, number, progress)
        if options.middleware:
            progress.begin(f"round {number + 1}, the middleware by itself")
            results.middleware.append(middleware_cost())
        if options.limit:
            progress.begin(f"round {number + 1}, SQLite by itself")
            path = folder / f"limit-{number}.db"
            results.limits.append(sqlite_limit(str(path), options.seconds * LIMIT_SHARE))
    return results


@dataclass(frozen=True, slots=True)
class Stores:
    """The URLs of one round's stores: each server has its own file."""

    folder: Path
    name: str
    urls: Mapping[str, str]

    def setup(self, subject: Subject, *, counted: bool) -> Setup:
        """What a subject's server serves."""
        url = subject.store
        if url is not None and "://" not in url:
            file = self.folder / f"{self.name}-{subject.module}.db"
            url = {"memory": "memory://", "sqlite": f"sqlite:///{file}", **self.urls}[url]
        return Setup(module=subject.module, store=url, counted=counted)


def _round(
    results: Results,
    cells: tuple[Sequence[Subject], Sequence[Probe]],
    options: Options,
    stores: Stores,
    started: Started,
    number: int,
    progress: Progress,
) -> None:
    """Every cell once, on new servers and new stores; what is compared runs side by side in time."""
    chosen, probes = cells
    turn = number % max(len(chosen), 1)  # each round begins with another subject
    with ExitStack() as stack:
        servers = _serve(stack, list(chosen), stores, counted=False)
        for connections in options.connections:
            for subject in (*chosen[turn:], *chosen[:turn]):
                cell = (subject, connections)
                progress.begin(f"round {number + 1}, {_cell(*cell)}")
                if cell in results.failed:
                    continue
                try:
                    with blaming(_cell(*cell)):
                        results.reports[cell].append(_measure(servers[subject.server], subject, connections, options))
                except BenchError as error:
                    if not subject.peer:
                        raise
                    results.failed[cell] = f"not measured: {error.__cause__ or error}"
            for probe in probes:
                progress.begin(f"round {number + 1}, {probe.name} in {connections}")
                found = measure_probe(probe, started, connections, options.seconds)
                if found is not None:
                    results.probed.setdefault((probe, connections), []).append(found)


def _measure(server: Server, subject: Subject, connections: int, options: Options) -> Report:
    """One cell once. What a peer's handler ran is counted by the numbers that it gives out."""
    plan = Plan(
        port=server.port,
        server=server.pid,
        connections=connections,
        mode=subject.mode,
        seed=new_seed(),
        seconds=options.seconds,
        warmup_seconds=min(options.seconds * WARMUP_SHARE, WARMUP_SECONDS_MAX),
        marked=not subject.peer,
    )
    if not subject.peer:
        return load(plan)
    before = payments_made(server, new_seed())
    report = load(plan)
    runs = payments_made(server, new_seed()) - before - 1
    if subject.mode is Mode.REPLAY and runs > REPLAYED_KEYS:
        raise BenchError(f"its handler ran {runs} times for {REPLAYED_KEYS} keys")
    if subject.mode is Mode.FRESH and runs < report.requests:
        raise BenchError(f"its handler ran {runs} times for {report.requests} keys")
    return report


def _count(results: Results, ours: list[Subject], options: Options, stores: Stores, progress: Progress) -> None:
    """Store calls and commits per request, on servers that are observed: no clock runs here."""
    with ExitStack() as stack:
        servers = _serve(stack, ours, stores, counted=True)
        for connections in options.connections:
            for subject in ours:
                progress.begin(f"counting {_cell(subject, connections)}")
                with blaming(_cell(subject, connections)):
                    results.counted[subject, connections] = count(servers[subject.server], subject.mode, connections)


def count(server: Server, mode: Mode, connections: int) -> PerRequest:
    """Count what one request of this mode costs the store of a counted server."""
    seed = new_seed()

    def send_requests(mode: Mode) -> int:
        plan = Plan(
            port=server.port,
            server=server.pid,
            connections=connections,
            mode=mode,
            seed=seed,
            seconds=COUNTED_SECONDS_MAX,
            requests_max=max(COUNTED_REQUESTS_MIN, COUNTED_PER_CONNECTION * connections),
            primes=False,
        )
        return load(plan).requests

    if mode is Mode.REPLAY:
        send_requests(Mode.FRESH)  # its first keys are the replay's
    before = counts(server)
    requests = send_requests(mode)
    after = counts(server)
    commits = None if before.commits is None or after.commits is None else after.commits - before.commits
    return PerRequest(
        (after.store_calls - before.store_calls) / requests, None if commits is None else commits / requests
    )


def _serve(
    stack: ExitStack, subjects: list[Subject], stores: Stores, *, counted: bool
) -> dict[tuple[str, str | None], Server]:
    first = {subject.server: subject for subject in reversed(subjects)}
    served = {}
    for server, subject in first.items():
        # What a peer says while it starts and ends is not the bench's to tell.
        log = stores.folder / f"{subject.module}.log" if subject.peer else None
        setup = stores.setup(subject, counted=counted)
        served[server] = stack.enter_context(serving(setup, python=subject.python, log=log))
    return served


@contextmanager
def blaming(cell: str) -> Iterator[None]:
    """Name the cell in which the bench failed."""
    try:
        yield
    except BenchError as error:
        raise BenchError(f"{cell}: {error}") from error


def _cell(subject: Subject, connections: int) -> str:
    return f"{subject.name} at {connections} connection{'s' if connections > 1 else ''}"


def new_seed() -> int:
    """A seed whose keys were not sent yet."""
    return random.getrandbits(32)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
