"""The seed corpora: small files, one folder a target, whose names are digests of what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"
BYTES_MAX: Final = 4096


def seeds(name: str) -> list[bytes]:
    """What a target's corpus holds, in the order of the file names."""
    return [path.read_bytes() for path in sorted((FOLDER / name).iterdir())]


def write(folder: Path, inputs: Iterable[bytes]) -> int:
    """Write inputs into a corpus folder, each under its digest; returns how many are there now."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    return len(list(folder.iterdir()))
