"""One interface to three databases, so that the flows of a noun, and statements common to all, are written once.

A noun such as the outbox has one class of flows over a :class:`Dialect`, a file of the named statements that SQLite and
MariaDB share, and one of each database's own. ``:now`` is the store's time wherever a statement names it. Texts may
hold anything, U+0000 included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol

from semel.core.flow import Ask, Flow, ask
from semel.errors import ConfigurationError
from semel.stores.mariadb.requests import SeveralStatements
from semel.stores.postgres.text import escape, unescape
from semel.stores.sql.statements import (
    NOW,
    NOW_LOCKED,
    TOGETHER,
    Argument,
    Execute,
    Query,
    Row,
    Statement,
    TakeTurn,
    Value,
    statements,
)

Values = Mapping[str, Value]
ROWS: Final = "rows"  # the parameter of a statement that takes many rows as one JSON array

# By noun, the room whose folder ``sql`` has its statements.
_ROOMS: Final[Mapping[str, str]] = {
    "copies": "semel.stores.sql",
    "events": "semel.outbox",
    "imports": "semel.imports",
    "inbox": "semel.inbox",
    "items": "semel.bulk",
    "operations": "semel.operations",
    "partitions": "semel.outbox",
    "reconciliations": "semel.reconciliation",
    "seals": "semel.sealing",
    "steps": "semel.steps",
}


class Dialect(Protocol):
    """The dialect of one database."""

    @property
    def name(self) -> str:
        """``sqlite``, ``postgres`` or ``mariadb``."""

    def statements(self, noun: str) -> Mapping[str, Statement]:
        """Read the named statements of a noun, from ``<noun>.sql`` and ``<database>_<noun>.sql`` in its room."""

    def rows(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[list[Row]]:
        """Read the rows of a statement."""

    def rows_all(self, statement: Statement, each: Sequence[Values]) -> Flow[list[Row]]:
        """Read the rows of one statement for many parameters, in one round trip where the database can.

        On PostgreSQL as in :meth:`write_all`.
        """

    def write(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[int]:
        """Write, and return the number of changed rows. On PostgreSQL the statement ends with ``RETURNING 1``."""

    def write_all(self, statement: Statement, each: Sequence[Values]) -> Flow[int]:
        """Write many rows by one statement, in one round trip if the database can; returns the number of changed rows.

        All rows name the same parameters in the same order. On PostgreSQL every parameter but ``:now`` is the array
        of a column, and the statement unnests them.
        """

    def last_write(self, statement: Statement, params: Mapping[str, Argument]) -> Ask[Any]:
        """Return the ask of a unit's last statement, which must change one row, or the unit cannot commit."""

    def take_turn(self, kind: str, mine: int | None, every_us: int) -> Flow[int | None]:
        """Take a worker's turn; where the statement itself decides it, return ``mine``.

        Parameters: as :class:`~semel.workers.rules.TakesTurns` has them.
        """

    def commit_together(self) -> Flow[None]:
        """Commit the rest of this flow as one."""


