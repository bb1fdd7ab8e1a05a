"""The checks of `semel doctor` for a SQLite file: journal, durability, integrity, backlog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from semel.admin.finding import Finding, size_text
from semel.cli.progress import show_elapsed
from semel.cli.terminal import span_text
from semel.core.flow import ask
from semel.core.timing import PURGE_GRACE_US
from semel.engine.sync_engine import Engine
from semel.stores.sql.statements import Params, Query, Row, statements
from semel.stores.sqlite.doctor_file import look_at_file
from semel.stores.sqlite.driver import SqliteDriver

WAL_BYTES_MAX: Final = 256 * 1024 * 1024
CHECKED_BYTES_MAX: Final = 256 * 1024 * 1024
# A reaper purges hourly: what two walks have left was left because none is running.
OVERDUE_US: Final = PURGE_GRACE_US + 2 * 3_600_000_000
SQL: Final = statements("semel.stores.sqlite", "sql/doctor.sql")


def look_at_sqlite(
    engine: Engine, driver: SqliteDriver, *, full: bool, progress: bool, quick: bool = False
) -> Iterator[Finding]:
    """The findings about the file, its journal and its disk.

    Parameters: ``full`` checks the integrity of a large file too; ``progress`` as asked for with ``--progress``;
    ``quick`` leaves out what looks at every row.
    """
    path = Path(driver.path)
    mode = str(_row(engine, "journal_mode")[0])
    if mode == "wal":
        yield Finding("journal", "ok", "write-ahead log")
    else:
        yield Finding("journal", "warning", f"journal mode is {mode}, not WAL", "run: semel migrate (it sets WAL)")
    yield from _look_at_promise(driver)
    if not quick:
        yield from _look_at_integrity(engine, path, full=full, progress=progress)
    yield from look_at_file(path)
    yield from _look_at_log(path)
    if not quick:
        yield from _look_at_backlog(engine, driver.clock())


def _row(engine: Engine, name: str, params: Params | None = None) -> Row:
    rows = engine.perform(name, lambda: ask(Query(SQL[name], params or {})))
    return rows[0] if rows else ("nothing",)


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


def _look_at_integrity(engine: Engine, path: Path, *, full: bool, progress: bool) -> Iterator[Finding]:
    size = path.stat().st_size
    if size > CHECKED_BYTES_MAX and not full:
        yield Finding("integrity", "note", f"not checked: the file has {size_text(size)}", "run: semel doctor --full")
        return
    said = str(show_elapsed("integrity check", lambda: _row(engine, "quick_check")[0], asked=progress))
    if said == "ok":
        yield Finding("integrity", "ok", f"the file is sound ({size_text(size)})")
    else:
        yield Finding("integrity", "problem", f"the file is damaged: {said}", "stop its writers and restore a backup")


def _look_at_log(path: Path) -> Iterator[Finding]:
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > WAL_BYTES_MAX:
        detail = f"the write-ahead log has {size_text(size)}: something keeps a reading transaction open"
        yield Finding("wal", "warning", detail, "end long-running readers of this file; the log then shrinks by itself")
    else:
        yield Finding("wal", "ok", f"the write-ahead log has {size_text(size)}")


def _look_at_backlog(engine: Engine, now: int) -> Iterator[Finding]:
    row = _row(engine, "overdue", {"by": now - OVERDUE_US})
    forgotten, answers, oldest = cast("tuple[int, int, int | None]", row)
    if oldest is None:
        yield Finding("purge", "ok", "nothing is overdue")
        return
    detail = f"{forgotten} tombstones and {answers} answers are overdue, the oldest for {span_text(now - oldest)}"
    remedy = (
        "run: semel purge; and keep `semel worker` running, which purges hourly (over ASGI semel.install(app) does)"
    )
    yield Finding("purge", "warning", detail, remedy)
