"""Scenario: holders are stopped in the middle of their handlers, past their lease, and go on later.

All holders are forked before this process opens the store: no connection may cross a fork.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from semel import Answer, Engine, Permit, State
from semel.errors import CommandError, StoreError, StoreUnavailable
from semel.flow import Flow
from semel.model import Resolution, Resolving
from tests.crash.processes import Line, Worker, pause, report
from tests.crash.work import HEADERS, LEASE_SECONDS, Folder, command, id_of

OPERATORS = Answer(200, HEADERS, b"the operator found it")
BUSY_SECONDS = 0.5


def hold(folder: Folder, effects: str, style: str, key: str, line: Line) -> None:
    """Claim, say so, be stopped, do the effect, settle; say what the client would have been told."""

    def handler(permit: Permit) -> Answer:
        line.say("holding")
        line.hear()
        return folder.perform_effect(permit, key)

    async def handling(permit: Permit) -> Answer:
        return handler(permit)

    async def main() -> Answer:
        async with folder.async_engine() as engine:
            return (await engine.run(command(key, effects), handling)).answer

    try:
        if style == "async":
            answer = asyncio.run(main())
        else:
            with folder.engine() as engine:
                answer = engine.run(command(key, effects), handler).answer
        line.say("told", answer.body.decode().replace(" ", "-"))
    except (CommandError, StoreError, asyncio.CancelledError) as error:
        line.say("refused", type(error).__name__)


class Paused:
    """Holders that stand still, by key."""

    def __init__(self, folder: Folder, effects: str, count: int) -> None:
        self.holders: dict[str, Worker] = {}
        for place in range(count):
            key, style = f"{effects}-{place}", ("sync", "async")[place % 2]

            def life(line: Line, key: str = key, style: str = style) -> None:
                hold(folder, effects, style, key, line)

            self.holders[key] = Worker(life)
        for holder in self.holders.values():
            assert holder.wait_for("holding")
            holder.signal(signal.SIGSTOP)

    def resume(self) -> dict[str, str]:
        """Let them go on, and hear what each told its client."""
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


def records(engine: Engine, keys: list[str]) -> dict[str, tuple[int, int, str]]:
    """State, fence and answer's digest of each: what no superseded holder may change."""
    rows = engine.perform("read", lambda: engine.store.read([id_of(key) for key in keys]))
    return {
        key: (row.state, row.fence, (row.answer_digest or b"").hex())
        for key, row in zip(keys, rows, strict=True)
        if row is not None
    }


def idempotent(folder: Folder, count: int) -> dict[str, Any]:
    """Another process takes over; the resumed holders are superseded."""
    paused = Paused(folder, "idempotent", count)
    keys = list(paused.holders)
    pause(LEASE_SECONDS + 0.1)
    with folder.engine() as engine:
        answers = {}
        for key in keys:

            def handler(permit: Permit, key: str = key) -> Answer:
                return folder.perform_effect(permit, key)

            answers[key] = engine.run(command(key, "idempotent"), handler).answer.body.decode()
        before = records(engine, keys)
        told = paused.resume()
        return {"answers": answers, "told": told, "before": before, "after": records(engine, keys)}


def external(folder: Folder, count: int) -> dict[str, Any]:
    """Half of them are settled by an operator meanwhile, half only lapse."""
    paused = Paused(folder, "external", count)
    keys = list(paused.holders)
    pause(LEASE_SECONDS + 0.1)
    with folder.engine() as engine:
        lapsed = engine.perform("lapse", lambda: engine.store.lapse(100))
        fences = {row.id: row.fence for row in lapsed}
        unknown = records(engine, keys)
        resolved = keys[: count // 2]
        for place, key in enumerate(resolved):
            happened = place % 4 < 2  # of either style, both ways
            word = Resolution(
                id_of(key), fences[id_of(key)], happened, OPERATORS if happened else None, "test", "looked", True
            )
            engine.perform("resolve", resolving(engine, word))
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


def resolving(engine: Engine, word: Resolution) -> Callable[[], Flow[Resolving]]:
    return lambda: engine.store.resolve(word)


def refuse_to_run(permit: Permit) -> Answer:
    raise AssertionError("this command was done; it must be replayed")


def atomic(folder: Folder, count: int) -> dict[str, Any]:
    """A paused ATOMIC holder stops the file's writers, one after the other; readers go on."""
    with_answer = Worker(lambda line: seed(folder))
    assert with_answer.wait() == 0
    with_answer.close()
    told, waits, replays = {}, [], []
    for place in range(count):
        paused = Paused(folder, "atomic", 1)
        [key] = paused.holders

        def beside(line: Line, place: int = place) -> None:
            ask_beside(folder, place, line)

        asking = Worker(beside)
        said = asking.rest()
        assert asking.wait() == 0, said
        asking.close()
        waits += [float(words[1]) for words in said if words[0] == "unavailable"]
        replays += [float(words[1]) for words in said if words[0] == "replayed"]
        pause(LEASE_SECONDS + 0.05 - sum(waits[-2:]))
        told[f"{key}-{place}"] = next(iter(paused.resume().values()))
        folder.sql("DELETE FROM semel_record WHERE id = ?", id_of(key))
    return {"told": told, "waits": waits, "replays": replays}


def seed(folder: Folder) -> None:
    with folder.engine() as engine:
        engine.run(command("seed", "external"), lambda permit: folder.perform_effect(permit, "seed"))


def ask_beside(folder: Folder, place: int, line: Line) -> None:
    """What another process gets meanwhile: a refusal within its budget, and its replays at once."""
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
