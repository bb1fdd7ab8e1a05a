"""The catalogue of checks, read from ``catalogue.toml`` beside this file, so that other languages can read it too."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

LEVELS: Final = ("must", "should", "best")
PROFILES: Final = ("draft-07", "stripe", "semel")
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``needs`` names what the case must have for it; ``after``
    the checks without which its result means nothing; ``sent``, ``means``, ``change`` are for its reader."""

    id: str
    title: str
    level: str
    clause: str
    sent: str
    means: str
    change: str
    profiles: tuple[str, ...] = PROFILES
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@functools.cache
def load_catalogue() -> tuple[Check, ...]:
    """Every check, in order.

    >>> len(load_catalogue()) >= 60
    True
    """
    data = tomllib.loads(resources.files(__package__).joinpath("catalogue.toml").read_text("utf-8"))
    if data["format"] != FORMAT:
        raise ValueError(f"catalogue.toml has format {data['format']}, not {FORMAT}")
    return tuple(_check(each) for each in data["check"])


def _check(entry: dict[str, Any]) -> Check:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Check(**values)
