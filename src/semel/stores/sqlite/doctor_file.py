"""The checks of `semel doctor` around a database file: file system, free space, permissions."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.admin.finding import Finding, size_text

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
