"""How far a bulk is: ``python -m examples.cases.progress KEY``, also while it runs and when it was killed."""

from __future__ import annotations

import sys

from examples.cases import register
from examples.cases.approve import CALLER, bulk_on
from semel import Engine
from semel.errors import SemelError


def main(words: list[str]) -> str | None:
    """Do what the command line asks for."""
    if len(words) not in (1, 2):
        return "usage: python -m examples.cases.progress KEY [CALLER]"
    try:
        with Engine.connect(register.URL) as engine:
            tally = bulk_on(engine).progress(key=words[0], caller=words[1] if words[1:] else CALLER)
    except SemelError as error:
        return f"{type(error).__name__}: {error}"
    if tally is None:
        return f"no list has the key {words[0]}"
    print(f"{tally.done} of {tally.total} done: {tally.succeeded} approved, {tally.failed} failed")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
