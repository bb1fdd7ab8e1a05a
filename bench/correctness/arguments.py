"""The options of the correctness table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.correctness.cases import CASES, NAMES

_EXAMPLES: Final = f"""\
cases for --cases: {", ".join(NAMES)}

examples:
  python -m bench.correctness                                       everything that is installed
  python -m bench.correctness --cases killed,slow                   two rows
  python -m bench.correctness --only 'semel-*,idemkit-redis'        some columns
  python -m bench.correctness --url 'postgresql://shop@db/shop' --only 'semel-*'
                                                                    Semel on a server of yours as well
  python -m bench.correctness --json > cells.json                   every cell with its note, for a script
  make compare ARGS="--cases parallel"                              the same through make
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare."""

    only: tuple[str, ...]
    cases: tuple[str, ...]
    url: tuple[str, ...]
    json: bool

    def includes(self, name: str) -> bool:
        """Whether a subject is asked for."""
        return any(fnmatchcase(name, pattern) for pattern in self.only)


def parse(arguments: Sequence[str]) -> Options:
    """The options; exits with the remedy where one is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.correctness",
        description="Shows what becomes of a command's effect in hard cases, under Semel and under the peers that "
        "`make peers` installs: real servers, real kills, effects counted outside them. Takes some minutes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only", type=_patterns, default=("*",), metavar="NAMES", help="these subjects, such as semel-*,idemkit-redis"
    )
    parser.add_argument("--cases", type=_cases, default=NAMES, metavar="NAMES", help="these cases, comma-separated")
    parser.add_argument(
        "--url", action="append", default=[], metavar="URL", help="Semel on this store as well; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    return Options(given.only, given.cases, tuple(given.url), given.json)


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _cases(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"unknown case {name!r}; known are {', '.join(NAMES)}")
    return tuple(case.name for case in CASES if case.name in names)
