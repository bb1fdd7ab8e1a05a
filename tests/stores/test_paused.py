"""A verb that reads and then writes, stopped before its write until another one has written: both look atomic.

Memory and SQLite have every order of every pair in test_verbs. Here the servers' own statements compare what was read:
one verb is stopped before each of its asks up to its first write or lock, and the other performed whole, by another
process. What they reply, and what the store holds then, must be what some order of whole verbs gives; the memory store
says what that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any, Final, TypeVar

import psycopg
import pytest

from semel.core.flow import Ask, Flow, MakeFlow
from semel.core.model import Purged
from semel.stores.redis.scripts import Calls
from semel.stores.sql.statements import Query
from semel.testing import verbs
from semel.testing.bench import Subject
from semel.testing.clock import START_US, SettableClock
from semel.testing.interleave import MemoryWorld
from semel.testing.verbs import SITUATIONS, VERBS, Situation
from tests.servers import redis
from tests.servers.mariadb import MARK, connect, mariadb
from tests.servers.postgres import postgres, schema
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import postgres_subject
from verification.subjects.redis import redis_subject

T = TypeVar("T")
Stop = Callable[[], None]
TABLES: Final = ("semel_record", "semel_audit", "semel_attention")
PAUSED: Final = (
    *("claim", "settle released", "settle unknown", "give back", "mark_not_kept", "renew", "abandon"),
    *("resolve happened", "resolve did not", "reseal", "lapse", "purge"),
)
BETWEEN: Final = (
    *("claim by a third", "settle succeeded", "settle released", "give back", "mark_not_kept", "renew", "abandon"),
    *("resolve happened", "resolve did not", "reseal", "lapse", "purge"),
)
PASSING: Final = {**verbs.MAY_PASS, "purge": Purged(0, 0, 0, None)}  # which leaves a record to its next walk
_WRITES: Final = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")


class ServerWorld:
    """A server's store, opened by two processes."""

    def __init__(self, subject: Subject, clock: SettableClock) -> None:
        self.clock = clock
        self.store = subject.backend.store
        self._ours = subject.backend.driver
        self._others = subject.elsewhere().driver

    def do(self, make: MakeFlow[T]) -> T:
        reply: T = self._ours.run(make)
        return reply

    def do_elsewhere(self, make: MakeFlow[T]) -> T:
        reply: T = self._others.run(make)
        return reply

    def close(self) -> None:
        self._ours.close()
        self._others.close()

    step: Any = None  # only whole flows


def _pause(make: MakeFlow[T], before: int, act: Stop) -> Flow[T]:
    """Perform a flow, and ``act`` before its ask of that number, unless it has written by then."""
    flow, reply, number = make(), None, 0
    while True:
        try:
            needed = flow.send(reply)
        except StopIteration as stop:
            ended: T = stop.value
            return ended
        if number == before and not _lists(needed):
            act()
        number += before + 1 if _writes(needed) else not _lists(needed)
        reply = yield needed


def _lists(needed: Ask[Any]) -> bool:
    """Whether it lists a part of Redis's records: the purge does so some hundred times, and writes by none of them."""
    return isinstance(needed, Calls) and {call.command for call in needed.calls} == {"ZRANGEBYSCORE"}


def _writes(needed: Ask[Any]) -> bool:
    """Whether it may lock a record. PostgreSQL's and MariaDB's claims write nothing where there is one already."""
    statement = getattr(needed, "statement", None)
    if statement is None:
        return False
    return not isinstance(needed, Query) or (statement.name != "claim" and _WRITES.search(statement.text) is not None)


