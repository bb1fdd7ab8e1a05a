"""What `semel doctor` checks of a SQLite file: its journal, its promises at power loss, its integrity, its disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from semel.cli.finding import Finding
from semel.drivers.sqlite import SqliteDriver
from semel.engine.sync import Engine
from semel.flow import ask
from semel.stores.statements import Query, statements

DISK_BYTES_LOW: Final = 200 * 1024 * 1024
DISK_BYTES_MIN: Final = 20 * 1024 * 1024
WAL_BYTES_MAX: Final = 256 * 1024 * 1024
CHECKED_BYTES_MAX: Final = 256 * 1024 * 1024
SQL: Final = statements("semel.cli", "doctor_sqlite.sql")


def look_at_sqlite(engine: Engine, driver: SqliteDriver) -> Iterator[Finding]:
    """The findings about the file, its journal and its disk."""
    path = Path(driver.path)
    mode = _value(engine, "journal_mode")
    if mode == "wal":
        yield Finding("journal", "ok", "write-ahead log")
    else:
        yield Finding("journal", "warning", f"journal mode is {mode}, not WAL", "run: semel migrate (it sets WAL)")
    yield from _look_at_promise(driver)
    yield from _look_at_integrity(engine, path)
    yield from _look_at_disk(path)


def _value(engine: Engine, name: str) -> str:
    rows = engine.perform(name, lambda: ask(Query(SQL[name], {})))
    return str(rows[0][0]) if rows else "nothing"


def _look_at_promise(driver: SqliteDriver) -> Iterator[Finding]:
    if driver.synchronous == "NORMAL":
        yield Finding(
            "synchronous",
            "warning",
            "NORMAL: the last answers may be lost with the power, and their commands run twice",
            "use synchronous=FULL (leave the option out of the URL)",
        )
    else:
        yield Finding("synchronous", "ok", f"{driver.synchronous}: a stored answer survives power loss (by this URL)")


def _look_at_integrity(engine: Engine, path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    if size > CHECKED_BYTES_MAX:
        yield Finding("integrity", "note", f"not checked: the file has {_size(size)}; run: PRAGMA quick_check")
        return
    said = _value(engine, "quick_check")
    if said == "ok":
        yield Finding("integrity", "ok", f"the file is sound ({_size(size)})")
    else:
        yield Finding("integrity", "problem", f"the file is damaged: {said}", "stop its writers and restore a backup")


def _look_at_disk(path: Path) -> Iterator[Finding]:
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        yield Finding(
            "writable",
            "problem",
            "this user may not write the file or its folder; answers are replayed, commands refused",
            "check the owner of the file and of its folder, and how the disk is mounted",
        )
    free = shutil.disk_usage(path.parent).free
    room = "make room; on a full disk commands are refused and stored answers still replayed"
    if free < DISK_BYTES_LOW:
        yield Finding("disk", "problem" if free < DISK_BYTES_MIN else "warning", f"{_size(free)} free", room)
    else:
        yield Finding("disk", "ok", f"{_size(free)} free")
    wal = Path(f"{path}-wal")
    if wal.exists() and wal.stat().st_size > WAL_BYTES_MAX:
        detail = f"the write-ahead log has {_size(wal.stat().st_size)}: something keeps a reading transaction open"
        yield Finding("wal", "warning", detail, "end long-running readers of this file; the log then shrinks by itself")


def _size(size: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 10_240 or unit == "GiB":
            break
        size //= 1024
    return f"{size} {unit}"
