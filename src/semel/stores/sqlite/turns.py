"""Takes turns between the workers of a SQLite file, through a small file beside it, never through the database.

A commit each second would wear the disk and wait for the file's writers. All processes of one SQLite file run on one
host, so they can share a few bytes in the page cache. Nothing is synced; after a loss, turns begin anew.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, Final

from semel.stores.sql.statements import TakeTurn
from semel.workers.rules import next_turn

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows: each process looks for itself
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

SUFFIX: Final = "-turns"
KINDS_MOST: Final = 64
BYTES_MOST: Final = 65_536


def take_turn(path: str, needed: TakeTurn, now: int) -> int | None:
    """Return this worker's next turn; None if the file cannot be written, or is locked just now.

    A process that was stopped midway keeps the lock, and no other process waits for it.
    """
    if not _HAS_LOCKS:
        return None
    try:
        mode = os.stat(path).st_mode & 0o777  # who may use the database may take turns
        file = os.open(path + SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError:
        return None
    try:
        flock(file, LOCK_EX | LOCK_NB)
        kinds = _read(file)
        last, looked = kinds.pop(needed.kind, (None, None))
        turn = next_turn(now, needed.mine, needed.every_us, last, looked)
        if turn is None:
            return needed.mine
        kinds[needed.kind] = (turn, now)
        newest = sorted(kinds.items(), key=lambda kind: kind[1][1])[-KINDS_MOST:]
        data = json.dumps(dict(newest)).encode()
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
    except OSError:
        return None
    finally:
        os.close(file)
    return turn


def _read(file: int) -> dict[str, tuple[int, int]]:
    """Read the file's content; nothing where another program has written it."""
    found: Any = None
    with suppress(ValueError):
        found = json.loads(os.pread(file, BYTES_MOST, 0) or b"{}")
    if not isinstance(found, dict):
        return {}
    return {kind: (turn[0], turn[1]) for kind, turn in found.items() if _is_turn(turn)}


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, list) and len(turn) == 2 and all(type(each) is int for each in turn)
