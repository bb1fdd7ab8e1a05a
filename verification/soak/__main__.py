"""``python -m verification.soak``: hours of kills, pauses and schedules, each operation recorded and judged."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.errors import SemelError
from semel.stores.backend import hide_password
from verification.soak import simulation
from verification.soak.ground import ground
from verification.soak.lanes import Soak
from verification.soak.plan import Plan
from verification.soak.summary import FILE, SoakError, Summary

OK, BROKEN, USAGE, TIME_UP, INTERRUPTED = 0, 1, 2, 3, 130

EPILOG: Final = """\
examples:
  python -m verification.soak                               the whole soak: some hours
  python -m verification.soak --hours 1 --folder soak       an hour of it; run it again to go on
  python -m verification.soak --url postgresql://soak@localhost/soak --simulations 0
  python -m verification.soak --kills 100 --operations 0 --pauses 10 --simulations 0

On a server each round has a schema (PostgreSQL), a database (MariaDB) or a prefix (Redis) of its own, soak_...; the
URL's user must be allowed to make it. It is dropped after a sound round. Use no server that others depend on.

The folder holds summary.json, the rounds that are running, and, after a violation, the evidence: the histories, the
store, the seed, the settings and the versions. Rounds that were judged and found sound are deleted.

exit codes:
  0    everything was reached, and nothing broken
  1    a promise was broken, or a round failed; the folder with the evidence is named
  2    an argument is wrong, or the folder belongs to another soak
  3    the time was up (or the disk full) before everything was reached; nothing broken so far
  130  interrupted; run it again with the same folder to go on"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; its exit code."""
    options = _parser().parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="semel-soak-"))
    if options.simulations and not simulation.there():
        _note(f"error: --simulations {options.simulations}: this semel has no {simulation.MODULE}; use --simulations 0")
        return USAGE
    plan = Plan(
        folder.resolve(),
        options.kills,
        options.operations,
        options.pauses,
        options.simulations,
        options.hours,
        options.lanes,
        options.seed,
        options.url,
    )
    try:
        ground(plan.url, plan.folder, plan.seed)
    except (SoakError, SemelError) as error:
        _note(f"error: {error}")
        return USAGE
    where = "SQLite files" if plan.url is None else hide_password(plan.url)
    _note(f"soak of {where} in {plan.folder}, {plan.lanes} lanes, seeds from {plan.seed}")
    try:
        soak = Soak(plan, _note)
        return _end(plan, soak.run())
    except SoakError as error:
        _note(f"error: {error}")
        return USAGE
    except KeyboardInterrupt:
        _note(f"interrupted; go on with --folder {plan.folder}")
        return INTERRUPTED


def _end(plan: Plan, summary: Summary) -> int:
    minutes = summary.seconds / 60
    _note(
        f"{summary.kills:,} effective kills (of {summary.kills_all:,}), {summary.pauses:,} pauses past the lease (of "
        f"{summary.pauses_all:,}), {summary.operations:,} operations on {summary.keys:,} keys judged (at most "
        f"{summary.operations_of_one_key_most} of one key), {summary.effects:,} effects, {summary.simulations:,} "
        f"schedules, in {minutes:.1f} min; {plan.folder / FILE}"
    )
    if summary.status == "violated":
        _note(f"VIOLATION: the evidence is in {summary.evidence}")
        if Path(summary.evidence or "").is_dir():
            _note(f"  look at it: python -m verification.history check {summary.evidence}")
        return BROKEN
    if summary.status == "time-up":
        _note("the time was up before everything was reached (or less than 500 MB of disk are free); nothing broken")
        return TIME_UP
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m verification.soak",
        description="Kill and stop real processes for hours, and judge every operation that they recorded.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default=None, help="a server to play on (default: SQLite files)")
    parser.add_argument("--kills", type=_count, default=10_000, help="effective SIGKILLs (default: %(default)s)")
    parser.add_argument("--operations", type=_count, default=1_000_000, help="judged operations (default: %(default)s)")
    parser.add_argument("--pauses", type=_count, default=500, help="effective SIGSTOPs past the lease (%(default)s)")
    parser.add_argument("--simulations", type=_count, default=1_000_000, help="simulated schedules (%(default)s)")
    parser.add_argument("--hours", type=_hours, default=None, help="stop after so long (default: until all is reached)")
    parser.add_argument("--lanes", type=_lanes, default=2 * (os.cpu_count() or 1), help="rounds at once (%(default)s)")
    parser.add_argument("--folder", type=Path, default=None, help="where it works, and goes on (default: a new one)")
    parser.add_argument("--seed", type=_count, default=0, help="the first round's seed (default: %(default)s)")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"it must be a whole number from 0; it is {text!r}")
    return int(text)


def _lanes(text: str) -> int:
    value = _count(text)
    if not 1 <= value <= 64:
        raise argparse.ArgumentTypeError(f"it must be a whole number from 1 to 64; it is {text!r}")
    return value


def _hours(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it must be a number of hours above 0; it is {text!r}")
    return value


def _note(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
