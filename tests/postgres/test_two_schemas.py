"""Two stores in two schemas of one database: the same command in both is two commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from semel import Answer, Engine, Permit
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE
from tests.postgres.conftest import WHAT, Fellow, Writes
from tests.servers.postgres import schema
from verification.subjects.postgres import empty_schema


def test_an_open_unit_in_one_schema_does_not_block_the_other(
    conninfo: str, kind: str, make_fellow: Callable[..., Fellow]
) -> None:
    elsewhere = f"{schema()}_two"
    empty_schema(conninfo, elsewhere)
    with closing(Engine(postgres_backend(conninfo, schema=elsewhere))) as other:
        other.migrate()

        async def handler(permit: Permit, db: Writes) -> Answer:
            done = other.run(WHAT, lambda inner: Answer(200, (), b"there"), wait_seconds=0)
            return Answer(200, (), b"here and " + done.answer.body)

        here = make_fellow()
        assert here.run(WHAT, handler).answer.body == b"here and there"
        assert here.run(WHAT, handler).replayed
        assert other.run(WHAT, lambda inner: MADE).answer != MADE
