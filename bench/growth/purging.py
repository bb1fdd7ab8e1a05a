"""``python -m bench.growth.purging URL``: the purge in its own process, for the seconds that stdin asks for.

Each line of stdin is a number of seconds; the answer is a line of JSON: what was done in them.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

from semel import Engine
from semel.retention.flow import PURGE_CHUNK, rest_seconds


def main(url: str) -> None:
    """Serve until stdin ends."""
    with Engine.connect(url) as engine:
        after: int | None = None
        for line in sys.stdin:
            began, ends = time.perf_counter(), time.perf_counter() + float(line)
            scanned = dropped = forgotten = 0
            over = False
            while not over and time.perf_counter() < ends:
                chunk = time.perf_counter()
                done = engine.perform("purge", partial(engine.store.purge, after, PURGE_CHUNK))
                time.sleep(rest_seconds(done, time.perf_counter() - chunk))
                scanned += done.scanned
                dropped += done.answers_dropped
                forgotten += done.forgotten
                after, over = done.next_after, done.next_after is None
            said = {"scanned": scanned, "dropped": dropped, "forgotten": forgotten, "over": over}
            print(json.dumps({**said, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
