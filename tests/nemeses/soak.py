"""``make soak``: the soak on SQLite files, then on each server that can be started here, one after the other.

Arguments are those of ``python -m verification.soak`` and go to each of them; ``--folder`` gets a folder for each
store. ``--stores sqlite,redis`` (or ``--store redis``) names some of them: ``python -m tests.nemeses.soak --store redis
--kills 10000 --operations 0 --pauses 0 --nemeses 0``. Afterwards every line of the table of ``docs/nemeses.md`` is
played ``--nemeses`` times (1 by default), each time with another seed; of the stores that were named, if some were.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.nemeses.lines import LOSING, RISKY, SOUND, find_violation, play_line
from tests.servers import mariadb, postgres
from tests.servers import redis as valkey
from tests.servers.needed import is_here
from tests.servers.running import begin_run, end_run
from verification.soak.__main__ import BROKEN, INTERRUPTED, OK, USAGE

URLS: Final[Mapping[str, Callable[[], str] | None]] = {
    "sqlite": None,
    "postgresql": postgres.postgres,
    "asyncpg": lambda: postgres.postgres().replace("postgresql:", "postgresql+asyncpg:", 1),
    "redis": lambda: f"redis://127.0.0.1:{valkey.valkey()}",
    "mariadb": lambda: mariadb.url(mariadb.mariadb()),
}
_OF: Final = {"galera": "mariadb"}
WITHOUT_SCHEDULES: Final = ("--simulations", "0")  # they need no server: once is enough


def main(arguments: Sequence[str]) -> int:
    """Soak store after store; the first exit code that is not 0 ends it."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__, flush=True)
        return subprocess.run([sys.executable, "-m", "verification.soak", "--help"], check=False).returncode
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stores", "--store", default=",".join(URLS))
    parser.add_argument("--nemeses", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    ours, rest = parser.parse_known_args(arguments)
    stores = ours.stores.split(",")
    unknown = [store for store in stores if store not in URLS]
    if unknown:
        print(f"error: --stores: unknown store {unknown[0]!r}; known are {', '.join(URLS)}", file=sys.stderr)
        return USAGE
    if "mariadb" in stores and not is_here("mariadb"):
        print("mariadb is left out: it is not installed here; run: make servers", file=sys.stderr)
        stores.remove("mariadb")
    folder = (ours.folder or Path(tempfile.mkdtemp(prefix="semel-soak-"))).resolve()
    run = begin_run()
    try:
        for store in stores:
            code = _soak(store, folder / store, rest)
            if code != OK:
                return code
        return _play_nemeses(stores, folder, ours.nemeses)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        end_run(run)


def _play_nemeses(stores: Sequence[str], folder: Path, times: int) -> int:
    """Each line so often; the first that is not as the documents say ends it, and its history stays."""
    for seed in range(times):
        for line in (*SOUND, *RISKY, *LOSING):
            missing = [server for server in line.needs if not is_here(server)]
            if missing or not {line.store, _OF.get(line.store, line.store)} & set(stores):
                continue
            place = folder / f"nemesis-{seed}-{str(line).replace(' ', '-')}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            found = find_violation(line, play_line(place, line, seed))
            print(
                f"{line}, seed {seed}: {'as the documents say' if found is None else found}",
                file=sys.stderr,
                flush=True,
            )
            if found is not None:
                print(f"VIOLATION: the evidence is in {place}", file=sys.stderr)
                return BROKEN
            shutil.rmtree(place)
    return OK


def _soak(store: str, folder: Path, rest: Sequence[str]) -> int:
    """In a process of its own: a soak forks, and one that starts servers may have threads."""
    start = URLS[store]
    of_a_server = () if start is None else ("--url", start(), *WITHOUT_SCHEDULES)
    return subprocess.run(
        [sys.executable, "-m", "verification.soak", *rest, "--folder", str(folder), *of_a_server], check=False
    ).returncode


if __name__ == "__main__":
    os.environ.setdefault("SEMEL_TEST_OWNER", str(os.getpid()))
    sys.exit(main(sys.argv[1:]))
