"""Interruptions by the thousand: ``python -m tests.outside [--times 10000] [--stores sqlite,redis] [--kinds join]``.

Each store and kind gets half of them by asynchronous exceptions in a thread (as Dramatiq's limit), half by a signal in
the main thread (as Celery's). The first round that is not as it should be ends it, with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

from tests.outside.interrupting import By, Kind, interrupt
from tests.outside.stores import STORES
from tests.servers.needed import is_here
from tests.servers.running import begin_run, end_run

ROUND = 500  # interruptions on one engine


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10_000, help="interruptions of each store and kind")
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--kinds", default=",".join(get_args(Kind)))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    run = begin_run()
    try:
        for store in options.stores.split(","):
            for kind in options.kinds.split(","):
                if store == "redis" and kind != "external":
                    continue  # it has no transactions
                if store == "mariadb" and not is_here("mariadb"):
                    print("mariadb is left out: it is not installed here; run: make servers", file=sys.stderr)
                elif not _storm(store, kind, options.times, options.seed):
                    return 1
        return 0
    finally:
        end_run(run)


def _storm(store: str, kind: Kind, times: int, seed: int) -> bool:
    began, done, answered, unknown = time.monotonic(), 0, 0, 0
    while done < times:
        by: By = get_args(By)[seed % 2]
        with tempfile.TemporaryDirectory() as folder:
            round = interrupt(STORES[store](Path(folder)), kind, by, times=min(ROUND, times - done), seed=seed)
        done, seed = done + round.interruptions, seed + 1
        answered, unknown = answered + len(round.answered), unknown + len(round.unknown)
        if round.wrong:
            print(f"{store} {kind} by {by}, seed {seed - 1}: {round.wrong}", flush=True)
            return False
    seconds = time.monotonic() - began
    print(f"{store} {kind}: {done} interruptions, {answered} answered, {unknown} unknown, {seconds:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    os.environ.setdefault("SEMEL_TEST_OWNER", str(os.getpid()))
    sys.exit(main(sys.argv[1:]))
