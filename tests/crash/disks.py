"""Scenarios: a disk that is full and a file that is read-only, as a process meets them that can do nothing about it."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from semel import Answer, Engine, Permit
from semel.errors import StoreError
from tests.crash.processes import Line, Worker, report
from tests.crash.work import HEADERS, Folder, command

NOBODY = 65534
KINDS = ("external", "idempotent", "atomic")
LARGE, SMALL = 20_000, 10  # bytes


def attempt(engine: Engine, key: str, effects: str, ran: list[str]) -> str:
    """Return what a caller gets: the answer, its replay, or the error."""

    def handler(permit: Permit) -> Answer:
        ran.append(key)
        return Answer(200, HEADERS, key.encode())

    try:
        result = engine.run(command(key, effects), handler)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return f"{'replayed' if result.replayed else 'ran'}: {result.answer.body.decode()}"


def attempts(engine: Engine, name: str, ran: list[str], kinds: tuple[str, ...] = KINDS) -> dict[str, str]:
    return {effects: attempt(engine, f"{name}-{effects}", effects, ran) for effects in kinds}


def fill(engine: Engine) -> None:
    """Make the database grow until there is no room, by large answers, then by small ones for what they leave."""
    for size in (LARGE, SMALL):
        _fill_by(engine, Answer(200, HEADERS, b"x" * size))


def _fill_by(engine: Engine, answer: Answer) -> None:
    for number in range(1000):
        try:
            engine.run(command(f"fill-{len(answer.body)}-{number}", "idempotent"), lambda permit: answer)
        except StoreError:
            return
    raise AssertionError("the disk is not small")


def limit_pages(engine: Engine, pages: int) -> None:
    """The database may have so many pages: SQLite reports a full disk (SQLITE_FULL)."""
    driver = engine.backend.driver
    assert driver._writer is not None
    driver._writer.execute(f"PRAGMA max_page_count={pages}")


def limit_bytes(engine: Engine, count: int) -> None:
    """No file may be larger: the system refuses the write itself."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (count if count > 0 else hard, hard))


FULL: dict[str, tuple[Callable[[Engine, int], None], int, int]] = {
    "pages": (limit_pages, 60, 1_000_000),
    "bytes": (limit_bytes, 200_000, -1),
}


def full(folder: Folder, how: str) -> dict[str, Any]:
    """Full, and then there is room again: the same process, the same engine."""
    limit, small, large = FULL[how]
    engine = folder.engine("?busy_seconds=1", confirm_seconds=0.2)
    ran: list[str] = []
    first = attempts(engine, "before", ran)
    limit(engine, small)
    fill(engine)
    ran.clear()
    # A limit in pages binds one connection, and an ATOMIC command has its own.
    refused = attempts(engine, "full", ran, KINDS if how == "bytes" else KINDS[:2])
    ran_while_full = list(ran)
    replayed = attempts(engine, "before", ran)
    limit(engine, large)
    after = attempts(engine, "full", ran)
    again = attempts(engine, "full", ran)
    engine.close()
    return {
        "first": first,
        "refused": refused,
        "ran": ran_while_full,
        "replayed": replayed,
        "after": after,
        "again": again,
    }


def read_only(folder: Folder) -> dict[str, Any]:
    """A process that may read the file and its directory only."""
    ran: list[str] = []
    engine = folder.engine("?busy_seconds=0.5")  # opened in the child, where modules may be out of reach

    def child(line: Line) -> None:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        line.say(json.dumps({"replayed": attempts(engine, "before", ran), "refused": attempts(engine, "new", ran)}))
        line.say(json.dumps(ran))

    writer = Worker(lambda line: keep_open(folder, line))  # the log stays, as beside a living service
    assert writer.wait_for("ready")
    for file in folder.path.iterdir():
        file.chmod(0o444)
    folder.path.chmod(0o555)
    worker = Worker(child)
    said = [json.loads(" ".join(words)) for words in worker.rest()]
    assert worker.wait() == 0
    folder.path.chmod(0o755)
    writer.tell()
    assert writer.wait() == 0
    return {**said[0], "ran": said[1]}


def keep_open(folder: Folder, line: Line) -> None:
    with folder.engine() as engine:
        attempts(engine, "before", [])
        line.say("ready")
        line.hear()


def main(options: dict[str, Any]) -> None:
    folder = Folder(options["folder"])
    report(read_only(folder) if options["how"] == "read-only" else full(folder, options["how"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
