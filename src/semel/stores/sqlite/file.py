"""Reads the operating system's facts about a database file and its folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from semel.stores.sqlite.doctor import FileFacts

MOUNTS: Final = Path("/proc/self/mountinfo")


def read_facts(name: str) -> FileFacts:
    """Read the facts about a file and the two files that SQLite keeps beside it. Raises OSError where it is gone."""
    path = Path(name)
    beside = [Path(f"{name}-wal"), Path(f"{name}-shm")]
    file = path.stat()
    try:
        mounts: str | None = MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        mounts = None
    return FileFacts(
        path=name,
        resolved=str(path.resolve()),
        mounts=mounts,
        free_bytes=shutil.disk_usage(path.parent).free,
        size_bytes=file.st_size,
        log_bytes=beside[0].stat().st_size if beside[0].exists() else 0,
        is_writable=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK),
        mode=file.st_mode,
        owner=file.st_uid,
        owners_beside={each.name: each.stat().st_uid for each in beside if each.exists()},
    )
