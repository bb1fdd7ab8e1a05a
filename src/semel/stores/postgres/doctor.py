"""What `semel doctor` checks of a PostgreSQL server beside its settings: the table's room, and free connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, cast

from semel.admin.doctor.finding import Finding, look_at_connections, names_text, size_text
from semel.core.flow import ask
from semel.engine.sync_engine import Engine
from semel.stores.sql.statements import Query, statements

DEAD_ROWS_MIN: Final = 100_000
SQL: Final = statements("semel.stores.postgres", "sql/doctor.sql")


def look_at_room(engine: Engine) -> Iterator[Finding]:
    """The findings about the table of records and the server's connections."""
    rows = engine.perform("table_room", lambda: ask(Query(SQL["table_room"], {})))
    yield room(*cast("tuple[int, int, int]", rows[0] if rows else (0, 0, 0)))
    [counted] = engine.perform("connections", lambda: ask(Query(SQL["connections"], {})))
    yield look_at_connections(*cast("tuple[int, int]", counted))
    yield look_at_tables(engine)


def look_at_tables(engine: Engine) -> Finding:
    """The finding on the database's tables that an ATOMIC transaction cannot vouch for."""
    found = engine.perform("other_tables", lambda: ask(Query(SQL["other_tables"], {})))
    return tables({str(name): str(kind) for name, kind in found})


def tables(others: Mapping[str, str]) -> Finding:
    """The finding on unlogged (``u``) and foreign (``f``) tables, by name.

    >>> tables({"cache": "u"}).detail
    'unlogged: cache; a server crash empties them, while the record and the answer remain'
    """
    unlogged = [name for name, kind in others.items() if kind == "u"]
    foreign = [name for name, kind in others.items() if kind == "f"]
    said: list[str] = []
    if unlogged:
        said.append(
            f"unlogged: {names_text(unlogged)}; a server crash empties them, while the record and the answer remain"
        )
    if foreign:
        said.append(f"foreign: {names_text(foreign)}; they are on another server, which commits separately")
    if not said:
        return Finding("tables", "ok", "every table is logged and this server's own")
    ours = any(name.startswith("semel_") for name in others)
    remedy = "ALTER TABLE … SET LOGGED, and write foreign tables in no ATOMIC handler"
    return Finding("tables", "problem" if ours else "note", "; ".join(said), remedy)


def room(size: int, living: int, dead: int) -> Finding:
    """The finding on a table of so many bytes, living and dead rows.

    >>> room(8192, 10, 0).detail
    'semel_record has 8192 B with its indexes, about 10 rows; the server does not tell how full its disk is'
    """
    if dead > max(living, DEAD_ROWS_MIN):
        return Finding(
            "room",
            "warning",
            f"semel_record has {size_text(size)} with its indexes, and more dead rows ({dead}) than living ({living})",
            "let autovacuum keep up: ALTER TABLE semel_record SET (autovacuum_vacuum_scale_factor = 0.02)",
        )
    return Finding(
        "room",
        "ok",
        f"semel_record has {size_text(size)} with its indexes, about {living} rows; "
        "the server does not tell how full its disk is",
    )
