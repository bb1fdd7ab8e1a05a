"""Scenario: a worker does one fresh command, and is killed at its n-th system call on the store's files, for every n.

Each n has its own folder, so that the worker is the first to open the store and the last to close it; or all of
them work in one folder beside a process that keeps the store open (``beside``). Then the next process looks at once,
and asks for the same command when the lease is over.
"""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semel import Answer, Permit
from semel.errors import CommandError
from tests.crash.processes import Line, Worker, pause, report
from tests.crash.work import LEASE_SECONDS, Folder, command
from tests.processes.tracing import Act, Fail, Kill, SystemCall, Tear, Traced

# The calls that change something, or take or give a lock. Between two of them nothing can be seen from outside.
CHANGING = frozenset(
    ("openat", "pwrite64", "write", "fsync", "fdatasync", "ftruncate", "fallocate", "unlink", "fcntl", "mmap", "close")
)
WRITES = frozenset(("pwrite64", "write"))  # those can be torn: half of it is in the file
SYNCS = frozenset(("fsync", "fdatasync"))
POINTS_MAX = 1000


def do_sync(folder: Folder, key: str, effects: str) -> None:
    with folder.engine() as engine:
        result = engine.run(command(key, effects), lambda permit: folder.perform_effect(permit, key))
        folder.acknowledge(key, result.answer)


def do_async(folder: Folder, key: str, effects: str) -> None:
    async def handler(permit: Permit) -> Answer:
        return folder.perform_effect(permit, key)

    async def main() -> None:
        async with folder.async_engine() as engine:
            folder.acknowledge(key, (await engine.run(command(key, effects), handler)).answer)

    asyncio.run(main())


DO = {"sync": do_sync, "async": do_async}


class Countdown:
    """Kills at the n-th call of these names."""

    def __init__(self, nth: int, names: frozenset[str], act: Act) -> None:
        self._left = nth
        self._names = names
        self._act = act
        self.hit: SystemCall | None = None

    def __call__(self, call: SystemCall) -> Act:
        if call.name not in self._names or (type(self._act) is Tear and not call.file.startswith("semel.db")):
            return None  # half a line of the evidence would prove nothing
        self._left -= 1
        if self._left != 0:
            return None
        self.hit = call
        return self._act


class FailedSync:
    """The n-th write or sync of the store fails, and the process is killed at its next call: was it written, or not?"""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.hit: SystemCall | None = None

    def __call__(self, call: SystemCall) -> Act:
        if self.hit is not None:
            return Kill() if call.name in CHANGING else None
        if call.name not in WRITES | SYNCS or not call.file.startswith("semel.db"):
            return None
        self._left -= 1
        if self._left > 0:
            return None
        self.hit = call
        return Fail(errno.EIO)


class Place:
    """The folder of the n-th worker, and its key."""

    def __init__(self, folder: Folder, key: str, hit: SystemCall | None) -> None:
        self.folder = folder
        self.key = key
        self.found: dict[str, Any] = {"at": str(hit)}

    def look(self) -> None:
        """Return what the next process finds, before any retry."""
        [[intact]] = self.folder.sql("PRAGMA integrity_check")
        self.found |= {
            "intact": intact,
            "state": self.folder.states([self.key]).get(self.key),
            "acked": sorted(self.folder.read_acks()[self.key]),
            "effects": self._effects(),
        }

    def ask(self, effects: str) -> None:
        """Ask for the same command, twice."""
        with self.folder.engine() as engine:
            for name in ("asked", "again"):
                try:
                    made = engine.run(
                        command(self.key, effects), lambda permit: self.folder.perform_effect(permit, self.key)
                    )
                    said = ["replayed" if made.replayed else "ran", json.dumps([201, made.answer.body.decode()])]
                except CommandError as error:
                    said = [type(error).__name__, ""]
                self.found[name] = [said[0], said[1].replace(" ", "")]
        self.found["effects_after"] = self._effects()
        self.found["derived_keys"] = len(self.folder.derived_keys()[self.key])

    def _effects(self) -> int:
        return self.folder.effects_by_key()[self.key] + self.folder.business()[self.key]


def keep_open(folder: Folder, line: Line) -> None:
    """A service that lives on, so that no other process is the first or the last to use the file."""
    with folder.engine() as engine:
        engine.run(command("keeper", "idempotent"), lambda permit: Answer(200, (), b"kept"))
        line.say("ready")
        line.hear()
        again = engine.run(command("keeper", "idempotent"), lambda permit: Answer(200, (), b"lost"))
        line.say("kept", again.answer.body.decode())


class Series:
    """One way to kill, at every n, until a worker comes to its end alive."""

    def __init__(self, options: dict[str, Any], template: Folder) -> None:
        self._root = Path(options["folder"])
        self._beside = options["beside"]
        self._do = DO[options["style"]]
        self._effects = options["effects"]
        self._template = template

    def play(self, name: str, at: Callable[[int], Countdown | FailedSync]) -> list[Place]:
        places: list[Place] = []
        while len(places) < POINTS_MAX:
            key = f"{name}-{len(places) + 1}"
            folder = self._folder(key)

            def life(line: Line, folder: Folder = folder, key: str = key) -> None:
                line.hear()
                self._do(folder, key, self._effects)

            decide = at(len(places) + 1)
            code = Traced(folder.path, life).run(decide)
            assert code == (0 if decide.hit is None else -9), (code, decide.hit)
            if decide.hit is None:
                return places
            places.append(Place(folder, key, decide.hit))
            places[-1].look()
        raise AssertionError("never over")

    def _folder(self, key: str) -> Folder:
        if self._beside:
            return self._template
        folder = Folder(self._root / key)
        folder.path.mkdir()
        shutil.copyfile(self._template.database, folder.database)
        return folder


def main(options: dict[str, Any]) -> None:
    template = Folder(Path(options["folder"]) / "template")
    template.path.mkdir()
    template.create()
    keeper = Worker(lambda line: keep_open(template, line)) if options["beside"] else None
    if keeper is not None:
        assert keeper.wait_for("ready")
    series = Series(options, template)
    killed = series.play("killed", lambda nth: Countdown(nth, CHANGING, Kill()))
    torn = series.play("torn", lambda nth: Countdown(nth, WRITES, Tear()))
    failed = series.play("failed", FailedSync)
    over = time.monotonic() + LEASE_SECONDS * 1.05
    kept = None
    if keeper is not None:
        keeper.tell()
        kept = keeper.wait_for("kept")
        assert keeper.wait() == 0
    pause(over - time.monotonic())
    found: dict[str, Any] = {"kept": kept}
    for name, places in (("killed", killed), ("torn", torn), ("failed", failed)):
        for place in places:
            place.ask(options["effects"])
        found[name] = [place.found for place in places]
    report(found)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
