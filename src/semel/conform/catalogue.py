"""The catalogue of checks, read from ``catalogue.toml`` beside this file: other languages can read it too."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from semel.conform.case import REQUESTS, Case

LEVELS: Final = ("must", "should", "best")
PROFILES: Final = ("draft-07", "stripe", "semel")
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``needs`` names the required parts of the case; ``after`` the checks that must pass first, or its
    result means nothing; ``sent``, ``means`` and ``change`` explain it to the reader."""

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
    """Return every check, in order.

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


def missing(wanted: Check, case: Case) -> str:
    """Name the first part of the case that a check lacks; empty if it has all."""
    has = {
        **{name: name in case.requests for name in REQUESTS},
        "numbers": "number_a" in case.requests,
        "caller": bool(case.caller),
        "other_caller": case.other_caller is not None,
        "json": case.request.members is not None,
        "required": case.key_required,
        "optional": not case.key_required,
        "multipart": bool(case.multipart),
        "openapi": bool(case.openapi),
        "kill": "kill" in case.hooks,
        "store_off": "store_off" in case.hooks,
        "store_hang": "store_hang" in case.hooks,
        "clock": "clock" in case.hooks and case.expiry_seconds > 0,
        "lease": case.lease_seconds > 0,
    }
    texts = {
        "numbers": "the case has no [number_a] and [number_b]",
        "caller": "the case has no [callers.first]",
        "other_caller": "the case has no [callers.second]",
        "json": "the case's body is not a JSON object",
        "required": "key.required is false",
        "optional": "key.required is true",
        "kill": "the case has no hooks.kill and hooks.restart",
        "store_off": "the case has no hooks.store_off and hooks.store_on",
        "store_hang": "the case has no hooks.store_hang and hooks.store_on",
        "clock": "the case has no hooks.clock and hooks.expiry_seconds",
        "lease": "the case has no hooks.lease_seconds",
    }
    return next((texts.get(name, f"the case has no [{name}]") for name in wanted.needs if not has[name]), "")
