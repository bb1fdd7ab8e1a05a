"""The stage of a nemesis: workers that use a store while something goes wrong with it, and the verdict on it all.

Unlike a round of the soak, whose workers die, these live on: they meet the trouble, and the recovery. They ask for new
keys all the time, so that commands are under way at every moment, and for old ones, so that losses are noticed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from semel import Command
from semel.stores.backend import hide_password
from verification.history.check import Report, check
from verification.history.reading import History, read_history
from verification.history.recorder import Recorder
from verification.history.timeline import violation_lines
from verification.soak.command import LEASE_SECONDS, OTHER_PAYLOADS, note_committed, soak_command
from verification.soak.ground import Ground
from verification.soak.life import ask_everything, live_async, live_sync
from verification.soak.worker import Line, Worker, pause

KEYS_A_SECOND: Final = 30
KEYS_AT_ONCE: Final = 15
BREATH_SECONDS: Final = 0.004  # between two commands of a worker's thread
BEFORE_SECONDS: Final = 0.8
AFTER_SECONDS: Final = 0.8
ON_ITS_WAY_SECONDS: Final = 0.5
LAST_SECONDS_MAX: Final = 240.0


@dataclass(slots=True)
class Verdict:
    """What was judged, and each kind of violation with its number."""

    operations: int = 0
    unanswered: int = 0
    effects: int = 0
    keys: int = 0
    after: int = 0  # operations that began after the nemesis and were answered: it did recover
    kinds: dict[str, int] = field(default_factory=dict)
    young: list[str] = field(default_factory=list)  # violated keys without an attempt before the recovery
    shown: list[str] = field(default_factory=list)  # the first violation
    undecided: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)  # what the scenario adds

    def words(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Stage:
    """Plays one nemesis on one ground.

    Parameters: ``folder`` an empty folder; ``ground`` a store of our own, not prepared yet; ``effects`` of the
    commands; ``seed``; ``urls`` what each worker connects to, if not all to the ground's (such as a proxy before it).
    Every second worker has threads, the others an event loop.
    """

    def __init__(
        self, folder: Path, ground: Ground, effects: str, *, seed: int, urls: Sequence[str] | None = None
    ) -> None:
        self.folder = folder
        self.ground = ground
        self.effects = effects
        self.seed = seed
        self.urls = list(urls) if urls is not None else [ground.url] * 2
        self._began = 0.0

    def play(self, nemesis: Callable[[], None], *, forgets: Callable[[], None] = lambda: None) -> Verdict:
        """The whole play. ``nemesis`` makes the trouble and ends it; ``forgets`` is called when all workers are dead.

        This process must have no threads and no store open, also not in ``nemesis`` when that returns.
        """
        self.ground.prepare()
        recorder = self._recording("parent")
        self._began = time.monotonic()
        workers = [self._worker(number) for number in range(len(self.urls))]
        try:
            for worker in workers:
                worker.wait_for("begun")
            pause(BEFORE_SECONDS)
            nemesis()
            over_ns = time.monotonic_ns()
            pause(AFTER_SECONDS)
        finally:
            for worker in workers:
                worker.kill()
        keys = self._keys()
        forgets()
        pause(ON_ITS_WAY_SECONDS)
        for worker in workers:
            recorder.note_end(worker.pid)
            worker.close()
        pause(LEASE_SECONDS + 0.1)
        self._finish(keys)
        recorder.close()
        return self._judge(over_ns)

    def _recording(self, worker: int | str) -> Recorder:
        settings = {"seed": self.seed, "effects": self.effects, "worker": worker}
        return Recorder(self.folder, store=hide_password(self.ground.url), settings=settings)

    def _worker(self, number: int) -> Worker:
        live = live_async if number % 2 else live_sync

        def life(line: Line) -> None:
            live(self.urls[number], self._recording(number), self._asks, f"{self.seed}.{number}", line)

        return Worker(life)

    def _newest(self) -> int:
        return int((time.monotonic() - self._began) * KEYS_A_SECOND)

    def _keys(self) -> list[str]:
        return [f"k{place}" for place in range(self._newest() + KEYS_AT_ONCE)]

    def _asks(self, rng: random.Random) -> Iterator[Command]:
        """Keys that all clients send at about the same time; now and then an old one, or one with another payload."""
        parent = os.getppid()
        while os.getppid() == parent:
            newest = self._newest()
            place = newest + rng.randrange(KEYS_AT_ONCE) if rng.random() < 0.8 else rng.randrange(newest + 1)
            yield soak_command(f"k{place}", self.effects, int(rng.random() < OTHER_PAYLOADS))
            pause(BREATH_SECONDS)

    def _finish(self, keys: list[str]) -> None:
        def life(line: Line) -> None:
            recorder = self._recording("last")
            ask_everything(self.ground.url, recorder, keys, self.effects, self.seed)
            note_committed(self.ground.read_committed(), recorder)

        last = Worker(life)
        last.rest(LAST_SECONDS_MAX)
        if last.wait() != 0:
            raise RuntimeError(f"the last worker of {self.folder} failed; what it said stands above")
        last.close()

    def _judge(self, over_ns: int) -> Verdict:
        history = read_history([self.folder])
        report = check(history)
        verdict = Verdict(report.operations, report.unanswered, report.effects, report.keys)
        verdict.after = sum(
            op.start_ns > over_ns and op.result is not None for operations in history.keys.values() for op in operations
        )
        verdict.undecided = report.undecided
        _tell(verdict, history, report, over_ns)
        return verdict


def _tell(verdict: Verdict, history: History, report: Report, over_ns: int) -> None:
    for violation in report.violations:
        verdict.kinds[violation.kind] = verdict.kinds.get(violation.kind, 0) + 1
        if min(op.start_ns for op in history.keys[violation.key]) > over_ns:
            verdict.young.append(violation.key)
    if report.violations:
        verdict.shown = violation_lines(report.violations[0])
