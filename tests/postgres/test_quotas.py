"""Quotas on PostgreSQL: exact between processes, without a further round trip, without a deadlock."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from semel import Answer, Command, Engine, Permit, Policy, Quota
from semel.core.model import Allowance, Claim, Proceed, QuotaExceeded
from semel.core.outcomes import Refused
from semel.errors import QuotaExceededError
from semel.stores.postgres.url import postgres_backend
from semel.testing.attempts import attempt, bits
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Fellow, Outside, Writes
from tests.postgres.test_round_trips import words
from tests.servers.postgres import schema
from tests.servers.relay import Relay

MakeFellow = Callable[..., Fellow]
MINUTE = Quota(new_keys=1000, per_seconds=60)
COUNTED = Policy(quota=MINUTE)
ATOMIC = Policy(effects="atomic", quota=MINUTE)
FEW = Policy(effects="atomic", quota=Quota(new_keys=2, per_seconds=60))


async def handler(permit: Permit, db: Writes) -> Answer:
    return MADE


async def writer(permit: Permit, db: Writes) -> Answer:
    await db.execute("SELECT 'business'")
    return MADE


def claim_quota(key: str, caller: str, new_keys: int) -> Claim:
    return attempt(key)._replace(quota=Allowance(bits("quota", caller), new_keys, 1_000_000_000, 900, 900))


def test_processes_that_race_store_no_more_than_the_quota(conninfo: str, outside: Outside) -> None:
    """Four of them send batches of three callers' keys, each in an order of its own: exact, and without a deadlock."""

    def flood(number: int) -> None:
        pick = random.Random(number)
        with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
            for batch in range(12):
                claims = [
                    claim_quota(f"{caller}-{number}-{batch}-{key}", caller, 100) for caller in "abc" for key in range(5)
                ]
                pick.shuffle(claims)
                verdicts = engine.perform("claim", lambda claims=claims: engine.store.claim(claims))  # type: ignore[misc]
                assert {type(verdict) for verdict in verdicts} <= {Proceed, QuotaExceeded}

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(flood, range(4)))
    assert outside.fetch("SELECT count(*) FROM semel_record") == [(300,)]
    assert [len(ids) for (ids,) in outside.fetch("SELECT ids FROM semel_quota")] == [100, 100, 100]


def test_a_counted_command_is_two_round_trips_and_a_replay_one(make_fellow: MakeFellow, relay: Relay) -> None:
    fellow = make_fellow(conninfo=relay.conninfo())
    for number in range(2):
        fellow.run(command(f"warm-{number}", policy=COUNTED), handler)
    fellow.run(command("warm-0", policy=COUNTED), handler)
    with relay.counting() as fresh:
        fellow.run(command("key", policy=COUNTED), handler)
    with relay.counting() as replayed:
        assert fellow.run(command("key", policy=COUNTED), handler).replayed
    assert words(fresh) == ["claim", "settle"]
    assert words(replayed) == ["claim" if fellow.runner is None else "look"]


def test_an_atomic_command_takes_its_place_in_one_round_trip_before_it_begins(
    make_fellow: MakeFellow, relay: Relay, outside: Outside
) -> None:
    fellow = make_fellow(conninfo=relay.conninfo())
    for number in range(3):
        fellow.run(command(f"warm-{number}", policy=ATOMIC), writer)
    with relay.counting() as fresh:
        fellow.run(command("key", policy=ATOMIC), writer)
    assert len(fresh) == 1 + 3
    assert "semel_quota" in fresh[0][-1]
    assert outside.fetch("SELECT sum(c) FROM semel_quota, unnest(counts) AS c") == [(4,)]


