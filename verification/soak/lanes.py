"""Runs a plan: rounds in forked lanes and simulations beside them, until it is reached or a promise is broken."""

from __future__ import annotations

import copy
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from verification.soak.plan import Plan
from verification.soak.round import Round
from verification.soak.simulation import SCHEDULES_AT_ONCE, Chunk
from verification.soak.summary import Summary, versions
from verification.soak.worker import Line, Worker

LOOK_SECONDS: Final = 0.5
PROGRESS_SECONDS: Final = 15.0
DISK_FREE_BYTES_MIN: Final = 500_000_000

Play = Callable[[Path, int], dict[str, Any]]


def play_round(folder: Path, seed: int, url: str | None = None) -> dict[str, Any]:
    """A round of the real thing; what it found, for JSON."""
    return Round(folder, seed, url=url).play().words()


class Soak:
    """One run of a plan. ``play`` is what a lane does."""

    def __init__(self, plan: Plan, say: Callable[[str], None], play: Play | None = None) -> None:
        self.plan = plan
        self.say = say
        self.play: Play = partial(play_round, url=plan.url) if play is None else play
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.summary = Summary.load(plan.folder, versions(plan.url))
        self.before = copy.copy(self.summary)
        self.summary.next_seed = max(self.summary.next_seed, plan.seed)
        self._lanes: dict[Worker, tuple[int, Path]] = {}
        self._simulation: Chunk | None = None
        self._started = time.monotonic()
        self._said = self._started

    def run(self) -> Summary:
        """Go on until the plan is reached, the time is up, or a promise is broken; save the result in each case.

        Raises KeyboardInterrupt after saving.
        """
        summary = self.summary
        try:
            while summary.status == "running":
                self._begin()
                if not self._lanes and self._simulation is None:
                    summary.status = "done" if not self._missing() else "time-up"
                    break
                self._hear()
                self._hear_simulation()
                self._tell()
        except KeyboardInterrupt:
            summary.status = "interrupted"
            raise
        finally:
            self._end()
            self._save()
        return summary

    def _missing(self) -> bool:
        return self.plan.needs_rounds(self.summary) or self.plan.needs_simulations(self.summary) > 0

    def _time_is_up(self) -> bool:
        return self.plan.hours is not None and time.monotonic() > self._started + self.plan.hours * 3600

    def _begin(self) -> None:
        """Fill the lanes. One that is free while only schedules are missing stays so: the simulator has its own."""
        if self._time_is_up() or shutil.disk_usage(self.plan.folder).free < DISK_FREE_BYTES_MIN:
            return
        while self.plan.needs_rounds(self.summary) and len(self._lanes) < self.plan.lanes:
            seed = self.summary.next_seed
            self.summary.next_seed += 1
            folder = self.plan.folder / f"round-{seed}"
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
            folder.mkdir()
            lane = Worker(self._lane(folder, seed))
            self._lanes[lane] = (seed, folder)
            os.setpgid(lane.pid, lane.pid)  # as the lane itself does: the first one wins
        missing = self.plan.needs_simulations(self.summary)
        if missing and self._simulation is None:
            schedules = min(missing, SCHEDULES_AT_ONCE)
            jobs = self.plan.lanes if not self._lanes else 1
            self._simulation = Chunk(self.plan.seed + self.summary.simulations, schedules, jobs, self.plan.folder)

    def _lane(self, folder: Path, seed: int) -> Callable[[Line], None]:
        def lane(line: Line) -> None:
            # A group of its own, with its workers: an interruption is the parent's, and it ends them all at once.
            os.setpgid(0, 0)
            line.say(json.dumps(self.play(folder, seed), separators=(",", ":")).replace(" ", "\\u0020"))

        return lane

    def _hear(self) -> None:
        waiting = list(self._lanes)
        if not waiting:
            select.select([], [], [], LOOK_SECONDS)
            return
        for lane in select.select(waiting, [], [], LOOK_SECONDS)[0]:
            seed, folder = self._lanes.pop(lane)
            said = lane.next()
            code = lane.wait()
            lane.close()
            if said is None or code != 0:
                self._keep_all(folder, {"seed": seed, "failed": f"the round ended with {code}; see what it printed"})
            else:
                self._take(json.loads(said[0]), folder)

    def _take(self, outcome: dict[str, Any], folder: Path) -> None:
        summary = self.summary
        summary.rounds += 1
        for name in ("kills", "kills_all", "pauses", "pauses_all", "operations", "keys", "play_seconds"):
            setattr(summary, name, getattr(summary, name) + outcome[name])
        summary.effects += outcome["effects_made"]
        summary.check_seconds += outcome["check_seconds"]
        most = max(summary.operations_of_one_key_most, outcome["operations_of_one_key_most"])
        summary.operations_of_one_key_most = most
        summary.leases_unjudged_rounds += any("stepped" in note for note in outcome["notes"])
        if outcome["violations"] or outcome["undecided"]:
            self._keep_all(folder, outcome)
        else:
            shutil.rmtree(folder)
        self._save()

    def _keep_all(self, folder: Path, found: dict[str, Any]) -> None:
        """Keep all evidence of a violation, and note where it is."""
        self.summary.status = "violated"
        self.summary.evidence = str(folder)
        if folder.is_dir():
            evidence = {"found": found, "versions": self.summary.versions, "plan": self.plan.as_json()}
            (folder / "evidence.json").write_text(json.dumps(evidence, indent=2) + "\n", "utf-8")

    def _hear_simulation(self) -> None:
        chunk = self._simulation
        if chunk is None or not chunk.is_over():
            return
        self._simulation = None
        self.summary.simulation_seconds += time.monotonic() - chunk.started
        if chunk.has_held():
            self.summary.simulations += chunk.schedules
        else:
            self._keep_all(chunk.log, {})  # it tells the seed and the story
        self._save()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            self.say(self.plan.line(self.summary, self.before, now - self._started))

    def _save(self) -> None:
        self.summary.seconds = self.before.seconds + time.monotonic() - self._started
        self.summary.save(self.plan.folder)

    def _end(self) -> None:
        """End every process of the lanes."""
        for lane, (_, folder) in self._lanes.items():
            os.killpg(lane.pid, signal.SIGKILL)  # also those that are stopped
            lane.wait()
            lane.close()
            shutil.rmtree(folder, ignore_errors=True)
        self._lanes.clear()
        if self._simulation is not None:
            self._simulation.kill()
