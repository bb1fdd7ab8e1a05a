"""Ten thousand random schedules of losses, resets, half answers, delays, refusals and killed workers.

    python -m tests.client.soak [--schedules 10000] [--first-seed 0]

Each part has its own service; a failure names the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.client.chaos import play

PART = 500


def main() -> None:
    """Play them, and print what was met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    end = options.first_seed + options.schedules
    for first in range(options.first_seed, end, PART):
        seeds = range(first, min(first + PART, end))
        with tempfile.TemporaryDirectory() as folder:
            total += play(Path(folder), seeds, crashes=True)
        print(f"{seeds.stop - options.first_seed} schedules: {dict(total)}", flush=True)


if __name__ == "__main__":
    main()
