"""The checks of `semel doctor` for a SQLite file: journal, durability, integrity, backlog.

It also checks the file's surroundings: the file system, free room, and who may read and write it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Final, NamedTuple, cast

from semel.core.contract import DoctorCheck, DoctorFinding
from semel.core.flow import Ask, Flow, ask
from semel.core.timing import PURGE_GRACE_US, span_text
from semel.stores.findings import size_text
from semel.stores.sql.statements import NOW, Params, Query, Row, statements

WAL_BYTES_MAX: Final = 256 * 1024 * 1024
CHECKED_BYTES_MAX: Final = 256 * 1024 * 1024
# A reaper purges hourly: if two walks left something, no reaper is running.
OVERDUE_US: Final = PURGE_GRACE_US + 2 * 3_600_000_000
DISK_BYTES_LOW: Final = 200 * 1024 * 1024
DISK_BYTES_MIN: Final = 20 * 1024 * 1024
_REMOTE: Final = frozenset(
    ("9p", "afs", "ceph", "cifs", "drvfs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "prl_fs")
) | {"smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "fuse.vmhgfs-fuse", "fuse.gcsfuse", "fuse.s3fs"}
_PASSING: Final = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_ELSEWHERE: Final = "put the file on a local disk of the host (in a container: a volume) and name it with --url"
SQL: Final = statements("semel.stores.sqlite", "sql/doctor.sql")
_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


class FileFacts(NamedTuple):
    """The operating system's facts about a database file.

    Parameters: ``path`` as the store names it, ``resolved`` without links; ``mounts`` the text of Linux's
    ``mountinfo``, None elsewhere; ``log_bytes`` of the write-ahead log; ``mode`` and ``owner`` as ``os.stat`` has
    them; ``owners_beside`` the owners of the files that SQLite keeps beside it, by name.
    """

    path: str
    resolved: str
    mounts: str | None
    free_bytes: int
    size_bytes: int
    log_bytes: int
    is_writable: bool
    mode: int
    owner: int
    owners_beside: Mapping[str, int]


class LookAtFile(Ask[FileFacts]):
    """The ask for the operating system's facts about this connection's file."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of a file: its path, file system type and options."""

    place: str
    kind: str
    options: frozenset[str]


def checks(*, full: bool, quick: bool) -> Sequence[DoctorCheck]:
    """Return the checks of the file, its journal and its disk.

    Parameters: ``full`` checks the integrity of a large file too; ``quick`` leaves out the checks that read every row.
    """
    every_row = not quick
    return (
        DoctorCheck("journal", _look_at_journal),
        DoctorCheck("synchronous", _look_at_promise),
        *([DoctorCheck("integrity check", partial(_look_at_integrity, full=full), is_slow=True)] if every_row else ()),
        DoctorCheck("file", _look_at_file),
        *([DoctorCheck("purge", _look_at_backlog)] if every_row else ()),
    )


def _row(name: str, params: Params | None = None) -> Flow[Row]:
    rows = yield from ask(Query(SQL[name], params or {}))
    return rows[0] if rows else ("nothing",)


def _look_at_journal() -> Flow[list[DoctorFinding]]:
    mode = str((yield from _row("journal_mode"))[0])
    if mode == "wal":
        return [DoctorFinding("journal", "ok", "write-ahead log")]
    return [DoctorFinding("journal", "warning", f"journal mode is {mode}, not WAL", "run: semel migrate (it sets WAL)")]


def _look_at_promise() -> Flow[list[DoctorFinding]]:
    synchronous = _SYNCHRONOUS[cast("int", (yield from _row("synchronous"))[0])]
    if synchronous == "NORMAL":
        return [
            DoctorFinding(
                "synchronous",
                "warning",
                "NORMAL: the last answers may be lost with the power, and their commands run twice",
                "use synchronous=FULL (leave the option out of the URL)",
            )
        ]
    return [DoctorFinding("synchronous", "ok", f"{synchronous}: a stored answer survives power loss (by this URL)")]


def _look_at_integrity(*, full: bool) -> Flow[list[DoctorFinding]]:
    size = (yield from ask(LookAtFile())).size_bytes
    if size > CHECKED_BYTES_MAX and not full:
        detail = f"not checked: the file has {size_text(size)}"
        return [DoctorFinding("integrity", "note", detail, "run: semel doctor --full")]
    result = str((yield from _row("quick_check"))[0])
    if result == "ok":
        return [DoctorFinding("integrity", "ok", f"the file is sound ({size_text(size)})")]
    return [
        DoctorFinding("integrity", "problem", f"the file is damaged: {result}", "stop its writers and restore a backup")
    ]


def _look_at_file() -> Flow[list[DoctorFinding]]:
    file = yield from ask(LookAtFile())
    return [*_look_at_place(file), *_look_at_room(file), *_look_at_rights(file), _look_at_log(file.log_bytes)]