@pytest.fixture(
    params=["postgresql", pytest.param("mariadb", marks=MARK), "redis"],
)
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[[], ServerWorld]]:
    """Make a world whose store is empty, and whose clock is at its start."""
    clock = SettableClock()
    if request.param == "redis":
        worlds: list[ServerWorld] = []

        def make_anew() -> ServerWorld:
            while worlds:
                worlds.pop().close()
            clock.set(START_US)
            subject = redis_subject("127.0.0.1", redis.valkey(), redis.prefix(), clock)
            world = _open(subject, clock)
            worlds.append(world)
            return world

        yield make_anew
        while worlds:
            worlds.pop().close()
        return
    name = schema()
    subject = (
        postgres_subject(postgres(), name, clock)
        if request.param == "postgresql"
        else mariadb_subject(mariadb(), clock)
    )
    world = _open(subject, clock)
    outside: Any = (
        psycopg.connect(postgres(), autocommit=True, options=f"-c search_path={name}")
        if request.param == "postgresql"
        else connect(mariadb().port, database=mariadb().database)
    )

    def make() -> ServerWorld:
        with outside.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"DELETE FROM {table}")
        clock.set(START_US)
        return world

    with closing(world), closing(outside):
        yield make


def _open(subject: Subject, clock: SettableClock) -> ServerWorld:
    world = ServerWorld(subject, clock)
    world.do(partial(world.store.migrate, "paused", b"none"))
    return world


@pytest.mark.no_cover  # the same lines again and again; the conformance cases measure them
@pytest.mark.parametrize("situation", SITUATIONS[1:], ids=lambda situation: situation.name)
def test_what_came_in_between_is_not_overwritten(make_world: Callable[[], ServerWorld], situation: Situation) -> None:
    # A record whose end has come is gone from Redis by the server's own clock as soon as it is written again.
    left_out = {"reseal"} if situation.name.startswith("tombstone over") else set()
    pairs = [pair for pair in product(PAUSED, BETWEEN) if left_out.isdisjoint(pair)]
    paused = sum(check(make_world, situation, *pair) for pair in pairs)
    assert paused > len(BETWEEN)
    print(f"{situation.name}: {paused} pauses")


def test_a_purge_leaves_a_record_that_is_being_written() -> None:
    """It reads and deletes in one statement on PostgreSQL, so that only a lock comes in between."""
    clock, name = SettableClock(), schema()
    with closing(_open(postgres_subject(postgres(), name, clock), clock)) as world:
        verbs.prepare(lambda: world, SITUATIONS[-1], verbs.first_grant(SITUATIONS[-1]))
        purge = partial(world.store.purge, None, 10)
        with psycopg.connect(postgres(), options=f"-c search_path={name}") as granted:
            granted.execute("UPDATE semel_record SET state = 2, answer_until = NULL, forget_after = NULL")
            assert world.do(purge) == Purged(1, 0, 0, None)
        assert world.do(purge) == Purged(1, 0, 0, None)
        [row] = world.do(partial(world.store.read, (verbs.MINE.id,)))
        assert row is not None


def check(make: Callable[[], ServerWorld], situation: Situation, first: str, second: str) -> int:
    """Perform the second verb while the first is stopped, at each place; how many there were."""
    grant = verbs.first_grant(situation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs, "MAY_PASS", PASSING)
        whole = set(map(_as_numbers, verbs.whole_results(MemoryWorld, situation, (first, second))))
    for before in range(1, 20):
        world = make()
        verbs.prepare(partial(_same, world), situation, grant)
        others: list[Any] = []

        def act(world: ServerWorld = world, others: list[Any] = others) -> None:
            others.append(world.do_elsewhere(VERBS[second](world.store, grant)))

        reply = world.do(partial(_pause, VERBS[first](world.store, grant), before, act))
        if not others:
            return before - 1
        seen = _as_numbers(verbs.result_text([reply, *others], world))
        assert seen in whole, f"{first}, stopped before ask {before} for {second}: {seen}\nwhole verbs give: {whole}"
    raise AssertionError(f"{first} never ends")


def _same(world: ServerWorld) -> ServerWorld:
    return world


def _as_numbers(text: str) -> str:
    """Without the names of states and kinds, which are plain numbers in a server's record."""
    return re.sub(r"<[A-Z]\w+\.[A-Z_]+: (\d+)>", r"\1", text)
