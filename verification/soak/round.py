"""One round of a soak: a new store, workers that are killed and stopped at random moments, and the verdict on it all.

A kill counts only if it hit a process that was waiting for an answer, or that held a grant; so does a pause. Both are
read from the histories, not guessed.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from semel.stores.backend import hide_password
from verification.history.check import Report, check
from verification.history.reading import NEVER, History, Operation, read_history
from verification.history.recorder import Recorder
from verification.history.timeline import violation_lines
from verification.soak.command import LEASE_SECONDS, note_committed, window, windowed_commands
from verification.soak.ground import Ground, ground
from verification.soak.life import ask_everything, live_async, live_sync
from verification.soak.worker import Line, Worker, pause

STYLES: Final = ("sync", "async")
WORKERS_AT_ONCE: Final = 2
LIFE_SECONDS_MAX: Final = 0.12
KILLS: Final = 24
PAUSES: Final = 3
LAST_SECONDS_MAX: Final = 120.0
PAUSE_SECONDS: Final = LEASE_SECONDS + 0.1
ON_ITS_WAY_SECONDS: Final = 0.25  # what a dead process had sent may reach its server so much later


@dataclass(slots=True)
class Outcome:
    """What a round did and found."""

    seed: int
    effects: str
    kills: int = 0  # effective ones
    kills_all: int = 0
    pauses: int = 0  # effective ones, each past the lease
    pauses_all: int = 0
    operations: int = 0
    effects_made: int = 0
    keys: int = 0
    operations_of_one_key_most: int = 0
    play_seconds: float = 0.0
    check_seconds: float = 0.0
    violations: list[list[str]] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything was judged and nothing found broken."""
        return not self.violations and not self.undecided

    def words(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Round:
    """Plays one round in its own folder.

    Parameters: ``folder`` an empty folder; ``seed`` chooses kinds, styles and moments (what the machine makes of the
    moments it does not); ``url`` of a server, None for a SQLite file; ``kills`` and ``pauses`` how many to try;
    ``life_seconds_max`` how long a worker may live.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        url: str | None = None,
        kills: int = KILLS,
        pauses: int = PAUSES,
        life_seconds_max: float = LIFE_SECONDS_MAX,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.rng = random.Random(seed)
        self.ground: Ground = ground(url, folder, seed)
        self.effects = self.ground.kinds[seed % len(self.ground.kinds)]
        self.url = self.ground.url
        self.life_seconds_max = life_seconds_max
        self.outcome = Outcome(seed, self.effects)
        self._kills_left = kills
        self._pauses_left = pauses
        self._begun = 0
        self._ends: dict[Worker, float] = {}  # when each is to be killed
        self._stopped: dict[Worker, tuple[float, int]] = {}  # when to let it go on, and since when it is stopped (ns)
        self._deaths: list[tuple[int, int]] = []  # pid, ns
        self._told = 0  # how many of them the history knows of
        self._pauses: list[tuple[int, int]] = []
        self._recorder: Recorder | None = None

    def play(self) -> Outcome:
        """The whole round. The ground is dropped after a sound one; after another it is evidence."""
        started = time.monotonic()
        self.ground.prepare()
        self._recorder = self._recording("parent")
        try:
            while self._ends or self._stopped or self._kills_left > 0:
                while len(self._ends) + len(self._stopped) < WORKERS_AT_ONCE and self._kills_left > 0:
                    self._begin()
                self._strike()
        finally:
            for worker in (*self._ends, *self._stopped):
                worker.kill()
        pause(ON_ITS_WAY_SECONDS)
        self._tell_deaths(NEVER)
        pause(LEASE_SECONDS + 0.1)
        self._finish()
        self._recorder.close()
        self.outcome.play_seconds = time.monotonic() - started
        self._judge()
        if self.outcome.ok:
            self.ground.drop()
        return self.outcome

    def _recording(self, worker: int | str) -> Recorder:
        settings = {"seed": self.seed, "effects": self.effects, "worker": worker}
        return Recorder(self.folder, store=hide_password(self.url), settings=settings)

    def _begin(self) -> None:
        number = self._begun
        self._begun += 1
        self._kills_left -= 1
        live = live_sync if self.rng.random() < 0.5 else live_async

        def life(line: Line) -> None:
            asks = partial(windowed_commands, number, self.effects)
            live(self.url, self._recording(number), asks, f"{self.seed}.{number}", line)

        worker = Worker(life)
        worker.wait_for("begun")
        self._ends[worker] = time.monotonic() + self.rng.random() * self.life_seconds_max

    def _strike(self) -> None:
        """Kill each process whose moment has come, or stop it for longer than its lease, or let it continue."""
        now = time.monotonic()
        self._tell_deaths(time.monotonic_ns() - int(ON_ITS_WAY_SECONDS * 1e9))
        for worker, (until, since_ns) in list(self._stopped.items()):
            if now >= until:
                del self._stopped[worker]
                worker.signal(signal.SIGCONT)
                self._pauses.append((worker.pid, since_ns))
                self._ends[worker] = now + self.rng.random() * self.life_seconds_max
        for worker, end in list(self._ends.items()):
            if now >= end:
                del self._ends[worker]
                if self._pauses_left > 0 and self.rng.random() < 0.3:
                    self._pauses_left -= 1
                    self._stopped[worker] = (now + PAUSE_SECONDS, time.monotonic_ns())
                    worker.signal(signal.SIGSTOP)
                else:
                    self._kill(worker)
        moments = [*self._ends.values(), *(until for until, _ in self._stopped.values())]
        # A stopped ATOMIC holder blocks the file's writers, so the others' moments come as well.
        pause(min(moments, default=now) - time.monotonic())

    def _kill(self, worker: Worker) -> None:
        at = time.monotonic_ns()
        if worker.kill() != -signal.SIGKILL:
            raise RuntimeError(f"a worker of {self.folder} ended by itself; what it said stands above")
        self._deaths.append((worker.pid, at))
        worker.close()

    def _tell_deaths(self, until_ns: int) -> None:
        """Write into the history who died before this moment, so that nothing of theirs can come any more."""
        assert self._recorder is not None
        for pid, at in self._deaths[self._told :]:
            if at < until_ns:
                self._recorder.note_end(pid)
                self._told += 1

    def _finish(self) -> None:
        """In a process of its own: this one must stay without threads and without a store."""

        def life(line: Line) -> None:
            recorder = self._recording("last")
            ask_everything(self.url, recorder, window(self._begun), self.effects, self.seed)
            note_committed(self.ground.read_committed(), recorder)

        last = Worker(life)
        last.rest(LAST_SECONDS_MAX)
        if last.wait() != 0:
            raise RuntimeError(f"the last worker of {self.folder} failed; what it said stands above")
        last.close()

    def _judge(self) -> None:
        started = time.monotonic()
        history = read_history([self.folder])
        report = check(history)
        outcome = self.outcome
        outcome.kills_all, outcome.pauses_all = len(self._deaths), len(self._pauses)
        outcome.kills = _effective(history, self._deaths)
        outcome.pauses = _effective(history, self._pauses)
        _take_over(outcome, report)
        outcome.check_seconds = time.monotonic() - started


def _take_over(outcome: Outcome, report: Report) -> None:
    outcome.operations, outcome.effects_made, outcome.keys = report.operations, report.effects, report.keys
    outcome.operations_of_one_key_most = report.most_operations
    outcome.violations = [violation_lines(violation) for violation in report.violations]
    outcome.undecided = report.undecided
    outcome.notes = report.notes


def _effective(history: History, moments: list[tuple[int, int]]) -> int:
    """How many of these moments (pid, ns) hit a process in the middle of an operation."""
    spans = _busy_spans(history)
    return sum(any(start <= at < end for start, end in spans.get(pid, ())) for pid, at in moments)


def _busy_spans(history: History) -> dict[int, list[tuple[int, int]]]:
    """When each process had an operation under way: from its start to its end, and from a grant to its settlement."""
    pids = {header.process: header.pid for header in history.headers}
    spans: dict[int, list[tuple[int, int]]] = {}
    for operations in history.keys.values():
        settled = {(op.process, op.args["fence"]): op.start_ns for op in operations if op.kind == "settle"}
        for op in operations:
            spans.setdefault(pids[op.process], []).append((op.start_ns, _until(op, settled)))
    return spans


def _until(op: Operation, settled: dict[tuple[str, int], int]) -> int:
    if op.kind == "attempt" and op.result is not None and op.result["verdict"] == "proceed":
        return settled.get((op.process, op.result["fence"]), NEVER)
    return NEVER if op.gave_up is None and op.result is None else op.end_ns if op.result is not None else op.start_ns
