"""The server's disk is full for a while: what is new is refused before its handler, and goes on when there is room."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semel import Answer, Engine, Permit
from semel.errors import CommandError, StoreError, StoreUnavailable
from tests.nemeses.processes import await_end
from tests.servers.redis import answers, eventually
from verification.nemeses.stage import Stage, Verdict
from verification.soak.command import soak_command
from verification.soak.ground import ground
from verification.soak.worker import Line, Worker, pause

if TYPE_CHECKING:
    from tests.nemeses.scenarios import Server

MEGABYTES: Final = {"postgresql": 120, "asyncpg": 120, "mariadb": 400, "redis": 24}
LOG_MEGABYTES: Final = 48
GROWING_LOG: Final = ("min_wal_size=2MB", "max_wal_size=1GB")  # it takes new files, rather than old ones again
REFUSALS: Final = 5
ASKED_MOST: Final = 4000
FULL_SECONDS: Final = 0.5


@contextmanager
def disk(home: Path, store: str, setting: str) -> Iterator[None]:
    """A file system of its own for the server, as large as it needs, or for its log alone."""
    place = log_of(home) if setting == "log" else home
    place.mkdir(exist_ok=True)
    size = f"size={LOG_MEGABYTES if setting == 'log' else MEGABYTES[store]}m,mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "semel-test", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def log_of(home: Path) -> Path:
    """Return where the log of a server with its own file system is mounted."""
    return home / "log"


def fill(place: Path) -> Path:
    """The file that takes all the room there is."""
    filler = place / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(65536)) == 65536:
            pass
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    return filler


def full_disk(folder: Path, server: Server, effects: str, seed: int) -> Verdict:
    """No worker restarts; the server itself is started again if the full disk ended it."""
    place = ground(server.url(), folder, seed)
    beside = ground(server.url(), folder / "beside", seed)  # its requests are not recorded
    beside.prepare()
    told: dict[str, object] = {}

    def nemesis() -> None:
        asking = Worker(lambda line: _ask(beside.url, line))
        asking.wait_for("answered")
        filler = fill(log_of(server.folder) if server.setting == "log" else server.folder)
        asking.tell()
        for word, *values in asking.rest(60):
            told[word] = float(values[0])
        assert asking.wait() == 0
        asking.close()
        pause(FULL_SECONDS)
        if server.setting == "log":  # PostgreSQL panics, and cannot recover without room either
            assert await_end(server.running.pid)
        filler.unlink()
        if server.store == "redis":
            if not answers(server.running.port):
                server.resume()
            eventually(lambda: answers(server.running.port))
        elif server.setting == "log":
            server.resume()

    verdict = Stage(folder, place, effects, seed=seed).play(nemesis)
    verdict.more.update(told)
    return verdict


def _ask(url: str, line: Line) -> None:
    """Ask for new keys until some were refused, then for an old one; tell what was met."""
    ran: list[str] = []

    def handler(permit: Permit) -> Answer:
        ran.append("")
        return Answer(201, (), b"x" * 1000)

    with Engine.connect(url) as engine:
        engine.run(soak_command("before", "external"), handler)
        line.say("answered")
        line.hear()
        refused, slowest, replayed = 0, 0.0, False
        for number in range(ASKED_MOST):
            begun, before = time.monotonic(), len(ran)
            try:
                engine.run(soak_command(f"full {number}", "external"), handler)
            except StoreUnavailable:
                assert len(ran) == before, "a command was said to be refused, and its handler had run"
                refused, slowest = refused + 1, max(slowest, time.monotonic() - begun)
            except (StoreError, CommandError):
                continue  # begun, and its outcome is not known yet
            if refused == REFUSALS:
                break
        with suppress(StoreError):
            replayed = engine.run(soak_command("before", "external"), handler).replayed
        line.say("refused", str(refused))
        line.say("slowest", f"{slowest:.2f}")
        line.say("replayed", str(int(replayed)))


SCENARIOS: Final[dict[str, Callable[[Path, Server, str, int], Verdict]]] = {"full disk": full_disk}
