"""Joining Django's ``atomic()`` block on PostgreSQL, through the psycopg 3 connection that Django has."""

from __future__ import annotations

from typing import Any, Final, cast

import psycopg

from semel.core.flow import Ask
from semel.errors import JoinRefused
from semel.stores.postgres.join import JoinedPostgres, LineFailed, PostgresHome, join_line
from semel.stores.postgres.psycopg.join import PsycopgLine
from semel.stores.postgres.rows import SQL
from semel.stores.sql.django import check_block
from semel.stores.sql.statements import Params, Query, Value

_PSYCOPG_2: Final = "Django's connection {alias!r} is psycopg2's; install psycopg 3 (pip install 'psycopg[binary]')"


def join_django(connection: Any, home: PostgresHome) -> JoinedPostgres:
    """Join Django's open block. Raises JoinRefused and StoreError."""
    in_test = check_block(connection, "postgresql", "PostgreSQL")
    driver = connection.connection
    if not isinstance(driver, psycopg.Connection):
        raise JoinRefused(_PSYCOPG_2.format(alias=connection.alias))
    block = connection.atomic_blocks[-1]

    def is_current() -> bool:
        return block in connection.atomic_blocks and connection.connection is driver

    def fail() -> None:
        connection.set_rollback(True)  # also where the handler swallows the error: Django would "commit" a failure

    line = PsycopgLine(driver, target=connection, is_current=is_current, fail=fail, begun=True)
    return join_line(line, home, JoinedInTest if in_test else JoinedPostgres)


class JoinedInTest(JoinedPostgres):
    """A block in a TestCase: a savepoint of a transaction that never commits, so nothing needs to be proven."""

    def _values(self, needed: Ask[Any]) -> tuple[str, list[Any]]:
        assert isinstance(needed, Query)
        if needed.statement.batch is not None:
            needed = Query(needed.statement.batch, _batch_of_one(needed))
        return super()._values(needed)

    def settle(self, needed: Ask[Any]) -> bool:
        """Settle by the ordinary statement. Return False if there was nothing to settle."""
        assert isinstance(needed, Query)
        if not self._line.is_open():
            return False
        try:
            rows = self._line.execute(*self._values(Query(SQL["settle"], _batch_of_one(needed))))
        except LineFailed as failed:
            return self._is_refused(failed)
        if not rows:
            self._line.fail()
        return bool(rows)


def _batch_of_one(needed: Query) -> Params:
    """Return the values of a unit's statement as the ordinary one takes them."""
    assert not isinstance(needed.params, tuple)
    return {name: value if name == "store" else [cast(Value, value)] for name, value in needed.params.items()}
