"""What the workers of a soak ask for: commands on a window of keys, with every end that a handler can have.

The effect belongs where its kind belongs: a row written on the permit's connection (ATOMIC), or a line of the history
itself, which survives its process (the others).
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from inspect import isawaitable
from typing import Any, Final

from semel import Answer, Command, Effects, NothingHappened, Permit, Policy, Scope
from semel.core.identity import record_id
from verification.history.recorder import Recorder
from verification.soak.ground import Row, insert

LEASE_SECONDS: Final = 1.0  # the shortest that a policy allows
SCOPE: Final = Scope("soak", "worker", "pay")
KEYS_AT_ONCE: Final = 24  # a worker's window; the next worker's begins a few keys later, so that most keys meet again
KEYS_APART: Final = 5
OTHER_PAYLOADS: Final = 0.03


class HandlerFailed(Exception):
    """What a handler raises after its effect, or where it could not be made."""


def soak_command(key: str, effects: str, request: int = 0) -> Command:
    """The command of a key: the same in every process."""
    policy = Policy.of(
        effects=effects, lease_seconds=LEASE_SECONDS, deadline_seconds=60, wait_seconds=0, attempts_max=1000
    )
    return Command(SCOPE, key, hashlib.sha256(f"{key}:{request}".encode()).digest(), "soak", policy)


def id_of(key: str) -> bytes:
    """The record that this key has."""
    return record_id(SCOPE, key, None)


def windowed_commands(worker: int, effects: str, rng: random.Random) -> Iterator[Command]:
    """What a worker asks for, while its parent lives: keys of its window, now and then with another payload."""
    parent = os.getppid()
    while os.getppid() == parent:
        key = f"k{worker * KEYS_APART + rng.randrange(KEYS_AT_ONCE)}"
        yield soak_command(key, effects, int(rng.random() < OTHER_PAYLOADS))


def window(workers: int) -> list[str]:
    """Return all keys that so many workers have asked for."""
    return [f"k{place}" for place in range((workers - 1) * KEYS_APART + KEYS_AT_ONCE)] if workers else []


def acting(recorder: Recorder, rng: random.Random) -> Callable[[Permit], Answer]:
    """A handler for a thread."""

    def handler(permit: Permit) -> Answer:
        story = _story(permit, recorder, rng)
        try:
            text = next(story)
            try:
                _execute(permit.connection, text)
            except Exception as error:  # each library has its own
                raise HandlerFailed from error
            next(story)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        raise AssertionError("a story writes once")

    return handler


def acting_async(recorder: Recorder, rng: random.Random) -> Callable[[Permit], Awaitable[Answer]]:
    """The same handler for an event loop, whose connections may have to be awaited."""

    async def handler(permit: Permit) -> Answer:
        story = _story(permit, recorder, rng)
        try:
            text = next(story)
            try:
                done = _execute(permit.connection, text)
                if isawaitable(done):
                    await done
            except Exception as error:  # each library has its own
                raise HandlerFailed from error
            next(story)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        raise AssertionError("a story writes once")

    return handler


def _story(permit: Permit, recorder: Recorder, rng: random.Random) -> Generator[str, None, Answer]:
    """Mostly it succeeds; it may refuse, prove that nothing happened, or fail after its effect. Yields its write."""
    chance = rng.random()
    if chance < 0.05:
        return Answer(422, (), b"refused")
    if chance < 0.08:
        raise NothingHappened
    body = rng.randbytes(8)
    answer = Answer(201, (), body)
    if permit.effects is Effects.ATOMIC:
        yield insert(permit.grant.id, permit.generation, body)
    else:
        recorder.effect(permit, answer)
    if chance < 0.10:
        raise HandlerFailed
    return answer


def _execute(connection: Any, text: str) -> Any:
    """Of a connection, or of its cursor where that library's connections cannot execute."""
    execute = getattr(connection, "execute", None) or connection.cursor().execute
    return execute(text)


def note_committed(rows: Iterable[Row], recorder: Recorder) -> None:
    """Write the rows that ATOMIC commands have committed into the history."""
    for id, generation, body in rows:
        answer = Answer(201, (), body)
        recorder.note_effect(id, effects="atomic", generation=generation, derived=None, answer=answer)
