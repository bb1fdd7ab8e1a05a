"""The checks of `semel doctor` for settings: their sources, and variables that no process reads."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from semel.cli.open_store import hide_password, source_of_url, url_of
from semel.core.contract import DoctorFinding
from semel.reference.settings import Settings

_PREFIX: Final = "SEMEL_"
VARIABLES: Final = tuple(sorted(set(re.findall(r"SEMEL_[A-Z_]+", Settings.__doc__ or ""))))


def look_at_settings(
    options: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> Iterator[DoctorFinding]:
    """Yield findings on the URL, the id secret and the environment's variables."""
    url = f"{hide_password(url_of(options))} (by {source_of_url(options)})"
    yield DoctorFinding("settings", "ok", url)
    for name in sorted(environment):
        meant = _suggest(name)
        if meant is not None:
            detail = f"nothing reads the variable {name}; did you mean {meant}?"
            yield DoctorFinding("settings", "warning", detail, "correct or unset it")
    yield from _look_at_secret(environment.get("SEMEL_ID_SECRET_FILE"))
    keys = environment.get("SEMEL_SEAL_KEYS_FILE")
    if keys and _is_shared(keys):
        yield DoctorFinding(
            "sealing-keys", "warning", "users other than its owner can read their file", f"chmod 600 {keys}"
        )


def _suggest(name: str) -> str | None:
    """Return the variable that a name was probably meant to be; None where it is one, or resembles none.

    >>> _suggest("SEMEL_ULR"), _suggest("SEMEL_URL"), _suggest("SEMEL_TEST_OWNER")
    ('SEMEL_URL', None, None)
    """
    if not name.startswith(_PREFIX) or name in VARIABLES:
        return None
    # Without the prefix: as it is common to all, it would make any two names resemble each other.
    known = [variable.removeprefix(_PREFIX) for variable in VARIABLES]
    near = difflib.get_close_matches(name.removeprefix(_PREFIX), known, n=1)
    return f"{_PREFIX}{near[0]}" if near else None


def _is_shared(path: str) -> bool:
    return bool(Path(path).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _look_at_secret(path: str | None) -> Iterator[DoctorFinding]:
    if not path:
        yield DoctorFinding("id-secret", "ok", "none: anyone who can read the store can test guesses of weak keys")
        return
    if _is_shared(path):
        yield DoctorFinding("id-secret", "note", "users other than its owner can read its file", f"chmod 600 {path}")
    else:
        yield DoctorFinding("id-secret", "ok", "from its file, which only its owner can read")
