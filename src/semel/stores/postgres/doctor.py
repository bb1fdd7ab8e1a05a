"""What `semel doctor` checks of a PostgreSQL server beside its settings: the table's room, and free connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from semel.core.contract import DoctorCheck, DoctorFinding
from semel.core.flow import Flow, ask
from semel.stores.findings import look_at_connections, names_text, size_text
from semel.stores.sql.statements import Query, statements

DEAD_ROWS_MIN: Final = 100_000
SQL: Final = statements("semel.stores.postgres", "sql/doctor.sql")


def checks() -> Sequence[DoctorCheck]:
    """Return the checks of the table of records, the server's connections, and the tables that handlers may write."""
    return (
        DoctorCheck("room", _look_at_room),
        DoctorCheck("connections", _look_at_connections),
        DoctorCheck("tables", _look_at_tables),
    )


def _look_at_room() -> Flow[list[DoctorFinding]]:
    rows = yield from ask(Query(SQL["table_room"], {}))
    return [room(*cast("tuple[int, int, int]", rows[0] if rows else (0, 0, 0)))]


def _look_at_connections() -> Flow[list[DoctorFinding]]:
    [counted] = yield from ask(Query(SQL["connections"], {}))
    return [look_at_connections(*cast("tuple[int, int]", counted))]


def _look_at_tables() -> Flow[list[DoctorFinding]]:
    """Judge the database's tables that an ATOMIC transaction does not cover."""
    found = yield from ask(Query(SQL["other_tables"], {}))
    return [tables({str(name): str(kind) for name, kind in found})]


def tables(others: Mapping[str, str]) -> DoctorFinding:
    """Judge unlogged (``u``) and foreign (``f``) tables, by name.

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
        return DoctorFinding("tables", "ok", "every table is logged and this server's own")
    ours = any(name.startswith("semel_") for name in others)
    remedy = "ALTER TABLE … SET LOGGED, and write foreign tables in no ATOMIC handler"
    return DoctorFinding("tables", "problem" if ours else "note", "; ".join(said), remedy)


def room(size: int, living: int, dead: int) -> DoctorFinding:
    """Judge a table of so many bytes, living and dead rows.

    >>> room(8192, 10, 0).detail
    'semel_record has 8192 B with its indexes, about 10 rows; the server does not tell how full its disk is'
    """
    if dead > max(living, DEAD_ROWS_MIN):
        return DoctorFinding(
            "room",
            "warning",
            f"semel_record has {size_text(size)} with its indexes, and more dead rows ({dead}) than living ({living})",
            "let autovacuum keep up: ALTER TABLE semel_record SET (autovacuum_vacuum_scale_factor = 0.02)",
        )
    return DoctorFinding(
        "room",
        "ok",
        f"semel_record has {size_text(size)} with its indexes, about {living} rows; "
        "the server does not tell how full its disk is",
    )
