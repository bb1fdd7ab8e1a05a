"""The options of the growth measurements."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

RECORDS_MAX: Final = 1_000_000_000

_EXAMPLES: Final = """\
The stores are new ones of the run's own: files beside the one that is named (growth-0.db, growth-1000000.db, ...), or
schemas of the database (semel_growth_0, ...). They are removed at the end. Ten million records take about 8 GB and, on
a busy machine, half an hour to load.

examples:
  python -m bench.growth --url sqlite:////var/tmp/growth.db                     10 million beside 1 million and none
  python -m bench.growth --url postgresql+asyncpg://postgres@127.0.0.1/bench    the same on a server of yours
  python -m bench.growth --url sqlite:///growth.db --records 20000 --compare 2000 --seconds 0.5   in seconds
  python -m bench.growth --url sqlite:///growth.db --load                       load and keep, measure later: the next
                                                                                run finds the stores and says so
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and where."""

    url: str
    records: int
    compare: int
    rounds: int
    seconds: float
    purge: bool
    load: bool
    keep: bool
    json: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Records in each store, ascending."""
        return tuple(sorted({0, self.compare, self.records}))


def parse(arguments: Sequence[str]) -> Options:
    """The options; exits with the remedy where one is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth",
        description="Measures what becomes of a store when it grows: commands, replays and the purge beside many "
        "records, in rounds that alternate with a smaller and an empty store.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--url", required=True, help="sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    parser.add_argument("--records", type=_number(1, RECORDS_MAX), default=10_000_000, help="default: 10,000,000")
    parser.add_argument(
        "--compare", type=_number(0, RECORDS_MAX), default=1_000_000, help="with so many (default: 1,000,000)"
    )
    parser.add_argument("--rounds", type=_number(1, 100), default=5, help="of every measurement (default: 5)")
    parser.add_argument("--seconds", type=_seconds, default=2.0, help="length of one measurement (default: 2)")
    parser.add_argument("--no-purge", dest="purge", action="store_false", help="leave the purge out")
    parser.add_argument("--load", action="store_true", help="load, keep the stores and measure nothing")
    parser.add_argument("--keep", action="store_true", help="keep the stores; to be measured again, with --no-purge")
    parser.add_argument("--json", action="store_true", help="print one JSON document with every sample")
    options = Options(**vars(parser.parse_args(arguments)))
    if options.compare >= options.records:
        parser.error(f"argument --compare: give fewer than --records ({options.records:,})")
    return options


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text.replace("_", "")) if text.replace("_", "").isdecimal() else least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"give a whole number from {least:,} to {most:,}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 600:
        raise argparse.ArgumentTypeError("give 0.05 to 600 seconds")
    return value
