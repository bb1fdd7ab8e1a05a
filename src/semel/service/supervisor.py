"""The supervisor of the reference service: it owns the port, and workers that die are replaced.

A small process that cannot crash with its workers: it binds, migrates, starts them on the inherited socket,
and waits. Requests that arrive while a worker is being replaced wait in the socket's queue. It ends its
workers by their own process ids, and never anything else.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from semel.engine.sync import Engine
from semel.errors import ConfigurationError
from semel.service.greeting import greeting
from semel.service.orders import create_table
from semel.service.settings import Settings

BACKLOG: Final = 2048
SHORT_LIFE_SECONDS: Final = 1.0
BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
KILL_AFTER_SECONDS: Final = 15.0  # longer than a worker's own drain
FAILED_STARTS_MAX: Final = 5
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)


class Say(Protocol):
    """Where the service prints: the command line's output."""

    def say(self, *lines: str) -> None:
        """Lines for people."""

    def note(self, line: str) -> None:
        """A remark on stderr."""

    def document(self, value: dict[str, str | int | list[int]]) -> None:
        """One event for machines."""


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    started: float


def serve(settings: Settings, out: Say, *, supervised: bool) -> int:
    """Migrate, bind, say what to try, and serve until SIGTERM or SIGINT; the exit code.

    Raises ConfigurationError where the port or the store cannot be used as configured, StoreError where it fails.
    """
    _prepare(settings)
    with bound(settings) as listening:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        out.document({"event": "serving", "url": url, "pid": os.getpid()})
        out.say(*greeting(url, settings))
        if supervised:
            return Supervisor(settings, listening, out).run()
        from semel.service.worker_main import run_server

        return run_server(settings, listening)


def _prepare(settings: Settings) -> None:
    """Migrate Semel's tables and the service's own."""
    engine = Engine.connect(settings.url, id_secret=settings.id_secret)
    try:
        if not engine.store.capabilities.shared_between_processes or engine.backend.name != "sqlite":
            raise ConfigurationError(f"the reference service runs on sqlite:///, not on {engine.backend.name}")
        engine.migrate()
        engine.open()
        engine.perform("migrate", create_table)
    finally:
        engine.close()


@contextmanager
def bound(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket. Raises ConfigurationError, naming the variable."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"HOST {settings.host!r} cannot be listened on: {error.strerror}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"cannot listen on HOST {settings.host} PORT {settings.port}: {error.strerror}; choose another PORT"
        ) from error
    try:
        yield listening
    finally:
        listening.close()


class Supervisor:
    """Keeps ``settings.workers`` processes serving one socket."""

    def __init__(self, settings: Settings, listening: socket.socket, out: Say) -> None:
        self._settings = settings
        self._listening = listening
        self._out = out
        self._workers: list[_Worker] = []
        self._due: list[float] = []  # when to start replacements
        self._short_lives = 0
        self._failed_starts = 0
        self._stopping = False

    def run(self) -> int:
        """Serve until told to end; 0, or 1 where workers cannot start."""
        lifeline, self._held_end = os.pipe()
        try:
            with self._signals() as woken:
                self._due = [time.monotonic()] * self._settings.workers
                while not self._stopping:
                    self._start_due(lifeline)
                    self._wait(woken, min(self._due, default=None))
                    self._reap()
                self._end_workers(woken)
        finally:
            os.close(lifeline)
            os.close(self._held_end)  # a worker that is still there ends now
        return 1 if self._failed_starts >= FAILED_STARTS_MAX else 0

    def _start_due(self, lifeline: int) -> None:
        now = time.monotonic()
        ready = [due for due in self._due if due <= now]
        self._due = [due for due in self._due if due > now]
        for _ in ready:
            descriptors = (self._listening.fileno(), lifeline)
            process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [
                    *(sys.executable, "-m", "semel.service.worker_main"),
                    *("--socket", str(descriptors[0]), "--lifeline", str(descriptors[1])),
                ],
                pass_fds=descriptors,
                env=_environment(self._settings),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which passes it on once
            )
            self._workers.append(_Worker(process, now))
            pids = [worker.process.pid for worker in self._workers]
            self._out.document({"event": "worker", "pid": process.pid, "pids": pids})

    def _reap(self) -> None:
        """Take note of workers that ended, and plan their replacements."""
        for worker in list(self._workers):
            code = worker.process.poll()
            if code is None:
                continue
            self._workers.remove(worker)
            if self._stopping:
                continue
            short = time.monotonic() - worker.started < SHORT_LIFE_SECONDS
            self._short_lives = self._short_lives + 1 if short else 0
            self._failed_starts = self._failed_starts + 1 if code > 0 else 0
            if self._failed_starts >= FAILED_STARTS_MAX:
                self._out.note(f"semel: workers fail to start (exit code {code}), see above; run: semel doctor")
                self._stopping = True
                continue
            pause = BACKOFF_SECONDS[min(self._short_lives, len(BACKOFF_SECONDS) - 1)]
            self._due.append(time.monotonic() + pause)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._out.note(f"semel: worker {worker.process.pid} ended ({how}); starting another")

    def _end_workers(self, woken: int) -> None:
        """Ask each worker to drain, wait, and kill what does not end in time."""
        for worker in self._workers:
            worker.process.terminate()
        ends = time.monotonic() + KILL_AFTER_SECONDS
        while self._workers and time.monotonic() < ends:
            self._wait(woken, ends)
            self._reap()
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Turn signals into bytes of a pipe; yields its reading end."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        former_wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        former = {number: signal.signal(number, self._stop) for number in _FORWARDED}
        former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield reading
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(former_wakeup)
            os.close(reading)
            os.close(writing)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    @staticmethod
    def _wait(woken: int, until: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            if selector.select(None if until is None else max(until - time.monotonic(), 0)):
                os.read(woken, 4096)


def _environment(settings: Settings) -> dict[str, str]:
    """The supervisor's environment, with the settings as they were resolved."""
    return {
        **os.environ,
        "HOST": settings.host,
        "PORT": str(settings.port),
        "SEMEL_URL": settings.url,
        "SEMEL_DEMO": "1" if settings.demo else "0",
    }
