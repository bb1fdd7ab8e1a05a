"""The checks of `semel doctor` for a server: durability settings, free space and permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.admin.doctor.finding import Finding, Level
from semel.core.contract import Observable
from semel.engine.sync_engine import Engine
from semel.stores.mariadb import doctor as doctor_mariadb
from semel.stores.mariadb.store import MariadbStore
from semel.stores.postgres import doctor as doctor_postgres
from semel.stores.postgres.store import PostgresStore
from semel.stores.redis import doctor as doctor_redis
from semel.stores.redis.store import RedisStore

_LEVELS: Final[Mapping[str, Level]] = {
    "ok": "ok",
    "note": "note",
    "warning": "warning",
    "forgets": "problem",
    "unusable": "problem",
}


def look_at_tables(engine: Engine) -> Finding | None:
    """The finding on the tables that an ATOMIC transaction cannot vouch for; None of a store without a server."""
    match engine.store:
        case PostgresStore():
            return doctor_postgres.look_at_tables(engine)
        case MariadbStore():
            return doctor_mariadb.look_at_tables(engine)
        case _:
            return None


def look_at_server(engine: Engine, store: Observable) -> Iterator[Finding]:
    """The findings about the server, or about all nodes of a cluster."""
    for seen in engine.perform("observe", store.observe):
        yield Finding(seen.check, _LEVELS[seen.level], seen.detail, seen.remedy or None)
    match store:
        case RedisStore():
            yield from doctor_redis.look_at_room(engine, store)
        case PostgresStore():
            yield from doctor_postgres.look_at_room(engine)
        case MariadbStore():
            yield from doctor_mariadb.look_at_room(engine)
        case _:  # of another package: what it observes is all that is known of it
            return
