"""The checks of `semel doctor` for a SQLite file: journal, durability, integrity, backlog.

And what is around it: its file system, its room, who may write and read it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from semel.admin.doctor.finding import Finding, size_text
from semel.admin.words import span_text
from semel.cli.progress import show_elapsed
from semel.core.flow import ask
from semel.core.timing import PURGE_GRACE_US
from semel.engine.sync_engine import Engine
from semel.stores.sql.statements import Params, Query, Row, statements
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


DISK_BYTES_LOW: Final = 200 * 1024 * 1024
DISK_BYTES_MIN: Final = 20 * 1024 * 1024
MOUNTS: Final = Path("/proc/self/mountinfo")
_REMOTE: Final = frozenset(
    ("9p", "afs", "ceph", "cifs", "drvfs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "prl_fs")
) | {"smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "fuse.vmhgfs-fuse", "fuse.gcsfuse", "fuse.s3fs"}
_PASSING: Final = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_ELSEWHERE: Final = "put the file on a local disk of the host (in a container: a volume) and name it with --url"


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of a file: its path, file system type and options."""

    place: str
    kind: str
    options: frozenset[str]


def look_at_file(path: Path) -> Iterator[Finding]:
    """The findings about a database file and the folder that it lies in."""
    yield from _look_at_place(path)
    yield from _look_at_room(path)
    yield from _look_at_rights(path)


# --- the file system ----------------------------------------------------------------------------


def mount_of(path: Path, mounts: str) -> Mount | None:
    """The mount that a path lies in, by the text of Linux's ``mountinfo``.

    >>> line = "36 35 98:0 / /mnt rw,noatime shared:1 - ext3 /dev/root rw,errors=continue"
    >>> mount_of(Path("/mnt/shop/semel.db"), line).kind
    'ext3'
    """
    found: Mount | None = None
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not dash or len(fields) < 6 or len(kinds) < 3:
            continue
        # Blanks in names are written as octal escapes. A later mount at the same place covers the former one.
        place = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "surrogateescape")
        if path.is_relative_to(place) and (found is None or len(place) >= len(found.place)):
            options = frozenset((*fields[5].split(","), *kinds[2].split(",")))
            found = Mount(place, kinds[0], options)
    return found


def _look_at_place(path: Path) -> Iterator[Finding]:
    try:
        mount = mount_of(path.resolve(), MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        mount = None
    if mount is None:
        yield Finding("filesystem", "note", "its type is not known on this system; it must be a local one")
        return
    where = f"{mount.kind} at {mount.place}"
    if mount.kind in _REMOTE:
        detail = f"{where}: SQLite's log needs memory shared by the processes, which no network file system has"
        yield Finding("filesystem", "problem", detail, _ELSEWHERE)
    elif "volatile" in mount.options:
        detail = f"{where}, mounted volatile: nothing is ever forced to the disk, so stored answers may be lost"
        yield Finding("filesystem", "problem", detail, _ELSEWHERE)
    elif mount.kind == "overlay":
        detail = f"{where}: a container's own layer, gone with the container; every key would be forgotten"
        yield Finding("filesystem", "warning", detail, _ELSEWHERE)
    elif mount.kind in _PASSING:
        detail = f"{where}: in memory, gone when the host restarts; every key would be forgotten"
        yield Finding("filesystem", "warning", detail, _ELSEWHERE)
    elif mount.options & {"nobarrier", "barrier=0"}:
        detail = f"{where}, mounted without barriers: what was confirmed may be lost with the power"
        yield Finding("filesystem", "warning", detail, "mount it with barriers, or rely on the disk's own battery")
    else:
        yield Finding("filesystem", "ok", where)


# --- room and rights ----------------------------------------------------------------------------


def _look_at_room(path: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(path.parent).free
    room = "make room; on a full disk commands are refused and stored answers still replayed"
    if free < DISK_BYTES_LOW:
        yield Finding("disk", "problem" if free < DISK_BYTES_MIN else "warning", f"{size_text(free)} free", room)
    else:
        yield Finding("disk", "ok", f"{size_text(free)} free")


def _look_at_rights(path: Path) -> Iterator[Finding]:
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        yield Finding(
            "writable",
            "problem",
            "this user may not write the file or its folder; answers are replayed, commands refused",
            "check the owner of the file and of its folder, and how the disk is mounted",
        )
    file = path.stat()
    strangers = [name for name in _companions(path) if Path(name).stat().st_uid != file.st_uid]
    if strangers:
        yield Finding(
            "permissions",
            "problem",
            f"{', '.join(Path(name).name for name in strangers)} and the file have different owners: "
            "the service may not be able to write",
            "chown them to the file's owner, and run semel as that user",
        )
    elif file.st_mode & stat.S_IWOTH:
        yield Finding("permissions", "warning", "every user of this host may write the file", f"chmod o-w {path}")
    elif file.st_mode & stat.S_IROTH:
        yield Finding(
            "permissions",
            "note",
            "every user of this host may read the stored answers",
            f"chmod o-r {path} (and the files beside it)",
        )
    else:
        yield Finding("permissions", "ok", f"{stat.filemode(file.st_mode)}, owner {file.st_uid}")


def _companions(path: Path) -> list[str]:
    return [name for name in (f"{path}-wal", f"{path}-shm") if os.path.exists(name)]
