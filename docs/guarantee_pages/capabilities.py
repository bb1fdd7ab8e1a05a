"""What each store declares; the conformance suite holds it to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from guarantee_pages.markdown import table
from semel.core.contract import Capabilities
from semel.stores.mariadb.store import MariadbStore
from semel.stores.memory.store import MemoryStore
from semel.stores.postgres.store import PostgresStore
from semel.stores.redis.store import RedisStore
from semel.stores.sqlite.store import SqliteStore

STORES: Final[Mapping[str, Capabilities]] = {
    "memory": MemoryStore.capabilities,
    "SQLite": SqliteStore.capabilities,
    "PostgreSQL": PostgresStore.capabilities,
    "MariaDB": MariadbStore.capabilities,
    "Redis, Valkey": RedisStore.capabilities,
}
CAPABILITIES: Final[Mapping[str, str]] = {
    "survives_process_crash": "records survive a crash of the process",
    "survives_server_crash": "records survive a crash of the host (see below for power loss)",
    "shared_between_processes": "several processes share one truth",
    "atomic_with_business_writes": "a record commits together with the handler's own writes (ATOMIC)",
    "settles_by_proof": "inside a unit, its statements prove by themselves that the claim is the unit's own",
    "counts_new_keys": "a [quota](quotas.md) of each caller's new keys is counted with the record",
    "holds_features": "operations, steps, items, events, messages and imports are stored beside records",
    "blocking_units": "on an event loop, too, `permit.connection` is a blocking connection: no network is between",
    "forgets_by_itself": "the server forgets a record at the end of its retention, without a purge",
    "balances_attention": "a full page of records that need attention has as many UNKNOWN as open ones",
    "looks_max": "records that one page of a list looks at, at most",
}


def capabilities() -> str:
    """What each store declares; the conformance suite holds it to it."""
    assert {field.name for field in fields(Capabilities)} == set(CAPABILITIES)
    rows = (
        [text, *(_format_declared(getattr(declared, name)) for declared in STORES.values())]
        for name, text in CAPABILITIES.items()
    )
    return table(("", *STORES), rows)


def _format_declared(value: bool | int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"
