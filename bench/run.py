"""One run: the counted pass, then the timed rounds, interleaved; and how far it is, on stderr."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.arguments import Options
from bench.inprocess import middleware_cost, sqlite_limit
from bench.load import Plan
from bench.processes import BenchError, Server, counts, load, serving
from bench.results import PerRequest, Results
from bench.subjects import BARE, SUBJECTS, Mode, Subject

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


def measure(options: Options, folder: Path) -> Results:
    """Measure what the options ask for; database files are made below ``folder``.

    Raises BenchError: an answer was wrong, or a process did not do what it must.
    """
    chosen = [subject for subject in SUBJECTS if subject.name in options.only]
    if chosen and BARE not in chosen:
        chosen.insert(0, BARE)
    protected = [subject for subject in chosen if subject is not BARE]
    results = Results({(subject, number): [] for number in options.connections for subject in chosen})
    each = len(chosen) * len(options.connections) + options.middleware + options.limit
    progress = Progress(len(protected) * len(options.connections) + options.rounds * each)
    _count(results, protected, options, folder, progress)
    for number in range(options.rounds):
        if chosen:
            _round(results, chosen, options, folder, number, progress)
        if options.middleware:
            progress.begin(f"round {number + 1}, the middleware by itself")
            results.middleware.append(middleware_cost())
        if options.limit:
            progress.begin(f"round {number + 1}, SQLite by itself")
            path = folder / f"limit-{number}.db"
            results.limits.append(sqlite_limit(str(path), options.seconds * LIMIT_SHARE))
    return results


def _round(
    results: Results, chosen: list[Subject], options: Options, folder: Path, number: int, progress: Progress
) -> None:
    """Every cell once, on new servers and new stores; what is compared runs side by side in time."""
    warmup = min(options.seconds * WARMUP_SHARE, WARMUP_SECONDS_MAX)
    turn = number % len(chosen)  # each round begins with another subject
    with ExitStack() as stack:
        servers = _serve(stack, chosen, folder, f"round-{number}", counted=False)
        for connections in options.connections:
            for subject in (*chosen[turn:], *chosen[:turn]):
                progress.begin(f"round {number + 1}, {_cell(subject, connections)}")
                server = servers[subject.store]
                plan = Plan(
                    port=server.port,
                    server=server.pid,
                    connections=connections,
                    mode=subject.mode,
                    seed=new_seed(),
                    seconds=options.seconds,
                    warmup_seconds=warmup,
                )
                with blaming(_cell(subject, connections)):
                    results.reports[subject, connections].append(load(plan))


def _count(results: Results, protected: list[Subject], options: Options, folder: Path, progress: Progress) -> None:
    """Store calls and commits per request, on servers that are observed: no clock runs here."""
    with ExitStack() as stack:
        servers = _serve(stack, protected, folder, "counted", counted=True)
        for connections in options.connections:
            for subject in protected:
                progress.begin(f"counting {_cell(subject, connections)}")
                with blaming(_cell(subject, connections)):
                    results.counted[subject, connections] = count(servers[subject.store], subject.mode, connections)


def count(server: Server, mode: Mode, connections: int) -> PerRequest:
    """What one request of this mode costs the store of a counted server."""
    seed = new_seed()

    def sent(mode: Mode) -> int:
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
        sent(Mode.FRESH)  # its first keys are the replay's
    before = counts(server)
    requests = sent(mode)
    after = counts(server)
    commits = None if before.commits is None or after.commits is None else after.commits - before.commits
    return PerRequest(
        (after.store_calls - before.store_calls) / requests, None if commits is None else commits / requests
    )


def _serve(
    stack: ExitStack, subjects: list[Subject], folder: Path, name: str, *, counted: bool
) -> dict[str | None, Server]:
    urls = {None: None, "memory": "memory://", "sqlite": f"sqlite:///{folder / name}.db"}
    stores = dict.fromkeys(subject.store for subject in subjects)
    return {store: stack.enter_context(serving(urls[store], counted=counted)) for store in stores}


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
    """A seed whose keys nobody has sent yet."""
    return random.getrandbits(32)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
