"""A soak worker's life: threads or tasks that ask for commands until it is killed, and now and then reap or decide."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Final

from semel import Answer, Command, NothingHappened, Permit
from semel.core.model import Find, Resolution, State
from semel.errors import CommandError, StoreError, SupersededError
from verification.history.engines import AsyncRecordingEngine, RecordingEngine
from verification.history.recorder import Recorder
from verification.soak.command import HandlerFailed, acting, acting_async, id_of, soak_command
from verification.soak.worker import Line, pause

THREADS: Final = 2
TASKS: Final = 4
UPKEEP_EVERY: Final = 25  # commands
AGAIN_SECONDS: Final = 0.02  # an unavailable server is retried after a pause
Asks = Callable[[random.Random], Iterator[Command]]
# Nothing here depends on an answer.
EXPECTED: Final = (CommandError, StoreError, SupersededError, NothingHappened, HandlerFailed)


def live_sync(url: str, recorder: Recorder, asks: Asks, seed: str, line: Line) -> None:
    """Threads, for ever, or until ``asks`` has no more commands."""

    def work(number: int) -> None:
        rng = random.Random(f"{seed}.{number}")
        for place, command in enumerate(asks(rng)):
            if place % UPKEEP_EVERY == UPKEEP_EVERY - 1:
                with contextlib.suppress(StoreError):
                    upkeep(engine, rng)
            try:
                engine.run(command, acting(recorder, rng))
            except StoreError:
                pause(AGAIN_SECONDS)
            except EXPECTED:
                pass  # the next client asks again

    with RecordingEngine.recording(url, recorder) as engine:
        line.say("begun")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def live_async(url: str, recorder: Recorder, asks: Asks, seed: str, line: Line) -> None:
    """Tasks of one loop, for ever, or until ``asks`` has no more commands."""

    async def work(engine: AsyncRecordingEngine, number: int) -> None:
        rng = random.Random(f"{seed}.{number}")
        act = acting_async(recorder, rng)

        async def handler(permit: Permit) -> Answer:
            await asyncio.sleep(0)
            return await act(permit)

        for command in asks(rng):
            try:
                await engine.run(command, handler)
            except StoreError:
                await asyncio.sleep(AGAIN_SECONDS)
            except EXPECTED:
                pass  # the next client asks again

    async def main() -> None:
        async with AsyncRecordingEngine.recording(url, recorder) as engine:
            line.say("begun")
            await asyncio.gather(*(work(engine, number) for number in range(TASKS)))

    asyncio.run(main())


def upkeep(engine: RecordingEngine, rng: random.Random) -> None:
    """The reaper's turn, then an operator's: settle something that is unknown, this way or that."""
    engine.perform("lapse", lambda: engine.store.lapse(100))
    found = engine.perform("find", lambda: engine.store.find(Find((State.UNKNOWN,), limit=5)))
    for row in found.records[:1]:
        happened = rng.random() < 0.5
        answer = Answer(200, (), b"found by the operator") if happened else None
        engine.resolve(Resolution(row.id, row.fence, happened, answer, "soak", "looked", True))


def ask_everything(url: str, recorder: Recorder, keys: list[str], effects: str, seed: int) -> None:
    """When all workers are dead and their leases over: every key must answer, or say that its outcome is unknown."""
    rng = random.Random(f"{seed}.last")
    with RecordingEngine.recording(url, recorder) as engine:
        while engine.perform("lapse", lambda: engine.store.lapse(100)):
            pass
        for key in keys:
            with contextlib.suppress(*EXPECTED):
                engine.run(soak_command(key, effects), acting(recorder, rng))
            engine.read(id_of(key))
