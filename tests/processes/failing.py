"""Scenario: the n-th system call on the store's files fails, for every n, once or from then on until there is room.

One process does a command, meets the failure, and asks for the same command again when the disk works again: no
restart. The test judges its answers and how often its handler ran.
"""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from semel import Answer, Permit
from semel.engine.result import Result
from semel.errors import CommandError, StoreError
from tests.crash.processes import Line, report
from tests.crash.work import Folder, command
from tests.processes.tracing import Act, Fail, SystemCall, Traced

HEALED = "healed"  # asking for this file is the worker's word that the disk works again
POINTS_MAX = 1000
WAIT_SECONDS = 3.0  # longer than a lease
OPTIONS = "?busy_seconds=0.3"
CONFIRM_SECONDS = 0.1

# Which calls may fail so: what needs room, what reaches the disk, what changes a file system. Locks are not among them:
# where they fail (on a network file system) SQLite itself tries for ten seconds before it says so.
ROOM = frozenset(("openat", "pwrite64", "write", "ftruncate", "fallocate", "fsync", "fdatasync"))
LOOKS = frozenset(("pread64", "fstat", "newfstatat", "mmap", "unlink"))
FAILURES: dict[str, tuple[int, frozenset[str]]] = {
    "ENOSPC": (errno.ENOSPC, ROOM),
    "EFBIG": (errno.EFBIG, ROOM - {"openat", "fsync", "fdatasync"}),
    "EROFS": (errno.EROFS, ROOM - {"fsync", "fdatasync"} | {"unlink"}),
    "EIO": (errno.EIO, ROOM | LOOKS),
}


class Disk:
    """Fails the n-th call of these names on the store's files, and with ``on`` every later one until it is healed."""

    def __init__(self, nth: int, error: int, names: frozenset[str], *, on: bool) -> None:
        self._left = nth
        self._error = error
        self._names = names
        self._on = on
        self.healed = False
        self.hits: list[SystemCall] = []

    def __call__(self, call: SystemCall) -> Act:
        if call.file == HEALED:
            self.healed = True
        if self.healed or call.name not in self._names or not call.file.startswith("semel.db"):
            return None
        self._left -= 1
        if self._left > 0 or (self._left < 0 and not self._on):
            return None
        self.hits.append(call)
        return Fail(self._error)


def describe_result(result: Result) -> list[str]:
    return ["replayed" if result.replayed else "ran", result.answer.body.decode()]


def describe_error(error: Exception) -> list[str]:
    return [type(error).__name__, str(error)]


EXPECTED_ERRORS = (StoreError, CommandError, sqlite3.Error)  # the last: of an ATOMIC handler's own statement


class Life:
    """What the worker does: three times the same command, the first time on the failing disk."""

    def __init__(self, folder: Folder, effects: str, line: Line) -> None:
        self._folder = folder
        self._command = command("k", effects)
        self._line = line
        self._ran = 0

    def act(self, permit: Permit) -> Answer:
        self._ran += 1
        return self._folder.perform_effect(permit, "k")

    async def act_async(self, permit: Permit) -> Answer:
        return self.act(permit)

    def say(self, said: list[str]) -> None:
        self._line.say(json.dumps([*said, self._ran]))

    def heal(self) -> None:
        (self._folder.path / HEALED).exists()

    def sync(self) -> None:
        engine = self._folder.engine(OPTIONS, confirm_seconds=CONFIRM_SECONDS)
        for wait_seconds in (0, WAIT_SECONDS, 0):
            try:
                self.say(describe_result(engine.run(self._command, self.act, wait_seconds=wait_seconds)))
            except EXPECTED_ERRORS as error:
                self.say(describe_error(error))
            self.heal()
        engine.close()

    async def run_async(self) -> None:
        engine = self._folder.async_engine(OPTIONS, confirm_seconds=CONFIRM_SECONDS)
        for wait_seconds in (0, WAIT_SECONDS, 0):
            try:
                self.say(describe_result(await engine.run(self._command, self.act_async, wait_seconds=wait_seconds)))
            except EXPECTED_ERRORS as error:
                self.say(describe_error(error))
            self.heal()
        await engine.close()


def one(folder: Folder, effects: str, style: str, disk: Disk) -> dict[str, Any] | None:
    """Run one life on one failing disk; None if the disk never failed."""

    def life(line: Line) -> None:
        line.hear()
        lived = Life(folder, effects, line)
        if style == "sync":
            lived.sync()
        else:
            asyncio.run(lived.run_async())

    traced = Traced(folder.path, life)
    code = traced.run(disk)
    if not disk.hits:
        return None
    [[intact]] = folder.sql("PRAGMA integrity_check")
    return {
        "at": str(disk.hits[0]),
        "hits": len(disk.hits),
        "code": code,
        "said": [json.loads(" ".join(words)) for words in traced.said],
        "intact": intact,
        "state": folder.states(["k"]).get("k"),
        "effects": folder.effects_by_key()["k"] + folder.business()["k"],
        "derived_keys": len(folder.derived_keys()["k"]),
    }


def main(options: dict[str, Any]) -> None:
    root = Path(options["folder"])
    template = Folder(root / "template")
    template.path.mkdir()
    template.create()
    error, names = FAILURES[options["error"]]
    found: list[dict[str, Any]] = []
    for nth in range(1, POINTS_MAX):
        folder = Folder(root / str(nth))
        folder.path.mkdir()
        shutil.copyfile(template.database, folder.database)
        lived = one(folder, options["effects"], options["style"], Disk(nth, error, names, on=options["on"]))
        if lived is None:
            report({"lives": found, "where": Counter(life["at"] for life in found)})
            return
        found.append(lived)
    raise AssertionError("never over")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
