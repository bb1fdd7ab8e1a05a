"""Budgets of what a request costs in Python bytecodes: they only go down, on a machine under any load."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.bytecodes import BODIES, DRIVERS, KINDS, SURFACES, Counted, count
from semel.core.decide import KEPT_COLUMNS, first_grant
from semel.core.flow import Flow, MakeFlow, perform
from semel.core.model import Record, Replay
from semel.core.settle import settle_row
from semel.stores.mariadb.protocol import converse
from semel.stores.mariadb.store import MariadbStore
from semel.stores.memory.store import grant_row
from semel.stores.postgres.store import PostgresStore
from semel.stores.redis.layout import encode
from semel.stores.redis.store import RedisStore
from semel.stores.sql.statements import ExecuteMany
from semel.stores.sqlite.bundles import BUNDLES
from semel.stores.sqlite.job import RequestJob, advance_together, settle_jobs
from semel.stores.sqlite.store import SqliteStore
from semel.testing.attempts import attempt, settlement
from tests.servers import mariadb, postgres
from tests.servers import redis as servers
from tests.servers.schemas import migrated_schema
from verification.subjects.mariadb import mariadb_subject

# Measured by `python -m bench.bytecodes` on Python 3.11, and a little room. Later versions of Python divide the same
# work into other instructions.
BUDGETS = {
    ("asgi", "fresh"): 1_275,
    ("asgi", "replay"): 740,
    ("asgi", "refused"): 3_645,
    ("asgi", "failed"): 1_990,
    ("asgi", "unprotected"): 83,
    ("starlette", "fresh"): 1_545,
    ("starlette", "replay"): 1_200,
    ("starlette", "refused"): 4_095,
    ("starlette", "failed"): 2_450,
    ("starlette", "unprotected"): 190,
    ("fastapi", "fresh"): 1_920,
    ("fastapi", "replay"): 1_575,
    ("fastapi", "refused"): 4_470,
    ("fastapi", "failed"): 2_830,
    ("fastapi", "unprotected"): 565,
}
BODY_BUDGETS = {"late": 1_475, "letters": 1_275, "decimals": 1_530}  # of fresh commands with such a body
# What one fresh command and one replay may spend in each room.
ROOMS = {
    "fresh": {"semel.http": 858, "semel.engine": 212, "semel.core": 82, "semel.stores": 108, "semel": 5},
    "replay": {"semel.http": 570, "semel.engine": 60, "semel.core": 32, "semel.stores": 80, "semel": 5},
}
SQLITE_REPLAY = 960
SQLITE_EACH = {"claim": 292, "settle": 252}  # of one more in a tick, from the queue to its caller
REDIS = {"fresh": 5_150, "replay": 2_620}  # with the whole of its round trips, which come together otherwise
REDIS_EACH = {"claim": 200, "settle": 197, "replay": 350}  # of one more in a batch
SERVERS = {
    ("psycopg", "fresh"): 6_050,
    ("psycopg", "replay"): 2_620,
    ("psycopg", "atomic"): 6_670,
    ("psycopg", "atomic-replay"): 2_640,
    ("asyncpg", "fresh"): 4_760,
    ("asyncpg", "replay"): 2_100,
    ("asyncpg", "atomic"): 5_520,
    ("asyncpg", "atomic-replay"): 2_120,
    ("mariadb", "fresh"): 5_340,
    ("mariadb", "replay"): 2_400,
    ("mariadb", "atomic"): 5_830,
    ("mariadb", "atomic-replay"): 2_420,
}
POSTGRES_EACH = {"claim": 110, "settle": 28, "replay": 255, "look": 205}  # of one more in a batch of like commands
MARIADB_EACH = {"claim": 390, "settle": 80, "replay": 700, "look": 232}  # with its part of the text
ROOM_OF_LATER_PYTHONS = 1.0 if sys.version_info < (3, 12) else 1.3


def count_once(surface: str, url: str, kind: str) -> Counted:
    return asyncio.run(count(surface, url, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surface", SURFACES)
def test_a_request_on_the_memory_store_stays_within_its_budget(surface: str, kind: str) -> None:
    found = count_once(surface, "memory://?persistence=none", kind)
    assert found.total() <= BUDGETS[surface, kind] * ROOM_OF_LATER_PYTHONS, found


@pytest.mark.parametrize("kind", BODIES)
def test_an_unusual_body_stays_within_its_budget(kind: str) -> None:
    found = count_once("asgi", "memory://?persistence=none", kind)
    assert found.total() <= BODY_BUDGETS[kind] * ROOM_OF_LATER_PYTHONS, found


@pytest.mark.parametrize("kind", ROOMS)
def test_every_room_stays_within_its_share(kind: str) -> None:
    found = count_once("asgi", "memory://?persistence=none", kind)
    over = {room: found[room] for room, most in ROOMS[kind].items() if found[room] > most * ROOM_OF_LATER_PYTHONS}
    assert not over


def test_a_replay_from_sqlite_stays_within_its_budget(tmp_path: Path) -> None:
    found = count_once("asgi", f"sqlite:///{tmp_path / 'semel.db'}", "replay")
    assert found.total() <= SQLITE_REPLAY * ROOM_OF_LATER_PYTHONS, found


@pytest.mark.parametrize("verb", SQLITE_EACH)
def test_one_more_request_in_a_tick_of_sqlite_stays_within_its_budget(verb: str) -> None:
    store, now = SqliteStore(), 1_700_000_000_000_000
    claims = [attempt(f"k{n}", nonce=n) for n in range(21)]
    requests: list[Any] = list(claims) if verb == "claim" else [settlement(first_grant(each, now)) for each in claims]
    many: Any = store.claim_unseen if verb == "claim" else store.settle

    def answer(needed: Any) -> int:
        return len(needed.rows) if isinstance(needed, ExecuteMany) else now

    def count_opcodes(number: int, loop: asyncio.AbstractEventLoop) -> int:
        counted = Counted()
        with counted.counting():
            bundle = BUNDLES[many.__func__]
            jobs = [RequestJob(bundle, many, each, 0.0, loop) for each in requests[:number] if bundle.fits(each)]
            assert advance_together(jobs, answer)
            settle_jobs(jobs)
        assert all(job.future.done() for job in jobs)
        return counted.total()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        count_opcodes(21, loop)
        return count_opcodes(21, loop) - count_opcodes(20, loop)

    assert asyncio.run(main()) <= SQLITE_EACH[verb] * ROOM_OF_LATER_PYTHONS


@pytest.mark.parametrize("kind", REDIS)
def test_a_request_on_redis_stays_within_its_budget(kind: str) -> None:
    url = f"redis://127.0.0.1:{servers.valkey()}/0?prefix={servers.prefix()}"
    found = count_once("asgi", url, kind)
    assert found.total() <= REDIS[kind] * ROOM_OF_LATER_PYTHONS, found


def flow_of(flow: Flow[list[Any]], reply: Callable[[Any], list[Any]]) -> tuple[list[Any], int]:
    """Run a flow; return its result and its bytecodes."""
    seen = Counted()
    with seen.counting():
        found = perform(flow, reply)
    return found, seen.total()


def batch_costs(many: int) -> dict[str, int]:
    """What batches of so many claims, settlements and replays cost the Redis store, whose server is not there."""
    store, now = RedisStore(), 1_700_000_000_000_000
    claims = [attempt(key=f"{key}") for key in range(many)]
    found, claim = flow_of(store.claim(claims), lambda calls: [[now, *range(now, now + many)]])
    settlements = [settlement(verdict.grant) for verdict in found]
    _, settle = flow_of(store.settle(settlements), lambda calls: [[1] * many])
    rows = [grant_row(None, each, verdict.grant) for each, verdict in zip(claims, found, strict=True)]
    kept = [settle_row(row, each, now)[1] for row, each in zip(rows, settlements, strict=True)]
    strings = [encode(row) for row in kept if row is not None]
    found, replay = flow_of(store.claim(claims), lambda calls: [[now, *strings]])
    assert {type(verdict) for verdict in found} == {Replay}
    return {"claim": claim, "settle": settle, "replay": replay}


@pytest.mark.parametrize("kind", REDIS_EACH)
def test_one_more_of_a_batch_on_redis_stays_within_its_budget(kind: str) -> None:
    batch_costs(3)  # what is remembered is remembered
    each = (batch_costs(40)[kind] - batch_costs(8)[kind]) / 32
    assert each <= REDIS_EACH[kind] * ROOM_OF_LATER_PYTHONS, each


@pytest.mark.parametrize(
    ("driver", "kind"), [pytest.param(*cell, marks=[mariadb.MARK] if "mariadb" in cell else []) for cell in SERVERS]
)
def test_a_request_on_a_database_server_stays_within_its_budget(driver: str, kind: str) -> None:
    """Alone, so that a batch is of one; what the libraries execute themselves is not counted."""
    if driver == "mariadb":
        mariadb_subject(mariadb.mariadb(), None)  # an empty database
        url = mariadb.url(mariadb.mariadb(), "?persistence=none")
    else:
        schema = postgres.schema()
        migrated_schema(postgres.postgres(), schema)
        url = f"{DRIVERS[driver]}{postgres.postgres().removeprefix('postgresql://')}?schema={schema}&persistence=none"
    found = count_once("asgi", url, kind)
    assert found.total() <= SERVERS[driver, kind] * ROOM_OF_LATER_PYTHONS, found


def postgres_batch_costs(many: int) -> dict[str, int]:
    """What batches of so many claims, settlements and replays cost the PostgreSQL store, whose server is not there."""
    store, now = PostgresStore(), 1_700_000_000_000_000
    claims = [attempt(key=f"{key}") for key in range(many)]
    nothing = [None] * (len(Record._fields) - 1)
    found, claim = flow_of(store.claim(claims), lambda query: [(now, each.id, *nothing) for each in claims])
    settlements = [settlement(verdict.grant) for verdict in found]
    _, settle = flow_of(store.settle(settlements), lambda query: [(each.id,) for each in settlements])
    rows = [grant_row(None, each, verdict.grant) for each, verdict in zip(claims, found, strict=True)]
    kept = [settle_row(row, each, now)[1] for row, each in zip(rows, settlements, strict=True)]
    found, replay = flow_of(store.claim(claims), lambda query: [(now, *row) for row in kept if row is not None])
    assert {type(verdict) for verdict in found} == {Replay}
    asked = [(each.id, each.recipe, each.fingerprint) for each in claims]
    columns = [(now, 1, *map(row._asdict().__getitem__, KEPT_COLUMNS)) for row in kept if row is not None]
    found, look = flow_of(store.look_kept(asked), lambda query: columns)
    assert {type(verdict) for verdict in found} == {Replay}
    return {"claim": claim, "settle": settle, "replay": replay, "look": look}


@pytest.mark.parametrize("kind", POSTGRES_EACH)
def test_one_more_of_a_batch_on_postgresql_stays_within_its_budget(kind: str) -> None:
    postgres_batch_costs(3)  # what is remembered is remembered
    each = (postgres_batch_costs(40)[kind] - postgres_batch_costs(8)[kind]) / 32
    assert each <= POSTGRES_EACH[kind] * ROOM_OF_LATER_PYTHONS, each


def mariadb_batch_costs(many: int) -> dict[str, int]:
    """What batches cost the MariaDB store, with the writing of their texts; its server is not there."""
    store, now = MariadbStore(), 1_700_000_000_000_000
    claims = [attempt(key=f"{key}") for key in range(many)]

    def count_opcodes(make: MakeFlow[list[Any]], results: list[Any]) -> tuple[list[Any], int]:
        seen = Counted()
        with seen.counting():
            talk: Any = converse(make, None, 16_777_216)
            found = perform(talk, lambda text: results)
        return found, seen.total()

    rows = [grant_row(None, each, first_grant(each, now)) for each in claims]
    found, claim = count_opcodes(lambda: store.claim(claims), [[(now, *row) for row in rows]])
    settlements = [settlement(verdict.grant) for verdict in found]
    _, settle = count_opcodes(lambda: store.settle(settlements), [[(1,)], 0])
    kept = [settle_row(row, each, now)[1] for row, each in zip(rows, settlements, strict=True)]
    found, replay = count_opcodes(lambda: store.claim(claims), [[(now, *row) for row in kept if row is not None]])
    assert {type(verdict) for verdict in found} == {Replay}
    asked = [(each.id, each.recipe, each.fingerprint) for each in claims]
    columns = [(now, 1, *map(row._asdict().__getitem__, KEPT_COLUMNS)) for row in kept if row is not None]
    found, look = count_opcodes(lambda: store.look_kept(asked), [columns])
    assert {type(verdict) for verdict in found} == {Replay}
    return {"claim": claim, "settle": settle, "replay": replay, "look": look}


@pytest.mark.parametrize("kind", MARIADB_EACH)
def test_one_more_of_a_batch_on_mariadb_stays_within_its_budget(kind: str) -> None:
    mariadb_batch_costs(3)  # what is remembered is remembered
    each = (mariadb_batch_costs(40)[kind] - mariadb_batch_costs(8)[kind]) / 32
    assert each <= MARIADB_EACH[kind] * ROOM_OF_LATER_PYTHONS, each


def test_the_counts_are_the_same_each_time() -> None:
    assert count_once("asgi", "memory://?persistence=none", "replay") == count_once(
        "asgi", "memory://?persistence=none", "replay"
    )
