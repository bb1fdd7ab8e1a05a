"""A process looks before it claims where it knows of an answer; a claim would have given the same verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from semel import AsyncEngine, Command, Permit, Policy
from semel.core.model import KeyExpired, KeyReused, Replay, Unreadable
from semel.core.outcomes import Refused, Released, Succeeded
from semel.engine import runner
from semel.errors import StatementRefused, StoreError, StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.testing.clock import SettableClock
from tests.engine.shells import MADE, command
from tests.servers import mariadb, redis
from tests.servers.needed import needs
from tests.servers.postgres import postgres, schema
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import postgres_subject
from verification.subjects.redis import redis_subject

STORES = ["psycopg", "asyncpg", pytest.param("asyncmy", marks=needs("mariadb")), "redis"]
BRIEF = Policy(lease_seconds=10, deadline_seconds=60, answer_seconds=60, tombstone_seconds=120)


class Process:
    """An engine, and the verbs that its store was asked one request of."""

    def __init__(self, backend: Backend) -> None:
        self.engine = AsyncEngine(backend)
        self.verbs: list[str] = []
        self.refused: dict[str, StoreError] = {}  # verbs that the store refuses
        performer: Any = self.engine._performer
        ask = performer.ask_one

        def note_and_ask(verb: str, many: Any, request: Any) -> Awaitable[Any]:
            self.verbs.append(verb)
            if verb in self.refused:
                raise self.refused[verb]
            reply: Awaitable[Any] = ask(verb, many, request)
            return reply

        performer.ask_one = note_and_ask

    async def claim_noting_verbs(self, what: Command) -> tuple[Any, list[str]]:
        """Claim; return the reply and the verbs that the store was asked."""
        self.verbs.clear()
        return await self.engine.claim(what, wait_seconds=0), list(self.verbs)

    async def complete(self, what: Command) -> None:
        permit = await self.engine.claim(what)
        assert isinstance(permit, Permit)
        await self.engine.settle(permit, Succeeded(MADE))


def play(store: str, story: Callable[[Process, SettableClock], Awaitable[None]]) -> None:
    clock = SettableClock()
    if store == "asyncmy":
        backend = mariadb_subject(mariadb.mariadb(), clock).backend
    elif store == "redis":
        backend = redis_subject("127.0.0.1", redis.valkey(), redis.prefix(), clock).backend
    else:
        backend = postgres_subject(postgres(), schema(), clock, asyncpg=store == "asyncpg").backend

    async def run() -> None:
        process = Process(backend)
        await process.engine.migrate()
        async with process.engine:
            await story(process, clock)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("effects", "store"), [each for each in product(["external", "atomic"], STORES) if each != ("atomic", "redis")]
)
def test_an_answer_that_this_process_gave_is_replayed_without_a_claim(effects: str, store: str) -> None:
    async def story(process: Process, clock: SettableClock) -> None:
        what = command(policy=Policy.of(effects=effects))
        await process.complete(what)
        for _ in range(2):
            met, verbs = await process.claim_noting_verbs(what)
            assert isinstance(met, Replay)
            assert (met.answer, verbs) == (MADE, ["look_kept"])
        process.engine._performer.answered.clear()  # another process: it learns of the answer by a claim
        met, verbs = await process.claim_noting_verbs(what)
        assert isinstance(met, Replay)
        assert "look_kept" not in verbs

    play(store, story)


@pytest.mark.parametrize("store", STORES)
def test_an_answer_that_no_longer_applies_leads_to_a_claim(store: str) -> None:
    async def story(process: Process, clock: SettableClock) -> None:
        what = command(policy=BRIEF)
        await process.complete(what)
        other = command(request=1, policy=BRIEF)
        for request, verdict in ((other, KeyReused), (replace(what, recipe="2.tests"), Unreadable)):
            met, verbs = await process.claim_noting_verbs(request)
            assert isinstance(met, verdict)
            assert verbs[:2] == ["look_kept", "claim"]
            assert process.engine._performer.answered == set()
            assert isinstance((await process.claim_noting_verbs(what))[0], Replay)  # it is known again
            assert len(process.engine._performer.answered) == 1
        clock.advance(seconds=61)
        met, verbs = await process.claim_noting_verbs(what)
        assert isinstance(met, KeyExpired)
        assert verbs[:2] == ["look_kept", "claim"]

    play(store, story)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("refusal", [StatementRefused("no plan"), StoreUnavailable("too many calls")])
def test_a_failed_look_falls_back_to_the_claim(refusal: StoreUnavailable, store: str) -> None:
    async def story(process: Process, clock: SettableClock) -> None:
        what = command()
        await process.complete(what)
        process.refused["look_kept"] = refusal
        met, verbs = await process.claim_noting_verbs(what)
        assert isinstance(met, Replay)
        assert (met.answer, verbs) == (MADE, ["look_kept", "claim"])

    play(store, story)


@pytest.mark.parametrize("store", STORES)
def test_a_look_that_the_store_does_not_answer_in_time_is_not_waited_for_twice(store: str) -> None:
    async def story(process: Process, clock: SettableClock) -> None:
        what = command()
        await process.complete(what)
        process.refused["look_kept"] = StoreTimeout("no answer")
        with pytest.raises(StoreTimeout, match="no answer"):
            await process.claim_noting_verbs(what)
        assert process.verbs == ["look_kept"]

    play(store, story)


@pytest.mark.parametrize("store", STORES)
def test_an_answer_deleted_from_the_store_is_not_replayed(store: str) -> None:
    """Its record was purged, or deleted by hand: the command is new, here as in every other process."""

    async def story(process: Process, clock: SettableClock) -> None:
        what, engine = command(policy=BRIEF), process.engine
        await process.complete(what)
        clock.advance(seconds=120 + 600)
        await engine.perform("purge", lambda: engine.store.purge(None, 10))
        met, verbs = await process.claim_noting_verbs(what)
        assert isinstance(met, Permit)
        assert verbs == ["look_kept", "claim"]
        await engine.settle(met, Refused(MADE._replace(status=409, body=b"no")))
        met, verbs = await process.claim_noting_verbs(what)
        assert isinstance(met, Replay)
        assert (met.answer.body, verbs) == (b"no", ["look_kept"])

    play(store, story)


@pytest.mark.parametrize("store", STORES)
def test_only_a_kept_answer_is_remembered(store: str) -> None:
    async def story(process: Process, clock: SettableClock) -> None:
        engine = process.engine
        for key, outcome in (("freed", Released("nothing", proven=True)), ("marked", Succeeded(MADE))):
            permit = await engine.claim(command(key))
            assert isinstance(permit, Permit)
            if key == "marked":
                await engine.mark_not_kept(permit)
            await engine.settle(permit, outcome)
        assert engine._performer.answered == set()

    play(store, story)


def test_a_process_that_drains_while_it_looks_claims_nothing() -> None:
    async def story(process: Process, clock: SettableClock) -> None:
        what, engine = command(policy=BRIEF), process.engine
        await process.complete(what)
        clock.advance(seconds=120 + 600)
        await engine.perform("purge", lambda: engine.store.purge(None, 10))
        asked = asyncio.ensure_future(process.claim_noting_verbs(what))
        await asyncio.sleep(0)
        assert process.verbs == ["look_kept"]
        assert await engine.drain(0)
        with pytest.raises(StoreUnavailable, match="shutting down"):
            await asked
        assert process.verbs == ["look_kept"]

    play("psycopg", story)


def test_the_number_of_remembered_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ANSWERED_MAX", 3)

    async def story(process: Process, clock: SettableClock) -> None:
        for number in range(5):
            await process.complete(command(f"{number}"))
            assert 0 < len(process.engine._performer.answered) <= 3
        for number in range(5):
            assert isinstance((await process.claim_noting_verbs(command(f"{number}")))[0], Replay)

    play("asyncpg", story)
