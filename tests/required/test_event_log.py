"""The outbox of every server is read, through every client library."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.testing.idempotent import Case
from semel.testing.idempotent.checks.event_log import EventLog, as_told
from tests.bulk.fellows import Fellow, mariadb_home, postgres_home
from tests.testing_plugin.good import command

HOMES = {"psycopg": postgres_home, "asyncpg": postgres_home, "pymysql": mariadb_home, "asyncmy": mariadb_home}


@pytest.mark.parametrize("kind", HOMES)
def test_a_published_event_is_read_with_its_id_topic_and_payload(kind: str) -> None:
    home = HOMES[kind]()
    fellow = Fellow(kind, home)
    emitted: list[str] = []

    def emit(permit: Permit) -> Answer:
        emitted.append(permit.emit("orders.placed", b"one"))
        return Answer(200, (), b"")

    async def emit_async(permit: Permit) -> Answer:
        return emit(permit)

    async def main() -> None:
        engine: Any = fellow.engine
        log = EventLog(Case(effects=emitted), (engine,))
        assert await log.read_all() == []
        what = command("k", "alice", 5, Policy())
        if isinstance(engine, AsyncEngine):
            _ = await engine.run(what, emit_async)
        else:
            _ = await asyncio.to_thread(engine.run, what, emit)
        [told] = await log.read_all()
        assert told == as_told({"id": emitted[0], "topic": "orders.placed", "payload": b"one"})
        assert await log.since([]) == [told]
        assert await log.since([told]) == []

    try:
        if fellow.runner is None:
            asyncio.run(main())
        else:
            fellow.runner.run(main())
    finally:
        fellow.close()
