"""The fuzz targets by name: each a module with `one(data)`, which raises where an oracle is broken, and `TOKENS`.

An oracle says more than "does not crash": it compares with a second implementation, or with what must follow
from the answer. The same functions are driven by hypothesis in the test suite and by atheris for longer runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

NAMES: Final = (
    "keys",
    "canonical",
    "form",
    "multipart",
    "fingerprint",
    "prefer",
    "urls",
    "records",
    "exchange",
    "files",
)


@dataclass(frozen=True)
class Target:
    """One target: `one` judges an input, `tokens` are pieces that inputs are likely made of."""

    name: str
    one: Callable[[bytes], None]
    tokens: Sequence[bytes]


def target(name: str) -> Target:
    """The target of that name."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    return Target(name, module.one, module.TOKENS)
