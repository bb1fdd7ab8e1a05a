"""Scenario: workers run commands, and are killed at random moments and at named points; others retry the same keys.

A kill counts as a hit only if the process had a command in flight: its last message about some key was ``begin``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from semel import Answer, Permit
from semel.core.model import Settling
from semel.core.outcomes import Outcome
from semel.engine.result import Result
from semel.errors import CommandError, StoreError
from tests.crash.processes import Line, Worker, pause, ready, report
from tests.crash.work import Folder, command
from verification.history.engines import AsyncRecordingEngine, RecordingEngine
from verification.history.recorder import Recorder

POINTS = ("after-claim", "before-effect", "after-effect", "before-settle", "after-settle", "after-ack")
FRESH_KEYS = 60
OLD_KEYS = 6
LANES = 2


class Stops:
    """Stop (and then kill) a worker when it passes a named point for the n-th time."""

    def __init__(self, line: Line, point: str | None, nth: int) -> None:
        self._line = line
        self._point = point
        self._left = nth
        self._lock = threading.Lock()

    def passing(self, point: str) -> None:
        if point != self._point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._line.say("at", point)
                self._line.hear()  # never answered: the parent kills


class SyncWorker(RecordingEngine):
    stops: Stops

    def settle(self, permit: Permit, outcome: Outcome) -> Settling:
        self.stops.passing("before-settle")
        reply = super().settle(permit, outcome)
        self.stops.passing("after-settle")
        return reply


class AsyncWorker(AsyncRecordingEngine):
    stops: Stops

    async def settle(self, permit: Permit, outcome: Outcome) -> Settling:
        self.stops.passing("before-settle")
        reply = await super().settle(permit, outcome)
        self.stops.passing("after-settle")
        return reply


def acting(folder: Folder, stops: Stops, recorder: Recorder, key: str) -> Callable[[Permit], Answer]:
    def handler(permit: Permit) -> Answer:
        stops.passing("after-claim")
        stops.passing("before-effect")
        answer = folder.perform_effect(permit, key, recorder)
        stops.passing("after-effect")
        return answer

    return handler


def ack(folder: Folder, stops: Stops, key: str, result: Result) -> None:
    folder.acknowledge(key, result.answer)
    stops.passing("after-ack")


def work_sync(folder: Folder, effects: str, keys: list[str], stops: Stops, line: Line) -> None:
    """Two threads over the same keys, from both ends."""

    def thread(mine: list[str]) -> None:
        for key in mine:
            line.say("begin", key)
            with contextlib.suppress(CommandError, StoreError):  # the next client asks again
                ack(folder, stops, key, engine.run(command(key, effects), acting(folder, stops, recorder, key)))
            line.say("end", key)

    recorder = folder.recorder()
    with SyncWorker.recording(folder.url, recorder) as engine:
        engine.stops = stops
        threads = [threading.Thread(target=thread, args=(keys[place::2],)) for place in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()


def work_async(folder: Folder, effects: str, keys: list[str], stops: Stops, line: Line) -> None:
    """Four tasks of one loop over the same keys."""

    async def task(engine: AsyncWorker, mine: list[str]) -> None:
        for key in mine:
            act = acting(folder, stops, recorder, key)

            async def handler(permit: Permit, act: Callable[[Permit], Answer] = act) -> Answer:
                await asyncio.sleep(0)
                return act(permit)

            line.say("begin", key)
            with contextlib.suppress(CommandError, StoreError):
                ack(folder, stops, key, await engine.run(command(key, effects), handler))
            line.say("end", key)

    async def main() -> None:
        async with AsyncWorker.recording(folder.url, recorder) as engine:
            engine.stops = stops
            await asyncio.gather(*(task(engine, keys[place::4]) for place in range(4)))

    recorder = folder.recorder()
    asyncio.run(main())


WORK = {"sync": work_sync, "async": work_async}


class Round:
    """A few workers on the same keys, each with its own moment to die."""

    def __init__(
        self, folder: Folder, effects: str, style: str, rng: random.Random, number: int, recorder: Recorder
    ) -> None:
        self.begun: list[str] = []
        self.hits = 0
        self.kills = 0
        self._rng = rng
        self._recorder = recorder
        self._job = (folder, effects, style)
        self._fresh = [f"k{number}-{place}" for place in range(FRESH_KEYS)]

    def play(self, old: list[str]) -> None:
        folder, effects, style = self._job
        plans: dict[Worker, str | None] = {}
        for _ in range(LANES):
            point = self._rng.choice((None, *POINTS))
            nth = self._rng.randint(1, 8)
            keys = [*old, *self._fresh]
            self._rng.shuffle(keys)

            def life(line: Line, point: str | None = point, nth: int = nth, keys: list[str] = keys) -> None:
                WORK[style](folder, effects, keys, Stops(line, point, nth), line)

            plans[Worker(life)] = point
        while plans:
            # The first to arrive dies first: one that is stopped inside an ATOMIC command blocks the others.
            for worker in ready(plans):
                message = worker.next()
                if message is not None:
                    worker.said.append(message)
                if message is None or message[0] == ("begin" if plans[worker] is None else "at"):
                    self._end(worker, plans.pop(worker))

    def _end(self, worker: Worker, point: str | None) -> None:
        if point is None:
            pause(self._rng.random() * 0.03)
        killed = worker.kill() == -9
        self._recorder.note_end(worker.pid)
        said = worker.said + worker.rest()
        worker.close()
        began = [message[1] for message in said if message[0] == "begin"]
        ended = [message[1] for message in said if message[0] == "end"]
        self.begun += began
        self.kills += killed
        self.hits += killed and len(began) > len(ended)


def main(options: dict[str, Any]) -> None:
    folder = Folder(options["folder"])
    rng = random.Random(options["seed"])
    begun: dict[str, None] = {}
    kills = hits = number = 0
    recorder = folder.recorder()
    while hits < options["hits"]:  # the test's own patience is the limit
        one = Round(folder, options["effects"], options["style"], rng, number, recorder)
        one.play(rng.sample(list(begun), min(len(begun), OLD_KEYS)))
        begun.update(dict.fromkeys(one.begun))
        kills += one.kills
        hits += one.hits
        number += 1
    report({"kills": kills, "hits": hits, "keys": list(begun), "last_kill": time.time()})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