def test_atomic_commands_are_refused_before_they_begin(fellow: Fellow, outside: Outside) -> None:
    fellow.run(command("a", policy=FEW), writer)

    async def refuses(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        return Answer(422, (), b"no")

    fellow.run(command("b", policy=FEW), refuses)
    with pytest.raises(QuotaExceededError):
        fellow.run(command("c", policy=FEW), writer)
    assert fellow.run(command("a", policy=FEW), writer).replayed
    assert fellow.run(command("b", policy=FEW), writer).answer.status == 422
    assert (len(outside.states), outside.rows()) == (2, [])


def test_a_retry_of_a_running_atomic_command_takes_no_place(make_fellow: MakeFellow, outside: Outside) -> None:
    one, other = make_fellow(), make_fellow()
    permit = one.tell(_claiming(one))
    assert isinstance(permit, Permit)
    for _ in range(3):
        assert not isinstance(other.tell(_claiming(other)), QuotaExceeded)
    assert outside.fetch("SELECT sum(c) FROM semel_quota, unnest(counts) AS c") == [(1,)]
    one.tell(_settling(one, permit))


def test_a_claim_that_waits_for_a_reference_takes_one_place(make_fellow: MakeFellow, outside: Outside) -> None:
    """However often it looks meanwhile; and a plain command that meets a taken reference takes none."""
    holder, waiter = make_fellow(), make_fellow()
    permit = holder.tell(_claiming(holder, replace(command("a", policy=ATOMIC), business_ref="inv-1")))
    assert isinstance(permit, Permit)
    met = waiter.tell(_claiming(waiter, replace(command("b", policy=ATOMIC), business_ref="inv-1"), wait_seconds=0.3))
    assert not isinstance(met, Permit | QuotaExceeded)
    counted = "SELECT sum(c) FROM semel_quota, unnest(counts) AS c"
    assert outside.fetch(counted) == [(2,)]
    holder.tell(_settling(holder, permit))
    held = holder.tell(_claiming(holder, replace(command("c", policy=COUNTED), business_ref="inv-2")))
    assert isinstance(held, Permit)
    before = outside.fetch(counted)
    other = waiter.tell(_claiming(waiter, replace(command("d", policy=COUNTED, caller="alice"), business_ref="inv-2")))
    assert not isinstance(other, Permit | QuotaExceeded)
    assert outside.fetch(counted) == before
    holder.tell(_settling(holder, held))


async def _claiming(fellow: Fellow, what: Command | None = None, *, wait_seconds: float = 0) -> object:
    met = fellow.engine.claim(what or command("a", policy=FEW), wait_seconds=wait_seconds)
    return met if fellow.runner is None else await met


async def _settling(fellow: Fellow, permit: Permit) -> object:
    reply = fellow.engine.settle(permit, Refused(Answer(409, (), b"no")))
    return reply if fellow.runner is None else await reply


def test_a_caller_whose_counts_are_old_is_forgotten_and_one_with_unknown_outcomes_is_not(
    conninfo: str, outside: Outside
) -> None:
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
        claims = [claim_quota("x", "gone", 5), claim_quota("y", "doubtful", 5)]
        engine.perform("claim", lambda: engine.store.claim(claims))
        outside.fetch(
            "UPDATE semel_record SET state = 3 WHERE id = (SELECT ids[1] FROM semel_quota LIMIT 1) RETURNING 1"
        )
        outside.fetch("UPDATE semel_record SET state = 6 WHERE state = 2 RETURNING 1")
        outside.fetch("UPDATE semel_quota SET slice = slice - 22, since = ARRAY[0] RETURNING 1")
        assert engine.perform("purge", engine.store.forget_quotas) == 1
    assert outside.fetch("SELECT count(*) FROM semel_quota") == [(1,)]
    assert outside.fetch("SELECT r.state FROM semel_quota AS q JOIN semel_record AS r ON r.id = q.ids[1]") == [(6,)]


def test_a_database_without_the_table_says_to_migrate(conninfo: str, outside: Outside) -> None:
    outside.connection.execute("DROP TABLE semel_quota")
    with closing(Engine(postgres_backend(conninfo, schema=schema()), quota=MINUTE)) as engine:
        with pytest.raises(Exception, match="semel migrate"):
            engine.run(command("a"), lambda permit: MADE)
        assert engine.perform("purge", engine.store.forget_quotas) == 0
        assert engine.migrate() == ["quotas"]
        assert not engine.run(command("a"), lambda permit: MADE).replayed
        assert engine.perform("purge", engine.store.forget_quotas) == 0
