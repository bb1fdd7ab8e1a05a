"""Scenario: one command per process, killed before or after its n-th statement, for every n there is.

Every statement counts: the pragmas of a new connection, BEGIN, the savepoint, the handler's own writes, and COMMIT.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from typing import Any

from semel import Answer, Permit
from semel.stores.sqlite import connection as sqlite_connection
from semel.stores.sqlite import driver as sqlite
from semel.stores.sqlite import transaction as sqlite_unit
from tests.crash.processes import Line, Worker, report
from tests.crash.work import Folder, command


class Doom:
    """Kills this process before or after its n-th statement."""

    def __init__(self, nth: int, after: bool) -> None:
        self._left = nth
        self._after = after
        self._lock = threading.Lock()

    def strike(self, after: bool) -> None:
        with self._lock:
            self._left -= after == self._after
            if self._left == 0 and after == self._after:
                os.kill(os.getpid(), signal.SIGKILL)


def doom_connection(kind: type[sqlite3.Connection], doom: Doom) -> type[sqlite3.Connection]:
    """The same connection, mortal."""

    class Doomed(kind):  # type: ignore[misc,valid-type]
        def execute(self, *statement: Any) -> sqlite3.Cursor:
            doom.strike(after=False)
            cursor: sqlite3.Cursor = super().execute(*statement)
            doom.strike(after=True)
            return cursor

        def executemany(self, *statement: Any) -> sqlite3.Cursor:
            doom.strike(after=False)
            cursor: sqlite3.Cursor = super().executemany(*statement)
            doom.strike(after=True)
            return cursor

    return Doomed


def condemn(doom: Doom) -> None:
    """From here on every connection of this process is counted."""

    def opening(
        path: str, synchronous: str, *, reading: bool = False, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> sqlite3.Connection:
        return sqlite_connection.open_connection(
            path, synchronous, reading=reading, factory=doom_connection(factory, doom)
        )

    for module in (sqlite, sqlite_unit):
        module.open_connection = opening  # type: ignore[attr-defined]


def run(folder: Folder, effects: str, style: str, key: str) -> Answer:
    def handler(permit: Permit) -> Answer:
        return folder.perform_effect(permit, key, recorder)

    async def handling(permit: Permit) -> Answer:
        return handler(permit)

    async def main() -> Answer:
        return (await folder.async_recording(recorder).run(command(key, effects), handling)).answer

    recorder = folder.recorder()

    if style == "async":
        return asyncio.run(main())
    return folder.recording(recorder).run(command(key, effects), handler).answer


def main(options: dict[str, Any]) -> None:
    folder, effects, style = Folder(options["folder"]), options["effects"], options["style"]
    keys = []
    kills = 0
    recorder = folder.recorder()
    for after in (False, True):
        for nth in range(1, 100):
            key = f"{style}-{nth}-{'after' if after else 'before'}"
            keys.append(key)

            def life(line: Line, key: str = key, nth: int = nth, after: bool = after) -> None:
                condemn(Doom(nth, after))
                folder.acknowledge(key, run(folder, effects, style, key))

            worker = Worker(life)
            killed = worker.wait()
            recorder.note_end(worker.pid)
            worker.close()
            if killed == 0:
                break
            assert killed == -signal.SIGKILL, killed
            kills += 1
    report({"kills": kills, "hits": kills, "keys": keys, "last_kill": time.time()})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
