"""The bench from options to exit code: 0 measured, 1 an answer or a process was wrong, 130 interrupted."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import machine, table
from bench.arguments import parse
from bench.processes import BenchError
from bench.run import measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; progress goes to stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    started, busy = time.monotonic(), machine.load_average()
    try:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
            results = measure(options, Path(folder))
            about = machine.describe(Path(folder))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped, nothing was kept", file=sys.stderr)
        return 130
    about["load of the machine"] = f"{busy} at the start, {machine.load_average()} at the end"
    about["command"] = shlex.join(["python", "-m", "bench", *given])
    about["took"] = f"{time.monotonic() - started:.0f} s"
    print(table.as_json(results, about) if options.json else table.as_text(results, about))
    return 0
