"""What `semel doctor` checks of the settings: where they come from, and variables that nobody reads."""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from semel.cli.arguments import near
from semel.cli.finding import Finding
from semel.cli.store import shown_url, source_of_url, url_of
from semel.service.settings import Settings

VARIABLES: Final = tuple(sorted(set(re.findall(r"SEMEL_[A-Z_]+", Settings.__doc__ or ""))))


def look_at_settings(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The findings about the URL, the id secret and the variables of the environment."""
    url = f"{shown_url(url_of(options))} (by {source_of_url(options)})"
    yield Finding("settings", "ok", url)
    near_misses = {name: near(name, VARIABLES) for name in environment if name.startswith("SEMEL_")}
    for name, hint in sorted(near_misses.items()):
        if name not in VARIABLES and "did you mean" in hint:
            yield Finding("settings", "warning", f"nothing reads the variable {name}{hint}", "correct or unset it")
    yield from _look_at_secret(environment.get("SEMEL_ID_SECRET_FILE"))


def _look_at_secret(path: str | None) -> Iterator[Finding]:
    if not path:
        yield Finding("id-secret", "ok", "none: whoever reads the store can try out keys that are easily guessed")
        return
    mode = Path(path).stat().st_mode
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        yield Finding("id-secret", "note", "others than its owner may read its file", f"chmod 600 {path}")
    else:
        yield Finding("id-secret", "ok", "from its file, which only its owner may read")
