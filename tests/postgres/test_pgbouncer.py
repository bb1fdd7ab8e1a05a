"""A real PgBouncer in transaction pooling, whose few server connections change hands after every transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.testing import conformance
from semel.testing.bench import Mode, Subject
from semel.testing.clock import SettableClock
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, Fellow, Kind, Outside, Writes
from tests.servers.needed import needs
from tests.servers.pgbouncer import pgbouncer
from tests.servers.postgres import postgres, schema
from verification.subjects.postgres import postgres_subject

pytestmark = needs("pgbouncer")
ROLE = f"pooled_{schema()}"


@pytest.fixture
def through() -> str:
    """The pooler, for a role of this process's own, whose search_path it carries."""
    with psycopg.connect(postgres(), autocommit=True, options="-c client_min_messages=warning") as admin:
        if not admin.execute("SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchall():
            admin.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER")
            admin.execute(f"ALTER ROLE {ROLE} SET search_path = {schema()}, public")
    return pgbouncer().format(user=ROLE)


@pytest.mark.parametrize("name", conformance.CASES)
def test_the_contract_through_pgbouncer(name: str, through: str) -> None:
    turns: list[tuple[Mode, bool]] = [("sync", False), ("async", False), ("async", True)]
    mode, asyncpg = turns[[*conformance.CASES].index(name) % 3]

    def subject(clock: SettableClock) -> Subject:
        return postgres_subject(postgres(), schema(), clock, asyncpg=asyncpg, through=through)

    conformance.run(name, subject, mode)


@pytest.fixture
def pgbouncer_fellow(kind: Kind, through: str, conninfo: str) -> Iterator[Fellow]:
    made = Fellow(kind, through, own_schema=False, prepared=False, connections_max=8)
    yield made
    made.close()


def test_a_crowd_through_three_server_connections(pgbouncer_fellow: Fellow, outside: Outside) -> None:
    """Commands of all sorts, interleaved: nothing relies on the session that happens to serve it."""

    async def external(permit: Permit, db: Writes) -> Answer:
        return MADE

    async def one(number: int) -> list[bool]:
        async def atomic(permit: Permit, db: Writes) -> Answer:
            await db.insert(number)
            return MADE

        replayed = []
        for _ in range(2):
            replayed.append((await pgbouncer_fellow.running(command(f"e{number}"), external)).replayed)
            replayed.append((await pgbouncer_fellow.running(command(f"a{number}", policy=ATOMIC), atomic)).replayed)
        return replayed

    found: list[Any] = []
    if pgbouncer_fellow.runner is None:
        threads = [
            threading.Thread(target=lambda number=number: found.append(pgbouncer_fellow.tell(one(number))))
            for number in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(*[one(number) for number in range(24)])

        found = pgbouncer_fellow.tell(all_at_once())
    assert found == [[False, False, True, True]] * 24
    assert outside.rows() == [*range(24)]
    assert outside.states == [State.SUCCEEDED] * 48


def test_no_setting_of_semels_stays_on_a_shared_connection(pgbouncer_fellow: Fellow, through: str) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        return MADE

    for number in range(8):
        pgbouncer_fellow.run(command(f"k{number}"), handler)
    for _ in range(4):
        with psycopg.connect(through, prepare_threshold=None) as other:
            assert other.execute("SHOW enable_seqscan").fetchone() == ("on",)
            assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
