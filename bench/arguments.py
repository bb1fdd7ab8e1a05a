"""The options of the bench."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.subjects import LIMIT, MIDDLEWARE, NAMES, of_url

CONNECTIONS: Final = (1, 32, 128)
CONNECTIONS_MAX: Final = 512
FLUSH_MS_MAX: Final = 100  # of PostgreSQL's commit_delay

_EXAMPLES: Final = f"""\
names for --only, also as patterns: {", ".join(NAMES)}
(every run through HTTP measures the bare application too: a ratio needs it; peers are measured where `make peers` has
installed them; PostgreSQL, MariaDB and Redis are started for the run, on free ports; what is not installed is named
and left out)

examples:
  python -m bench                                             everything that is installed, in ten minutes
  python -m bench --only sqlite-fresh,limit --connections 32  one cell, and the store's own limit
  python -m bench --only middleware                           the middleware by itself, in seconds
  python -m bench --rounds 5 --seconds 5 --json               longer, every sample, for a script
  python -m bench --only 'sqlite-*,*-sqlite-*'                Semel and its peers on SQLite
  python -m bench --only 'postgresql-*,asyncpg-*,pgbench'     PostgreSQL, beside pgbench on the same server
  python -m bench --only '*-atomic,*-by-hand' --flush-ms 1    one commit against three, on a disk that flushes in 1 ms
  python -m bench --only 'redis-*' --connections 32           Redis, beside redis-benchmark on the same server
  python -m bench --url 'postgresql://shop@db/shop' --only 'url-*'
                                                              Semel on a server of yours, and on nothing else
  make bench ARGS="--rounds 1"                                the same through make
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    seconds: float
    rounds: int
    connections: tuple[int, ...]
    only: tuple[str, ...]
    url: tuple[str, ...]
    flush_ms: float
    json: bool

    def includes(self, name: str) -> bool:
        """Whether something is asked for."""
        return any(fnmatchcase(name, pattern) for pattern in self.only)

    @property
    def middleware(self) -> bool:
        """Whether the middleware is measured alone."""
        return self.includes(MIDDLEWARE)

    @property
    def limit(self) -> bool:
        """Whether the store's own limit is measured."""
        return self.includes(LIMIT)


def parse(arguments: Sequence[str]) -> Options:
    """The options; exits with the remedy where one is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures what Semel costs: the same application bare and protected, on uvicorn, in interleaved "
        "rounds. Prints medians (min–max) and ratios to the bare application of the same round.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seconds", type=_seconds, default=0.5, help="length of one measurement (default: 0.5)")
    parser.add_argument("--rounds", type=_rounds, default=3, help="measurements of each cell (default: 3)")
    parser.add_argument(
        "--connections", type=_connections, default=CONNECTIONS, help="numbers of connections (default: 1,32,128)"
    )
    parser.add_argument("--only", default="*", metavar="NAMES", help="measure these, comma-separated")
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="measure Semel on this store as well, as url-…; may be repeated",
    )
    parser.add_argument(
        "--flush-ms",
        type=_flush_ms,
        default=0.0,
        metavar="MS",
        help="PostgreSQL waits this much longer at each flush of its log, as on a slower disk (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document with every sample")
    given = parser.parse_args(arguments)
    given.url = tuple(given.url)
    known = [*NAMES, *(subject.name for url in given.url for subject in of_url(url))]
    given.only = tuple(name.strip() for name in given.only.split(","))
    for name in given.only:
        if not any(fnmatchcase(one, name) for one in known):
            parser.error(f"argument --only: unknown name {name!r}; known are {', '.join(known)}")
    return Options(**vars(given))


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 600:
        raise argparse.ArgumentTypeError("give 0.05 to 600 seconds")
    return value


def _rounds(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError("give 1 to 100 rounds")
    return value


def _flush_ms(text: str) -> float:
    value = float(text)
    if not 0 <= value <= FLUSH_MS_MAX:
        raise argparse.ArgumentTypeError(f"give 0 to {FLUSH_MS_MAX} milliseconds")
    return value


def _connections(text: str) -> tuple[int, ...]:
    values = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if not all(1 <= value <= CONNECTIONS_MAX for value in values):
        raise argparse.ArgumentTypeError(f"give numbers from 1 to {CONNECTIONS_MAX}, comma-separated")
    return values
