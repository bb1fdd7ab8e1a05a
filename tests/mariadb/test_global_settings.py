"""What every session of a server begins with: its tests change that on a server that no other test uses meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from semel import Answer, Engine, Permit
from semel.errors import KeyReusedError, StoreReadOnly, StoreUnavailable
from semel.outbox.partitions import Partitions, registration
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.statements import Params
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import (
    ATOMIC,
    PLAIN,
    WHAT,
    Fellow,
    Kind,
    Outside,
    Writes,
    insert_and_answer,
    never,
    plain,
    prepare,
)
from tests.servers.mariadb import MARK, at, start
from tests.servers.relay import Relay
from tests.servers.running import alone, share_server

pytestmark = MARK


@pytest.fixture
def server() -> Iterator[MariadbServer]:
    with alone("mariadb-settings"):
        yield prepare(at(share_server("mariadb-settings", start)))


def levels(server: MariadbServer) -> dict[str, str]:
    with closing(Engine(mariadb_backend(server))) as engine:
        return {found.check: found.level for found in engine.perform("observe", engine.store.observe)}  # type: ignore[attr-defined]


def test_settings_are_read_from_the_server(server: MariadbServer, outside: Outside) -> None:
    assert levels(server) == {"durability": "ok", "flush": "warning"}  # the tests' own server never waits for its disk
    for flush, level in (("2", "warning"), ("0", "forgets")):
        outside.fetch(f"SET GLOBAL innodb_flush_log_at_trx_commit = {flush}")
        try:
            assert levels(server)["durability"] == level
        finally:
            outside.fetch("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.parametrize("setting", ["read_only", "tx_read_only"])  # 1290 and 1792
def test_a_read_only_server_replays_and_is_used_again_when_writable(
    app_server: MariadbServer, fellow: Fellow, outside: Outside, setting: str
) -> None:
    pairs = ((PLAIN, command("before")), (WHAT, command("before, atomic", policy=ATOMIC)))
    for _, before in pairs:
        fellow.run(before, plain)
    with closing(Fellow(fellow.kind, app_server)) as app:
        outside.fetch(f"SET GLOBAL {setting} = 1")
        try:
            for what, before in pairs:
                for _ in range(2):
                    with pytest.raises(StoreReadOnly, match="point the URL at the primary"):
                        app.run(what, never)
                    assert app.run(before, never).replayed
                with pytest.raises(KeyReusedError):
                    app.run(replace(before, fingerprint=bytes(32)), never)
        finally:
            outside.fetch(f"SET GLOBAL {setting} = 0")
        app.wait_for(app.engine.close())  # a session keeps the setting that it began with
        assert app.run(PLAIN, plain).answer == MADE
        assert app.run(command("unit", policy=ATOMIC), insert_and_answer).answer == MADE


def test_a_name_that_moved_to_another_server_is_resolved_again(
    app_server: MariadbServer, kind: Kind, outside: Outside, relay: Relay
) -> None:
    """The old primary lives on, read-only, and ends no connection; the relay is the name."""
    with closing(Fellow(kind, replace(app_server, port=relay.port))) as app:
        app.run(PLAIN, plain)
        app.run(command("first", policy=ATOMIC), insert_and_answer)
        outside.fetch("SET GLOBAL read_only = 1")
        try:
            for what in (command("another"), command("another, atomic", policy=ATOMIC)):
                relay.connections = 0
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match="point the URL at the primary"):
                        app.run(what, never)
                assert relay.connections > 0
        finally:
            outside.fetch("SET GLOBAL read_only = 0")


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_users_isolation_changes_nothing(fellow: Fellow, outside: Outside, isolation: str) -> None:
    outside.fetch(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {isolation}")
    try:
        assert fellow.run(WHAT, insert_and_answer).answer == MADE
        assert fellow.run(WHAT, never).replayed
        with pytest.raises(Failed):
            fellow.run(command("other", policy=ATOMIC), _fails)
        assert fellow.run(command("other", policy=ATOMIC), _inserts_two).answer == MADE
    finally:
        outside.fetch("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def test_the_list_of_relays_is_whole_where_the_server_cuts_long_texts(server: MariadbServer, outside: Outside) -> None:
    outside.fetch("SET GLOBAL group_concat_max_len = 1024")
    try:
        with closing(Engine(mariadb_backend(server))) as engine:
            partitions = Partitions(dialect_of(engine.store, "events"))
            relays = [registration(f"host:{number}", "nats://mq.example", f"broker {number}") for number in range(40)]
            for relay in relays:
                engine.perform("attend", partial(partitions.attend, relay, 10_000_000, listens=False))
            no_records: Params = {"ids": [], "after": 0, "page": 0}
            turns = partial(partitions.turn, "relay", None, 1_000_000, no_records, relays[0])
            turn = partial(turns, hold=True, listens=False, gauge=True)
            _, look = engine.perform("turn", turn)
            assert look is not None
            assert len(look.sinks) == len(relays)
    finally:
        outside.fetch("SET GLOBAL group_concat_max_len = 1048576")


class Failed(Exception):
    """The handler gives up."""


async def _fails(permit: Permit, db: Writes) -> Answer:
    raise Failed


async def _inserts_two(permit: Permit, db: Writes) -> Answer:
    await db.insert(2)
    return MADE
