"""The simulator's command line: its arguments, its progress, its report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import repeat
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from semel.errors import ConfigurationError
from verification.simulate.coverage import Counts, add, table
from verification.simulate.recording import read_recording, record
from verification.simulate.search import FORMAT, Violation, replay, search, seed_of
from verification.simulate.shape import Shape

CHUNK: Final = 500
STEPS: Final = Shape(steps=1.0)
TOLD_EVERY_SECONDS: Final = 1.0
_EXAMPLES: Final = """examples:
  python -m verification.simulate --seeds 10000              the first ten thousand schedules
  python -m verification.simulate --seeds 1000000 --start 5000000 --jobs 2 --json
  python -m verification.simulate --seed 1227                one schedule, told event by event
  python -m verification.simulate --steps --seeds 10000      handlers with steps
  python -m verification.simulate --seeds 10000 --record tests/simulate/seeds.json
  python -m verification.simulate --recorded tests/simulate/seeds.json

exit codes: 0 everything held, 1 an invariant was broken, 2 the command cannot be carried out
"""


class Ended(NamedTuple):
    """How a search ended."""

    schedules: int
    seconds: float
    violation: Violation | None
    covered: Counts


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m verification.simulate",
        description="Runs the real engine through simulated schedules, and tells the first that breaks an invariant.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = made.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=_count, default=10_000, metavar="N", help="how many schedules (10000)")
    what.add_argument("--seed", type=_seed, metavar="S", help="run this one seed and print all that happens in it")
    what.add_argument("--recorded", type=Path, metavar="FILE", help="run the seeds of a recording")
    made.add_argument("--start", type=_seed, default=0, metavar="S", help="the first seed (0)")
    made.add_argument("--jobs", type=_count, default=1, metavar="N", help="how many processes (1)")
    made.add_argument("--record", type=Path, metavar="FILE", help="add a seed that breaks something to this recording")
    made.add_argument("--steps", action="store_true", help="schedules whose handlers have steps: seeds of their own")
    made.add_argument("--coverage", action="store_true", help="print which (state × event) was reached, and how often")
    made.add_argument("--json", action="store_true", help="print the result as one JSON document")
    made.add_argument("--quiet", action="store_true", help="no progress")
    return made


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; it is {text!r}")
    return value


def _seed(text: str) -> int:
    try:
        return seed_of(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Run the command; the exit code."""
    to = out if out is not None else sys.stdout
    given = parser().parse_args(arguments)
    shape = STEPS if given.steps else Shape()
    try:
        if given.seed is not None:
            return _tell_one(given.seed, shape, to, as_json=given.json)
        if given.recorded is not None:
            seeds: Sequence[int] = [one.seed for one in read_recording(given.recorded)]
        else:
            seeds = range(given.start, given.start + given.seeds)
        ended = _search(seeds, shape, given.jobs, quiet=given.quiet or given.json)
        if ended.violation is not None and given.record is not None:
            record(given.record, ended.violation.seed, f"{ended.violation.invariant}: {ended.violation.seen}")
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenProcessPool:
        print("error: a worker process was killed; use fewer --jobs", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was broken so far", file=sys.stderr)
        return 2
    to.write(_as_json(ended) if given.json else _as_text(ended, coverage=given.coverage))
    return 0 if ended.violation is None else 1


def _tell_one(seed: int, shape: Shape, to: TextIO, *, as_json: bool) -> int:
    run = replay(seed, shape=shape)
    broken = None if run.violated is None else f"{run.violated.invariant}: {run.violated.seen}"
    if as_json:
        to.write(json.dumps({"format": FORMAT, "seed": seed, "broken": broken, "trace": run.trace}, indent=2) + "\n")
    else:
        to.write("\n".join((*run.trace, "", f"BROKEN {broken}" if broken else "everything held", "")))
    return 0 if run.violated is None else 1


# --- many ---------------------------------------------------------------------------------------


def _search(seeds: Sequence[int], shape: Shape, jobs: int, *, quiet: bool) -> Ended:
    began = time.monotonic()
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    covered: Counts = {}
    done = 0
    told = began
    for size, violation, counts in _in_order(chunks, shape, jobs):
        done += size
        add(covered, counts)
        now = time.monotonic()
        if not quiet and (now - told >= TOLD_EVERY_SECONDS or done == len(seeds)):
            told = now
            _progress(done, len(seeds), now - began)
        if violation is not None:
            return Ended(done, now - began, violation, covered)
    return Ended(done, time.monotonic() - began, None, covered)


def _chunk(seeds: Sequence[int], shape: Shape) -> tuple[int, Violation | None, Counts]:
    counts: Counts = {}
    ran = [0]

    def count(number: int) -> None:
        ran[0] = number

    violation = search(seeds, shape=shape, covered=counts, progress=count)
    return ran[0] + (violation is not None), violation, counts


def _in_order(chunks: list[Sequence[int]], shape: Shape, jobs: int) -> Iterator[tuple[int, Violation | None, Counts]]:
    """The chunks' results as they come; after the first violation, no new chunk is begun."""
    if jobs == 1:
        yield from map(_chunk, chunks, repeat(shape))
        return
    with ProcessPoolExecutor(jobs) as pool:
        coming = iter(chunks)
        running: set[Future[tuple[int, Violation | None, Counts]]] = set()
        try:
            while True:
                for chunk in coming:
                    running.add(pool.submit(_chunk, chunk, shape))
                    if len(running) >= 2 * jobs:
                        break
                if not running:
                    return
                done, running = wait(running, return_when="FIRST_COMPLETED")
                yield from (one.result() for one in done)
        finally:
            for one in running:
                one.cancel()


def _progress(done: int, of: int, seconds: float) -> None:
    pace = done / seconds if seconds > 0 else 0.0
    left = (of - done) / pace if pace else 0.0
    line = f"\r{done:>9,} of {of:,} schedules  {pace:6.0f} a second  {_clock(left)} left "
    sys.stderr.write(line + ("\n" if done == of else ""))
    sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


# --- the report ---------------------------------------------------------------------------------


def _as_text(ended: Ended, *, coverage: bool) -> str:
    pace = ended.schedules / ended.seconds if ended.seconds else 0.0
    lines = [f"{ended.schedules} schedules in {ended.seconds:.1f} s ({pace:.0f} a second)"]
    if coverage:
        lines += ["", table(ended.covered)]
    lines += ["", "everything held" if ended.violation is None else ended.violation.report(), ""]
    return "\n".join(lines)


def _as_json(ended: Ended) -> str:
    broken = ended.violation
    return (
        json.dumps(
            {
                "format": FORMAT,
                "schedules": ended.schedules,
                "seconds": round(ended.seconds, 3),
                "broken": None
                if broken is None
                else {"seed": broken.seed, "invariant": broken.invariant, "seen": broken.seen},
                "coverage": {f"{state} × {event}": count for (state, event), count in sorted(ended.covered.items())},
            },
            ensure_ascii=False,
            indent=2,
        )
        + "\n"
    )
