"""Scenario: several processes, released at once, run the same keys on one file."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from semel import Answer, Permit
from tests.crash.processes import Line, Worker, report
from tests.crash.work import Folder, command

PATIENCE = {"wait_seconds": 20, "lease_seconds": 20}


def crowd(folder: Folder, effects: str, style: str, keys: list[str], line: Line) -> None:
    random.Random(os.getpid()).shuffle(keys)
    recorder = folder.recorder()

    def acting(key: str) -> Callable[[Permit], Answer]:
        return lambda permit: folder.perform_effect(permit, key, recorder)

    async def one(engine: Any, key: str) -> None:
        async def handler(permit: Permit) -> Answer:
            return acting(key)(permit)

        result = await engine.run(command(key, effects, **PATIENCE), handler)
        line.say("told", key, result.answer.body.decode())

    async def main() -> None:
        async with folder.async_recording(recorder, "?busy_seconds=20") as engine:
            line.say("ready")
            line.hear()
            await asyncio.gather(*(one(engine, key) for key in keys))

    if style == "async":
        asyncio.run(main())
        return
    with folder.recording(recorder, "?busy_seconds=20") as engine:
        line.say("ready")
        line.hear()
        for key in keys:
            result = engine.run(command(key, effects, **PATIENCE), acting(key))
            line.say("told", key, result.answer.body.decode())


def main(options: dict[str, Any]) -> None:
    folder, keys = Folder(options["folder"]), [f"k{place}" for place in range(options["keys"])]
    workers = []
    for place in range(options["processes"]):
        style = ("sync", "async")[place % 2]

        def life(line: Line, style: str = style) -> None:
            crowd(folder, options["effects"], style, keys, line)

        workers.append(Worker(life))
    for worker in workers:
        assert worker.wait_for("ready")
    for worker in workers:
        worker.tell()
    told = [{words[1]: words[2] for words in worker.rest()} for worker in workers]
    assert [worker.wait() for worker in workers] == [0] * len(workers)
    report({"told": told})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
