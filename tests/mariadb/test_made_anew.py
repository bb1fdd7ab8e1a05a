"""The tables are dropped and made anew under an engine that is open: it runs no key that the former store may know."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from semel import Answer, Engine, Permit, Policy
from semel.errors import IdentityMismatch
from semel.stores.mariadb.protocol import MariadbServer
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import Fellow, Outside, Writes, never
from verification.subjects.mariadb import mariadb_subject


def make_anew(server: MariadbServer, outside: Outside) -> None:
    outside.connection.rollback()  # its last look holds the table
    for (table,) in outside.fetch("SHOW TABLES LIKE 'semel%'"):
        outside.fetch(f"DROP TABLE {table}")
    with closing(Engine(mariadb_subject(server, None).backend)) as engine:
        engine.migrate()


async def make(permit: Permit, db: Writes) -> Answer:
    return MADE


@pytest.mark.parametrize("reference", [None, "invoice-7"])
@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_an_engine_refuses_a_store_that_replaced_its_own(
    effects: str, reference: str | None, server: MariadbServer, make_fellow: Callable[..., Fellow], outside: Outside
) -> None:
    """An ATOMIC command runs: what it wrote was in the same database as its record."""
    policy = Policy.of(effects=effects)
    fellow = make_fellow()
    fellow.run(replace(command("first", policy=policy), business_ref=reference), make)
    make_anew(server, outside)
    for key in ("first", "next", "first"):
        with pytest.raises(IdentityMismatch, match="emptied or replaced"):
            fellow.run(replace(command(key, policy=policy), business_ref=reference), never)
    assert outside.states == []
    newcomer = make_fellow()
    assert not newcomer.run(command("next", policy=policy), make).replayed
    with pytest.raises(IdentityMismatch):
        fellow.run(command("next", policy=policy), never)


def test_an_answer_of_another_store_is_not_replayed(
    server: MariadbServer, make_fellow: Callable[..., Fellow], outside: Outside
) -> None:
    """This process knows that its key was answered, and looks for the answer: in the store that it has opened alone."""
    fellow = make_fellow()
    fellow.run(command("first"), make)
    make_anew(server, outside)
    assert not make_fellow().run(command("first"), make).replayed
    with pytest.raises(IdentityMismatch):
        fellow.run(command("first"), never)
