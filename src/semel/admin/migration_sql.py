"""The SQL that `semel migrate` would run, for a database administrator. This module does not run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from semel.core.flow import Ask, Flow, perform
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.statements import Execute, Query, Script

_READS = ("SELECT", "SHOW")
_NO_TABLES = ((0,),)  # of Semel's are there


def migration_sql(engine: Engine, schema: str | None = None) -> list[str]:
    """Return the statements that bring the engine's database up to date, without semicolons; none if it is.

    Parameters: ``engine`` on a SQL store, open or not; ``schema`` where Semel's tables are, if not on the search_path
    of the role that runs them.

    Raises ConfigurationError for a store without SQL; StoreError.

    >>> with Engine.connect("memory://") as engine:
    ...     migration_sql(engine)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    semel.errors.ConfigurationError: --sql: migrations as SQL need a SQL database: sqlite:///, ...; MemoryStore is none
    """
    try:
        kind = dialect_of(engine.store, "migrations as SQL").name
    except ConfigurationError as error:
        raise ConfigurationError(f"--sql: {error}") from None
    lines: list[str] = []
    try:
        engine.perform("migrate", lambda: _plan(engine, kind, lines))
    except SchemaError:  # a SQLite file that does not exist yet; this must not create it
        perform(_plan(engine, kind, lines), lambda needed: _NO_TABLES)
    if not lines:
        return []
    within = [] if kind == "mariadb" else ["BEGIN"]  # MariaDB commits at each CREATE TABLE
    if schema is not None:
        within.append(f"SET LOCAL search_path TO {schema}")
    return [*within, *lines, *(["COMMIT"] if kind != "mariadb" else [])]


def _plan(engine: Engine, kind: str, lines: list[str]) -> Flow[None]:
    """Drive the store's own migration, performing only its reads."""
    flow = engine.store.migrate(*engine.core.first_identity())
    try:
        needed: Ask[Any] = next(flow)
        while True:
            written = list(_sql_lines(needed, kind))
            lines += written
            reply = None if written or isinstance(needed, Script) else (yield needed)
            needed = flow.send(reply)
    except StopIteration:
        return


def _sql_lines(needed: Ask[Any], kind: str) -> Iterator[str]:
    """Yield the writing statements of a request, as text."""
    if isinstance(needed, Script):
        yield from needed.statements
    elif isinstance(needed, (Query, Execute)) and not needed.statement.text.lstrip().startswith(_READS):
        text = needed.statement.qmark
        for value in needed.statement.values(needed.params):
            text = text.replace("?", _literal(value, kind), 1)
        yield text


def _literal(value: object, kind: str) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'" if kind == "postgres" else f"x'{value.hex()}'"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
