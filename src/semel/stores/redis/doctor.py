"""The checks of `semel doctor` on a Redis server, beside those of start-up: its memory, and when it writes its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from semel.core.contract import DoctorCheck, DoctorFinding, Level
from semel.core.flow import Flow
from semel.stores.findings import size_text
from semel.stores.redis import settings

_ACCEPT: Final = (
    "where every operation is IDEMPOTENT it makes no difference: accept it with ?persistence=none in the URL, which "
    "makes this a note"
)
_FSYNC: Final[Mapping[str, tuple[Level, str, str | None]]] = {
    "always": ("ok", "always: what was acknowledged is on the disk", None),
    "everysec": (
        "warning",
        "everysec: the last second or two of acknowledged claims and answers may be lost with the host's power, or "
        "with the server's process on a slow disk, and their EXTERNAL commands run twice",
        f"set appendfsync always; {_ACCEPT}",
    ),
    "no": (
        "warning",
        "no: acknowledged claims and answers that the operating system has not written yet (about 30 s) are lost with "
        "the host's power, and their EXTERNAL commands run twice",
        f"set appendfsync always; {_ACCEPT}",
    ),
}


_HIDDEN: Final = DoctorFinding(
    "appendfsync", "note", "this user may not read it (CONFIG GET)", "look it up in the server's settings"
)


def checks(tags: tuple[bytes, ...]) -> Sequence[DoctorCheck]:
    """Check the file and the memory of every server that holds a part of the records.

    Parameters: ``tags`` the keys' beginnings, which lie on all nodes of a cluster.
    """
    return (
        DoctorCheck("appendfsync", partial(_look_at_fsync, tags), refused=_HIDDEN),
        DoctorCheck("memory", partial(_look_at_memory, tags)),
    )


def memory(used: int, most: int) -> DoctorFinding:
    """Judge a server's memory: bytes in use, and bytes allowed (0: no bound).

    >>> memory(95, 100).level, memory(95, 0).level
    ('warning', 'note')
    """
    if most == 0:
        detail = f"{size_text(used)} in use, and no maxmemory: the host's memory is the bound"
        return DoctorFinding(
            "memory", "note", detail, "set maxmemory, so that a full server refuses instead of being killed"
        )
    detail = f"{size_text(used)} of {size_text(most)} in use"
    if used * 10 < most * 9:
        return DoctorFinding("memory", "ok", detail)
    return DoctorFinding("memory", "warning", detail, "raise maxmemory, or shorten retention; run: semel purge")


def _look_at_memory(tags: tuple[bytes, ...]) -> Flow[list[DoctorFinding]]:
    return [memory(used, most) for used, most in sorted((yield from settings.memory(tags)))]


def _look_at_fsync(tags: tuple[bytes, ...]) -> Flow[list[DoctorFinding]]:
    values = yield from settings.setting(tags, "appendfsync")
    judged = [_FSYNC.get(value, ("note", value, None)) for value in sorted(values)]
    return [DoctorFinding("appendfsync", *one) for one in judged]
