"""Scenario: holders are stopped in the middle of their handlers, past their lease, and go on later.

All holders are forked before this process opens the store: no connection may cross a fork.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

from semel import Answer, Permit, State
from semel.core.model import Resolution
from semel.errors import CommandError, StoreError, StoreUnavailable
from tests.crash.processes import Line, Worker, pause, report
from tests.crash.work import HEADERS, LEASE_SECONDS, Folder, command, id_of
from verification.history.engines import RecordingEngine

OPERATORS = Answer(200, HEADERS, b"the operator found it")
BUSY_SECONDS = 0.5


def hold(folder: Folder, effects: str, style: str, key: str, line: Line) -> None:
    """Claim, report it, be stopped, do the effect, settle; report what the client would have got."""

    recorder = folder.recorder()

    def handler(permit: Permit) -> Answer:
        line.say("holding")
        line.hear()
        return folder.perform_effect(permit, key, recorder)

    async def handling(permit: Permit) -> Answer:
        return handler(permit)

    async def main() -> Answer:
        async with folder.async_recording(recorder) as engine:
            return (await engine.run(command(key, effects), handling)).answer

    try:
        if style == "async":
            answer = asyncio.run(main())
        else:
            with folder.recording(recorder) as engine:
                answer = engine.run(command(key, effects), handler).answer
        line.say("told", answer.body.decode().replace(" ", "-"))
    except (CommandError, StoreError, asyncio.CancelledError) as error:
        line.say("refused", type(error).__name__)


class Paused:
    """Stopped holders, by key."""

    def __init__(self, folder: Folder, effects: str, places: range) -> None:
        self.holders: dict[str, Worker] = {}
        for place in places:
            key, style = f"{effects}-{place}", ("sync", "async")[place % 2]

            def life(line: Line, key: str = key, style: str = style) -> None:
                hold(folder, effects, style, key, line)

            # One after the other, so that the holder of the file's lock is the stopped process.
            self.holders[key] = holder = Worker(life)
            assert holder.wait_for("holding")
            holder.signal(signal.SIGSTOP)
            while effects != "atomic" and folder.is_locked():
                # It stops in the middle of a renewal, as on a busy machine: that would stop the file's writers too.
                holder.signal(signal.SIGCONT)
                pause(0.01)
                holder.signal(signal.SIGSTOP)
        self._stopped = time.monotonic()

    def outlast(self, seconds: float = 0.1) -> None:
        """Let their leases run out, and a little more."""
        pause(self._stopped + LEASE_SECONDS + seconds - time.monotonic())

    def resume(self) -> dict[str, str]:
        """Let them continue, past their leases, and return what each sent its client."""
        assert time.monotonic() > self._stopped + LEASE_SECONDS
        found = {}
        for holder in self.holders.values():
            holder.signal(signal.SIGCONT)
            holder.tell()
        for key, holder in self.holders.items():
            said = holder.rest()
            assert holder.wait() == 0
            holder.close()
            found[key] = " ".join(said[-1])
        return found


def records(engine: RecordingEngine, keys: list[str]) -> dict[str, tuple[int, int, str]]:
    """State, fence and answer's digest of each: what no superseded holder may change."""
    rows = [engine.read(id_of(key)) for key in keys]
    return {
        key: (row.state, row.fence, (row.answer_digest or b"").hex())
        for key, row in zip(keys, rows, strict=True)
        if row is not None
    }


def idempotent(folder: Folder, count: int) -> dict[str, Any]:
    """Another process takes over; the resumed holders are superseded."""
    paused = Paused(folder, "idempotent", range(count))
    keys = list(paused.holders)
    paused.outlast()
    recorder = folder.recorder()
    with folder.recording(recorder) as engine:
        answers = {}
        for key in keys:

            def handler(permit: Permit, key: str = key) -> Answer:
                return folder.perform_effect(permit, key, recorder)

            answers[key] = engine.run(command(key, "idempotent"), handler).answer.body.decode()
        before = records(engine, keys)
        told = paused.resume()
        return {"answers": answers, "told": told, "before": before, "after": records(engine, keys)}


def external(folder: Folder, count: int) -> dict[str, Any]:
    """Half of them are settled by an operator meanwhile, half only lapse."""
    paused = Paused(folder, "external", range(count))
    keys = list(paused.holders)
    paused.outlast()
    recorder = folder.recorder()
    with folder.recording(recorder) as engine:
        lapsed = engine.perform("lapse", lambda: engine.store.lapse(100))
        fences = {row.id: row.fence for row in lapsed}
        unknown = records(engine, keys)
        resolved = keys[: count // 2]
        for place, key in enumerate(resolved):
            happened = place % 4 < 2  # of either style, both ways
            resolution = Resolution(
                id_of(key), fences[id_of(key)], happened, OPERATORS if happened else None, "test", "looked", True
            )
            engine.resolve(resolution)
        before = records(engine, keys)
        told = paused.resume()
        after = records(engine, keys)
        replays = {}
        for key in keys:
            if after[key][0] == State.SUCCEEDED:
                replays[key] = engine.run(command(key, "external"), refuse_to_run).answer.body.decode()
    return {
        "resolved": resolved,
        "unknown": unknown,
        "before": before,
        "told": told,
        "after": after,
        "replays": replays,
    }


def refuse_to_run(permit: Permit) -> Answer:
    raise AssertionError("this command was done; it must be replayed")


def atomic(folder: Folder, count: int) -> dict[str, Any]:
    """A paused ATOMIC holder stops the file's writers, one after the other; readers go on."""
    with_answer = Worker(lambda line: seed(folder))
    assert with_answer.wait() == 0
    with_answer.close()
    told: dict[str, str] = {}
    waits, replays = [], []
    for place in range(count):
        paused = Paused(folder, "atomic", range(place, place + 1))

        def beside(line: Line, place: int = place) -> None:
            ask_beside(folder, place, line)

        asking = Worker(beside)
        said = asking.rest()
        assert asking.wait() == 0, said
        asking.close()
        waits += [float(words[1]) for words in said if words[0] == "unavailable"]
        replays += [float(words[1]) for words in said if words[0] == "replayed"]
        paused.outlast(0.05)
        told |= paused.resume()
    return {"told": told, "waits": waits, "replays": replays}


def seed(folder: Folder) -> None:
    with folder.engine() as engine:
        engine.run(command("seed", "external"), lambda permit: folder.perform_effect(permit, "seed"))


def ask_beside(folder: Folder, place: int, line: Line) -> None:
    """Ask from another process meanwhile: it gets a refusal within its budget, and replays at once."""
    with folder.engine(f"?busy_seconds={BUSY_SECONDS}") as engine:
        for effects in ("external", "atomic"):
            started = time.monotonic()
            try:
                engine.run(command(f"beside-{place}", effects), refuse_to_run)
            except StoreUnavailable:
                line.say("unavailable", str(time.monotonic() - started))
            started = time.monotonic()
            assert engine.run(command("seed", "external"), refuse_to_run).replayed
            line.say("replayed", str(time.monotonic() - started))


def main(options: dict[str, Any]) -> None:
    scenario = {"idempotent": idempotent, "external": external, "atomic": atomic}[options["effects"]]
    report(scenario(Folder(options["folder"]), options["count"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
