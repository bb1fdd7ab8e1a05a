"""What a store declares is what it is: nothing else asks for its class or its database."""

from __future__ import annotations

import pytest

from semel.core.contract import Store
from semel.errors import ConfigurationError
from semel.operations.flow import is_kept_by
from semel.stores.mariadb.store import MariadbStore
from semel.stores.memory.store import MemoryStore
from semel.stores.postgres.store import PostgresStore
from semel.stores.redis.store import RedisStore
from semel.stores.sql.dialect import dialect_of
from semel.stores.sqlite.store import SqliteStore

HOLD: tuple[type[Store], ...] = (SqliteStore, PostgresStore, MariadbStore)
HOLD_NOT: tuple[type[Store], ...] = (MemoryStore, RedisStore)


@pytest.mark.parametrize("make", HOLD)
def test_a_store_that_holds_features_has_a_dialect(make: type[Store]) -> None:
    store = make()
    assert store.capabilities.holds_features
    assert is_kept_by(store)
    assert dialect_of(store, "events").statements("events")


@pytest.mark.parametrize("make", HOLD_NOT)
def test_a_store_without_a_dialect_holds_no_features(make: type[Store]) -> None:
    store = make()
    assert not store.capabilities.holds_features
    assert not is_kept_by(store)
    with pytest.raises(ConfigurationError, match="need a SQL database"):
        dialect_of(store, "events")