class Sqlite:
    """SQLite. A flow is one transaction already, from its first write on."""

    name: Final = "sqlite"

    def statements(self, noun: str) -> Mapping[str, Statement]:
        return _shared_statements(noun, self.name)

    def rows(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[list[Row]]:
        if "now" in statement.names:
            params = {**params, "now": (yield from ask(NOW))}
        return (yield from ask(Query(statement, params)))

    def rows_all(self, statement: Statement, each: Sequence[Values]) -> Flow[list[Row]]:
        found: list[Row] = []
        for params in each:
            found += yield from self.rows(statement, params)
        return found

    def write(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[int]:
        if "now" in statement.names:
            params = {**params, "now": (yield from ask(NOW_LOCKED))}
        return (yield from ask(Execute(statement, params)))

    def write_all(self, statement: Statement, each: Sequence[Values]) -> Flow[int]:
        now = (yield from ask(NOW_LOCKED)) if each and "now" in statement.names else None
        changed = 0
        for params in each:
            changed += yield from ask(Execute(statement, params if now is None else {**params, "now": now}))
        return changed

    def last_write(self, statement: Statement, params: Mapping[str, Argument]) -> Ask[Any]:
        return Execute(statement, params)

    def take_turn(self, kind: str, mine: int | None, every_us: int) -> Flow[int | None]:
        return (yield from ask(TakeTurn(kind, mine, every_us)))

    def commit_together(self) -> Flow[None]:
        yield from ()


class Postgres:
    """PostgreSQL."""

    name: Final = "postgres"

    def statements(self, noun: str) -> Mapping[str, Statement]:
        return statements(_ROOMS[noun], f"sql/postgres_{noun}.sql")

    def rows(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[list[Row]]:
        found = yield from ask(Query(statement, {name: _to_parameter(value) for name, value in params.items()}))
        return [_read(row) for row in found]

    def rows_all(self, statement: Statement, each: Sequence[Values]) -> Flow[list[Row]]:
        return (yield from self.rows(statement, _columns(statement, each))) if each else []

    def write(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[int]:
        return len((yield from self.rows(statement, params)))

    def write_all(self, statement: Statement, each: Sequence[Values]) -> Flow[int]:
        return (yield from self.write(statement, _columns(statement, each))) if each else 0

    def last_write(self, statement: Statement, params: Mapping[str, Argument]) -> Ask[Any]:
        return Query(statement, {name: _to_parameter(value) for name, value in params.items()})

    def take_turn(self, kind: str, mine: int | None, every_us: int) -> Flow[int | None]:
        yield from ()
        return mine

    def commit_together(self) -> Flow[None]:
        yield from ask(TOGETHER)


class Mariadb:
    """MariaDB and MySQL. A statement over ``:rows`` gets all rows at once, as :func:`_as_json` writes them."""

    name: Final = "mariadb"

    def statements(self, noun: str) -> Mapping[str, Statement]:
        return _shared_statements(noun, self.name)

    def rows(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[list[Row]]:
        return (yield from ask(Query(statement, params)))

    def rows_all(self, statement: Statement, each: Sequence[Values]) -> Flow[list[Row]]:
        if not each:
            return []
        if ROWS in statement.distinct:
            return (yield from self.rows(statement, _as_json(statement, each)))
        replies = yield from ask(SeveralStatements([Query(statement, params) for params in each]))
        return [row for rows in replies for row in rows]

    def write(self, statement: Statement, params: Mapping[str, Argument]) -> Flow[int]:
        return (yield from ask(Execute(statement, params)))

    def write_all(self, statement: Statement, each: Sequence[Values]) -> Flow[int]:
        if not each:
            return 0
        if ROWS in statement.distinct:
            return (yield from self.write(statement, _as_json(statement, each)))
        return sum((yield from ask(SeveralStatements([Execute(statement, params) for params in each]))))

    def last_write(self, statement: Statement, params: Mapping[str, Argument]) -> Ask[Any]:
        return Execute(statement, params)

    def take_turn(self, kind: str, mine: int | None, every_us: int) -> Flow[int | None]:
        yield from ()
        return mine

    def commit_together(self) -> Flow[None]:
        yield from ask(TOGETHER)


@cache
def _shared_statements(noun: str, database: str) -> Mapping[str, Statement]:
    """Read the statements that SQLite and MariaDB share, with those of one of them."""
    room = _ROOMS[noun]
    return {**statements(room, f"sql/{noun}.sql"), **statements(room, f"sql/{database}_{noun}.sql")}


def _columns(statement: Statement, each: Sequence[Values]) -> Mapping[str, Argument]:
    """Turn the parameters of many rows into columns."""
    names = [name for name in statement.distinct if name != "now"]
    return {name: [params[name] for params in each] for name in names}


def _as_json(statement: Statement, each: Sequence[Values]) -> Values:
    """Write rows as one JSON array of arrays, bytes in hex; all rows share a parameter that the statement names."""
    shared = {name: value for name, value in each[0].items() if name in statement.distinct}
    rows = [[_to_json(value) for name, value in row.items() if name not in shared] for row in each]
    return {**shared, ROWS: json.dumps(rows)}


def _to_json(value: Value) -> int | str | None:
    return value.hex() if isinstance(value, bytes) else value


def _to_parameter(value: Argument) -> Argument:
    if isinstance(value, str):
        return escape(value)
    if value is None or isinstance(value, (int, bytes)):
        return value
    return [escape(each) if isinstance(each, str) else each for each in value]


def _read(row: Row) -> Row:
    if any(isinstance(value, str) and "\\" in value for value in row):
        return tuple(unescape(value) if isinstance(value, str) else value for value in row)
    return row


SQLITE: Final = Sqlite()
POSTGRES: Final = Postgres()
MARIADB: Final = Mariadb()


def dialect_of(store: Any, noun: str) -> Dialect:
    """Return the dialect of a store's database.

    Parameters: ``store`` any store; ``noun`` what needs it, such as ``"steps"``.

    Raises ConfigurationError where the store is no SQL database.
    """
    dialect: Dialect | None = getattr(store, "dialect", None)
    if dialect is None:
        raise ConfigurationError(
            f"{noun} need a SQL database: sqlite:///, postgresql:// or mysql:// (MariaDB); "
            f"{type(store).__name__} is none"
        )
    return dialect