def _look_at_log(size: int) -> DoctorFinding:
    if size > WAL_BYTES_MAX:
        detail = f"the write-ahead log has {size_text(size)}: something keeps a reading transaction open"
        remedy = "end long-running readers of this file; the log then shrinks by itself"
        return DoctorFinding("wal", "warning", detail, remedy)
    return DoctorFinding("wal", "ok", f"the write-ahead log has {size_text(size)}")


def _look_at_backlog() -> Flow[list[DoctorFinding]]:
    now = yield from ask(NOW)
    row = yield from _row("overdue", {"by": now - OVERDUE_US})
    forgotten, answers, oldest = cast("tuple[int, int, int | None]", row)
    if oldest is None:
        return [DoctorFinding("purge", "ok", "nothing is overdue")]
    detail = f"{forgotten} tombstones and {answers} answers are overdue, the oldest for {span_text(now - oldest)}"
    remedy = (
        "run: semel purge; and keep `semel worker` running, which purges hourly (over ASGI semel.install(app) does)"
    )
    return [DoctorFinding("purge", "warning", detail, remedy)]


# --- the file system ----------------------------------------------------------------------------


def mount_of(path: PurePath, mounts: str) -> Mount | None:
    """Return the mount that a path lies in, by the text of Linux's ``mountinfo``.

    >>> line = "36 35 98:0 / /mnt rw,noatime shared:1 - ext3 /dev/root rw,errors=continue"
    >>> mount_of(PurePath("/mnt/shop/semel.db"), line).kind
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


def _look_at_place(file: FileFacts) -> Iterator[DoctorFinding]:
    mount = None if file.mounts is None else mount_of(PurePath(file.resolved), file.mounts)
    if mount is None:
        yield DoctorFinding("filesystem", "note", "its type is not known on this system; it must be a local one")
        return
    where = f"{mount.kind} at {mount.place}"
    if mount.kind in _REMOTE:
        detail = f"{where}: SQLite's log needs memory shared by the processes, which no network file system has"
        yield DoctorFinding("filesystem", "problem", detail, _ELSEWHERE)
    elif "volatile" in mount.options:
        detail = f"{where}, mounted volatile: nothing is ever forced to the disk, so stored answers may be lost"
        yield DoctorFinding("filesystem", "problem", detail, _ELSEWHERE)
    elif mount.kind == "overlay":
        detail = f"{where}: a container's own layer, gone with the container; every key would be forgotten"
        yield DoctorFinding("filesystem", "warning", detail, _ELSEWHERE)
    elif mount.kind in _PASSING:
        detail = f"{where}: in memory, gone when the host restarts; every key would be forgotten"
        yield DoctorFinding("filesystem", "warning", detail, _ELSEWHERE)
    elif mount.options & {"nobarrier", "barrier=0"}:
        detail = f"{where}, mounted without barriers: what was confirmed may be lost with the power"
        yield DoctorFinding(
            "filesystem", "warning", detail, "mount it with barriers, or rely on the disk's own battery"
        )
    else:
        yield DoctorFinding("filesystem", "ok", where)


# --- room and rights ----------------------------------------------------------------------------


def _look_at_room(file: FileFacts) -> Iterator[DoctorFinding]:
    free = file.free_bytes
    room = "make room; on a full disk commands are refused and stored answers still replayed"
    if free < DISK_BYTES_LOW:
        yield DoctorFinding("disk", "problem" if free < DISK_BYTES_MIN else "warning", f"{size_text(free)} free", room)
    else:
        yield DoctorFinding("disk", "ok", f"{size_text(free)} free")


def _look_at_rights(file: FileFacts) -> Iterator[DoctorFinding]:
    if not file.is_writable:
        yield DoctorFinding(
            "writable",
            "problem",
            "this user may not write the file or its folder; answers are replayed, commands refused",
            "check the owner of the file and of its folder, and how the disk is mounted",
        )
    strangers = [name for name, owner in file.owners_beside.items() if owner != file.owner]
    if strangers:
        yield DoctorFinding(
            "permissions",
            "problem",
            f"{', '.join(strangers)} and the file have different owners: the service may not be able to write",
            "chown them to the file's owner, and run semel as that user",
        )
    elif file.mode & stat.S_IWOTH:
        yield DoctorFinding(
            "permissions", "warning", "every user of this host may write the file", f"chmod o-w {file.path}"
        )
    elif file.mode & stat.S_IROTH:
        yield DoctorFinding(
            "permissions",
            "note",
            "every user of this host may read the stored answers",
            f"chmod o-r {file.path} (and the files beside it)",
        )
    else:
        yield DoctorFinding("permissions", "ok", f"{stat.filemode(file.mode)}, owner {file.owner}")
