"""The supervisor of the reference service: it owns the port, and replaces workers that die.

A small process that cannot crash with its workers: it binds, migrates, starts them on the inherited socket,
and waits. Requests that arrive while it replaces a worker wait in the socket's queue. It ends its workers
by their own process ids, and no other process. SIGHUP replaces the workers one by one, without a gap.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.reference.greeting import greeting
from semel.reference.metrics import MetricsPlace, serve_metrics
from semel.reference.orders import create_table
from semel.reference.settings import Settings
from semel.reference.worker_process import WorkerProcess

BACKLOG: Final = 2048
SHORT_LIFE_SECONDS: Final = 1.0
BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
FAILED_STARTS_MAX: Final = 5
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)


class Say(Protocol):
    """Prints the service's messages to the command line's output."""

    def say(self, *lines: str) -> None:
        """Print lines for people."""

    def note(self, line: str) -> None:
        """Print a remark on stderr."""

    def document(self, value: dict[str, str | int | list[int]]) -> None:
        """Print one event for machines."""


def serve(settings: Settings, out: Say, *, supervised: bool) -> int:
    """Migrate, bind, print commands to try, and serve until SIGTERM or SIGINT. Return the exit code.

    Raises ConfigurationError where the port or store cannot be used as configured, StoreError where the store fails.
    """
    _prepare(settings)
    with bound(settings) as listening, serve_metrics(settings) as page:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        measures = {} if page is None else {"metrics": page.url}
        out.document({"event": "serving", "url": url, "pid": os.getpid(), **measures})
        out.say(*greeting(url, settings, **measures))
        if supervised:
            return Supervisor(settings, listening, out, page).run()
        from semel.reference.worker_main import run_server

        return run_server(settings, listening, measuring=None if page is None else page.listening)


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
    """Return the listening socket. Raises ConfigurationError, naming the variable."""
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

    def __init__(
        self, settings: Settings, listening: socket.socket, out: Say, page: MetricsPlace | None = None
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._out = out
        self._page = page
        self._workers: list[WorkerProcess] = []
        self._due: list[float] = []  # when to start replacements
        self._short_lives = 0
        self._failed_starts = 0
        self._stopping = False
        self._hung_up = False
        self._has_terminal = os.isatty(0)

    def run(self) -> int:
        """Serve until asked to end. Return 0, or 1 if workers cannot start."""
        lifeline, self._held_end = os.pipe()
        try:
            with self._signals() as woken:
                self._due = [time.monotonic()] * self._settings.workers
                while not self._stopping:
                    self._start_due(lifeline)
                    self._wait(woken, self._next_due())
                    self._reap()
                    self._roll()
                self._end_workers(woken)
        finally:
            os.close(lifeline)
            os.close(self._held_end)  # ends any worker that still runs
        return 1 if self._failed_starts >= FAILED_STARTS_MAX else 0

    def _start_due(self, lifeline: int) -> None:
        now = time.monotonic()
        ready = [due for due in self._due if due <= now]
        self._due = [due for due in self._due if due > now]
        for _ in ready:
            worker = WorkerProcess(self._settings, self._listening.fileno(), lifeline, self._page)
            self._workers.append(worker)
            pids = [worker.process.pid for worker in self._workers]
            self._out.document({"event": "worker", "pid": worker.process.pid, "pids": pids})

    def _reap(self) -> None:
        """Note workers that ended, and plan their replacements."""
        for worker in list(self._workers):
            worker.kill_if_due()
            code = worker.process.poll()
            if code is None:
                continue
            worker.forget()
            self._workers.remove(worker)
            if not self._stopping and worker.kill_at is None:
                self._replace(worker, code)

    def _replace(self, worker: WorkerProcess, code: int) -> None:
        """Plan a replacement for a worker that ended unexpectedly."""
        short = time.monotonic() - worker.started < SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if short else 0
        self._failed_starts = self._failed_starts + 1 if code > 0 else 0
        if self._failed_starts >= FAILED_STARTS_MAX:
            self._give_up(code)
            return
        pause = BACKOFF_SECONDS[min(self._short_lives, len(BACKOFF_SECONDS) - 1)]
        self._due.append(time.monotonic() + pause)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._out.note(f"semel: worker {worker.process.pid} ended ({how}); starting another")

    def _give_up(self, code: int) -> None:
        """Handle workers that fail to start: continue if former ones still serve, else end."""
        if any(worker.former for worker in self._workers):
            self._out.note(f"semel: new workers fail to start (exit code {code}), see above; the former ones continue")
            for worker in self._workers:
                worker.former = False
            self._failed_starts = 0
            self._due = [time.monotonic()] * (self._settings.workers - self._staying())
        else:
            self._out.note(f"semel: workers fail to start (exit code {code}), see above; run: semel doctor")
            self._stopping = True

    # --- a rolling restart --------------------------------------------------------------------

    def _roll(self) -> None:
        """Continue a rolling restart (SIGHUP): once a new worker serves, ask the next former one to end."""
        if self._hung_up:
            self._hung_up = False
            self._out.note("semel: SIGHUP; replacing the workers one by one")
            for worker in self._workers:
                worker.former = worker.former or worker.kill_at is None
        former = [worker for worker in self._workers if worker.former and worker.kill_at is None]
        if not former or self._stopping:
            return
        if self._staying() + len(self._due) <= self._settings.workers:
            self._due.append(time.monotonic())
        elif not self._due and all(worker.serves for worker in self._workers if not worker.former):
            former[0].end()

    def _staying(self) -> int:
        return sum(worker.kill_at is None for worker in self._workers)

    def _hang_up(self, *_: object) -> None:
        if self._has_terminal and not os.isatty(0):
            self._stopping = True  # the terminal was closed: Ctrl-C cannot end this any more
        else:
            self._hung_up = True

    # --- waiting and ending -------------------------------------------------------------------

    def _end_workers(self, woken: int) -> None:
        """Ask each worker to drain, wait, and kill those that do not end in time."""
        for worker in self._workers:
            worker.end()
        while self._workers:
            self._wait(woken, self._next_due())
            self._reap()

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Turn signals into bytes of a pipe, and yield its reading end."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        former_wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        former = {number: signal.signal(number, self._stop) for number in _FORWARDED}
        former[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)
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

    def _next_due(self) -> float | None:
        kills = [worker.kill_at for worker in self._workers if worker.kill_at is not None]
        return min([*self._due, *kills], default=None)

    def _wait(self, woken: int, until: float | None) -> None:
        """Wait for a signal, a worker's message, or a time."""
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            for worker in self._workers:
                if worker.ready is not None:
                    selector.register(worker.ready, selectors.EVENT_READ, worker)
            for key, _ in selector.select(None if until is None else max(until - time.monotonic(), 0)):
                if isinstance(key.data, WorkerProcess):
                    key.data.hear()
                else:
                    os.read(woken, 4096)
