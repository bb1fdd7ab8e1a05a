"""What `semel doctor` checks of a Redis server beside what start-up observes: when its file is written, its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.admin.doctor.finding import Finding, Level, size_text
from semel.engine.sync_engine import Engine
from semel.errors import StatementRefused
from semel.stores.redis.store import RedisStore

_FSYNC: Final[Mapping[str, tuple[Level, str, str | None]]] = {
    "always": ("ok", "always: what was acknowledged is on the disk", None),
    "everysec": (
        "note",
        "everysec: the last second or two may be lost with the host's power, not with the server's process",
        "set appendfsync always where no answer may be lost",
    ),
    "no": (
        "warning",
        "no: what the operating system has not written yet (about 30 s) is lost with the host's power",
        "set appendfsync everysec, or always",
    ),
}


def look_at_room(engine: Engine, store: RedisStore) -> Iterator[Finding]:
    """The findings about memory and the file, of all nodes of a cluster."""
    yield from _look_at_fsync(engine, store)
    for used, most in sorted(engine.perform("observe", store.memory)):
        yield memory(used, most)


def memory(used: int, most: int) -> Finding:
    """The finding on a server that has so many bytes in use, of so many that it may (0: no bound).

    >>> memory(95, 100).level, memory(95, 0).level
    ('warning', 'note')
    """
    if most == 0:
        detail = f"{size_text(used)} in use, and no maxmemory: the host's memory is the bound"
        return Finding("memory", "note", detail, "set maxmemory, so that a full server refuses instead of being killed")
    detail = f"{size_text(used)} of {size_text(most)} in use"
    if used * 10 < most * 9:
        return Finding("memory", "ok", detail)
    return Finding("memory", "warning", detail, "raise maxmemory, or shorten retention; run: semel purge")


def _look_at_fsync(engine: Engine, store: RedisStore) -> Iterator[Finding]:
    try:
        values = engine.perform("observe", lambda: store.setting("appendfsync"))
    except StatementRefused:
        yield Finding(
            "appendfsync", "note", "this user may not read it (CONFIG GET)", "look it up in the server's settings"
        )
        return
    for value in sorted(values):
        level, detail, remedy = _FSYNC.get(value, ("note", value, None))
        yield Finding("appendfsync", level, detail, remedy)
