"""What `semel doctor` checks of a server's settings: what they make of the store's promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.cli.finding import Finding, Level
from semel.engine.sync import Engine
from semel.errors import StatementRefused
from semel.stores.base import Observable
from semel.stores.redis import RedisStore

_LEVELS: Final[Mapping[str, Level]] = {
    "ok": "ok",
    "note": "note",
    "warning": "warning",
    "forgets": "problem",
    "unusable": "problem",
}
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


def look_at_server(engine: Engine, store: Observable) -> Iterator[Finding]:
    """The findings about the server, or about all nodes of a cluster."""
    for seen in engine.perform("observe", store.observe):
        yield Finding(seen.check, _LEVELS[seen.level], seen.detail, seen.remedy or None)
    if isinstance(store, RedisStore):
        yield from _look_at_fsync(engine, store)


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
