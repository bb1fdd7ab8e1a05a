"""What a soak has done so far: one JSON file, replaced whole, which a later run continues from."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import semel

VERSION: Final = 2
FILE: Final = "summary.json"


class SoakError(Exception):
    """A soak cannot go on. The message names the file or the argument, and the remedy."""


def versions(url: str | None = None) -> dict[str, str]:
    """Return the software, and the kind of server and the host that ``url`` names, to which the figures belong."""
    parts = urlsplit(url or "sqlite://")
    return {
        "store": f"{parts.scheme}://{parts.hostname or ''}",  # its port may be another each run
        "semel": semel.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": platform.platform(),
    }


@dataclass(slots=True)
class Summary:
    """Totals over all runs in one folder. ``status`` is running, done, time-up, interrupted or violated."""

    version: int = VERSION
    status: str = "running"
    seconds: float = 0.0
    rounds: int = 0
    next_seed: int = 0
    kills: int = 0
    kills_all: int = 0
    pauses: int = 0
    pauses_all: int = 0
    operations: int = 0
    effects: int = 0
    keys: int = 0
    operations_of_one_key_most: int = 0
    simulations: int = 0
    simulation_seconds: float = 0.0
    play_seconds: float = 0.0
    check_seconds: float = 0.0
    leases_unjudged_rounds: int = 0
    evidence: str | None = None
    versions: dict[str, str] = field(default_factory=versions)

    @classmethod
    def load(cls, folder: Path, present: dict[str, str] | None = None) -> Summary:
        """The summary in this folder, or a new one. ``present`` what new figures would belong to.

        Raises SoakError: it was written by another version or another semel, is damaged, or holds a violation.
        """
        path = folder / FILE
        present = versions() if present is None else present
        if not path.exists():
            return cls(versions=present)
        try:
            words: dict[str, Any] = json.loads(path.read_text("utf-8"))
            found = cls(**words)
        except (ValueError, TypeError):
            raise SoakError(f"{path} is damaged or of another version; name another --folder to begin anew") from None
        if found.version != VERSION or found.versions != present:
            raise SoakError(
                f"{path} was written by version {found.version} under {found.versions}; figures of different software "
                "are not added up: name another --folder to begin anew"
            )
        if found.status == "violated":
            raise SoakError(f"{path}: this soak found a violation, see {found.evidence}; name another --folder")
        found.status = "running"
        return found

    def save(self, folder: Path) -> None:
        """Replace the file: a soak that dies leaves the old summary or the new one."""
        path = folder / FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        os.replace(new, path)
