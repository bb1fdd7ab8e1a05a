"""Scenario: what renews a lease is stopped, and its holder is not.

In the sync engine that is a thread of its own, stopped alone by the tracer; in the async one it is a timer of the loop,
stopped by a handler that blocks the loop. Past the lease another process asks for the same command, or none does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

from semel import Answer, Permit
from semel.errors import CommandError
from tests.crash.processes import Line, Worker, pause, report
from tests.crash.work import LEASE_SECONDS, Folder, command
from tests.processes.tracing import StoppedThread

PAST_THE_LEASE = LEASE_SECONDS * 1.3
STOPS_MAX = 20
RESTS_WITHIN_SECONDS = 20.0
HEARTBEAT = "semel-upkeep"
ASKED = "?"  # whether the holder can speak; any other word lets it go on


def hold_in_thread(folder: Folder, effects: str, line: Line) -> None:
    """A sync engine; says which thread renews, and answers for itself while that one is stopped."""

    def handler(permit: Permit) -> Answer:
        [beat] = [thread for thread in threading.enumerate() if thread.name == HEARTBEAT]
        line.say("holding", str(beat.native_id))
        while line.hear() == ASKED:
            line.say("resting" if is_resting(beat) else "beating")
        return folder.perform_effect(permit, "k")

    with folder.engine() as engine:
        line.say("told", *describe_run(lambda: engine.run(command("k", effects), handler)))


def is_resting(thread: threading.Thread) -> bool:
    """Whether a thread waits for its next beat. Within a beat it holds locks that the handler's settlement needs."""
    frame = sys._current_frames()[thread.ident or 0]
    return frame.f_code is threading.Condition.wait.__code__


def hold_in_loop(folder: Folder, effects: str, line: Line) -> None:
    """An async engine whose handler blocks the loop, and with it the heartbeat."""

    async def handler(permit: Permit) -> Answer:
        line.say("holding", "0")
        while line.hear() == ASKED:
            line.say("alive")
        return folder.perform_effect(permit, "k")

    async def main() -> None:
        async with folder.async_engine() as engine:
            try:
                result = await engine.run(command("k", effects), handler)
                line.say("told", "replayed" if result.replayed else "ran", result.answer.body.decode())
            except (CommandError, asyncio.CancelledError) as error:
                line.say("told", type(error).__name__)

    asyncio.run(main())


def describe_run(run: Any) -> list[str]:
    try:
        result = run()
    except CommandError as error:
        return [type(error).__name__]
    return ["replayed" if result.replayed else "ran", result.answer.body.decode()]


def ask(folder: Folder, effects: str, line: Line) -> None:
    """Another process, which asks for the same command on demand."""
    with folder.engine() as engine:
        for _ in range(2):
            line.hear()
            act = command("k", effects, wait_seconds=0)
            line.say(
                "told",
                *describe_run(lambda act=act: engine.run(act, lambda permit: folder.perform_effect(permit, "k"))),
            )


def stop_heartbeat(folder: Folder, holder: Worker, task: int) -> StoppedThread:
    """Stop that thread between two beats. Within one it may hold the interpreter's lock, the store's or the file's:
    then all would stop.
    """
    for _ in range(STOPS_MAX):
        wait_until_resting(holder)
        stopped = StoppedThread(task)
        holder.tell(ASKED)
        try:
            [state] = holder.next(2) or [""]
        except AssertionError:
            stopped.resume()
            assert holder.next() in (["resting"], ["beating"])
            continue
        if state == "resting" and not folder.is_locked():
            return stopped
        stopped.resume()
    raise AssertionError("the heartbeat could not be stopped alone")


def wait_until_resting(holder: Worker) -> None:
    """Let the heartbeat come to its rest: on a busy machine it may not have run yet, or be within a long beat."""
    ends = time.monotonic() + RESTS_WITHIN_SECONDS
    while time.monotonic() < ends:
        holder.tell(ASKED)
        if holder.next() == ["resting"]:
            return
        pause(LEASE_SECONDS / 100)
    raise AssertionError("the heartbeat never rests")


def main(options: dict[str, Any]) -> None:
    folder, effects = Folder(options["folder"]), options["effects"]
    hold = {"thread": hold_in_thread, "loop": hold_in_loop}[options["how"]]
    folder.create()
    holder = Worker(lambda line: hold(folder, effects, line))
    asker = Worker(lambda line: ask(folder, effects, line))
    said = holder.wait_for("holding")
    assert said is not None
    stopped = None
    if options["how"] == "thread":
        stopped = stop_heartbeat(folder, holder, int(said[1]))
    else:
        holder.tell(ASKED)
        assert holder.next() == ["alive"]  # and it continues to block its loop
    pause(PAST_THE_LEASE)
    if options["resumed"]:
        assert stopped is not None
        stopped.resume()
        pause(LEASE_SECONDS / 2)  # the next beat is at most a sixth of a lease away
    asker.tell()
    first = asker.wait_for("told")
    holder.tell()
    held = holder.wait_for("told")
    if stopped is not None and not options["resumed"]:
        stopped.resume()
    asker.tell()
    second = asker.wait_for("told")
    ends = [holder.wait(), asker.wait()]
    derived = len(folder.derived_keys()["k"])
    effects_done = folder.effects_by_key()["k"]
    report({"first": first, "held": held, "second": second, "ends": ends, "derived": derived, "effects": effects_done})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
