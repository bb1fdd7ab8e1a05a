"""How far a bulk is: ``python -m examples.cases.progress OPERATION``, also while it runs and when it was killed."""

from __future__ import annotations

import sys

from examples.cases import register
from examples.cases.approve import bulk_on
from semel import Engine
from semel.errors import SemelError


def main(words: list[str]) -> str | None:
    """What the command line asks for."""
    if len(words) != 1:
        return "usage: python -m examples.cases.progress OPERATION"
    try:
        with Engine.connect(register.URL) as engine:
            tally = bulk_on(engine).progress(words[0])
    except SemelError as error:
        return f"{type(error).__name__}: {error}"
    if tally is None:
        return f"there is no bulk {words[0]}"
    print(f"{tally.done} of {tally.total} done: {tally.succeeded} approved, {tally.failed} failed")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
