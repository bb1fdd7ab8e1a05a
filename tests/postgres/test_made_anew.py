"""The tables are dropped and made anew under an engine that is open: it runs no key that the former store may know."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from semel import Answer, Engine, Permit, Policy, Quota
from semel.errors import IdentityMismatch
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Fellow, Writes, never
from tests.servers.postgres import schema
from verification.subjects.postgres import empty_schema

MakeFellow = Callable[..., Fellow]


def make_anew(conninfo: str) -> None:
    empty_schema(conninfo, schema())
    with closing(Engine(postgres_backend(conninfo, schema=schema()))) as engine:
        engine.migrate()


async def make(permit: Permit, db: Writes) -> Answer:
    return MADE


@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_an_engine_refuses_a_store_that_replaced_its_own(effects: str, conninfo: str, make_fellow: MakeFellow) -> None:
    policy = Policy.of(effects=effects)
    fellow = make_fellow()
    fellow.run(command("first", policy=policy), make)
    make_anew(conninfo)
    for key in ("first", "next", "first"):
        with pytest.raises(IdentityMismatch, match="emptied or replaced"):
            fellow.run(command(key, policy=policy), never)
    with closing(psycopg.connect(conninfo, options=f"-c search_path={schema()}")) as outside:
        assert outside.execute("SELECT count(*) FROM semel_record").fetchall() == [(0,)]
    newcomer = make_fellow()
    assert not newcomer.run(command("next", policy=policy), make).replayed
    with pytest.raises(IdentityMismatch):  # not even a replay: who knows what else the other store lacks
        fellow.run(command("next", policy=policy), never)


@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_an_answer_of_another_store_is_not_replayed(effects: str, conninfo: str, make_fellow: MakeFellow) -> None:
    """This process knows that its key was answered, and looks for the answer: in the store that it has opened alone."""
    fellow, what = make_fellow(), command("first", policy=Policy.of(effects=effects))
    fellow.run(what, make)
    make_anew(conninfo)
    assert not make_fellow().run(what, make).replayed
    with pytest.raises(IdentityMismatch):
        fellow.run(what, never)


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
def test_joined_and_counted_claims_refuse_it_too(conninfo: str, make_fellow: MakeFellow) -> None:
    fellow = make_fellow()
    fellow.engine.core.quota = Quota(new_keys=10, per_seconds=60)
    fellow.run(command("first"), make)
    make_anew(conninfo)
    with pytest.raises(IdentityMismatch):
        fellow.run(command("next"), never)
    with closing(psycopg.connect(conninfo, options=f"-c search_path={schema()}")) as connection:
        assert connection.execute("SELECT count(*) FROM semel_quota").fetchall() == [(0,)]
        with (
            pytest.raises(IdentityMismatch),
            fellow.engine.atomic(connection, command("joined", policy=Policy(effects="atomic"))),
        ):
            raise AssertionError("this must not run")
