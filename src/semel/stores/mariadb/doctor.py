"""The checks of `semel doctor` for a MariaDB server: space, connections, permissions, the handlers' defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

from semel.core.contract import DoctorCheck, DoctorFinding
from semel.core.flow import Flow, ask
from semel.stores.findings import look_at_connections, names_text, size_text
from semel.stores.sql.statements import Query, Row, statements

SQL: Final = statements("semel.stores.mariadb", "sql/doctor.sql")
NEEDED: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})


def checks() -> Sequence[DoctorCheck]:
    """Check the table, the connections, this user's rights, the handlers' defaults, and their tables."""
    return (
        DoctorCheck("room", _look_at_room),
        DoctorCheck("connections", _look_at_connections),
        DoctorCheck("grants", _look_at_rights),
        DoctorCheck("defaults", _look_at_defaults),
        DoctorCheck("tables", _look_at_tables),
    )


def _look_at_room() -> Flow[list[DoctorFinding]]:
    size, about = yield from _row("table_room")
    detail = f"semel_record has {size_text(int(size or 0))} with its indexes, about {int(about or 0)} rows"
    return [DoctorFinding("room", "ok", f"{detail}; the server does not tell how full its disk is")]


def _look_at_connections() -> Flow[list[DoctorFinding]]:
    used, most = yield from _row("connections")
    return [look_at_connections(int(used or 0), int(most or 0))]


def _look_at_rights() -> Flow[list[DoctorFinding]]:
    held = yield from ask(Query(SQL["rights"], {}))
    return [rights({str(right) for right, _ in held}, has_role=any(role is not None for _, role in held))]


def _look_at_defaults() -> Flow[list[DoctorFinding]]:
    mode, isolation = yield from _row("defaults")
    return [defaults(str(mode), str(isolation))]


def _look_at_tables() -> Flow[list[DoctorFinding]]:
    """Judge the database's tables that an ATOMIC transaction does not cover."""
    found = yield from ask(Query(SQL["other_engines"], {}))
    return [tables({str(name): str(kind) for name, kind in found})]


def _row(name: str) -> Flow[Row]:
    rows = yield from ask(Query(SQL[name], {}))
    return rows[0] if rows else (None, None)


def tables(others: Mapping[str, str]) -> DoctorFinding:
    """Judge the tables without transactions, by name, with their engine.

    >>> tables({"log": "MyISAM"}).detail
    'log (MyISAM) without transactions: the writes of an ATOMIC handler there survive its rollback'
    """
    if not others:
        return DoctorFinding("tables", "ok", "every table of this database has transactions")
    named = names_text([f"{name} ({engine})" for name, engine in others.items()])
    ours = any(name.startswith("semel_") for name in others)
    return DoctorFinding(
        "tables",
        "problem" if ours else "note",
        f"{named} without transactions: the writes of an ATOMIC handler there survive its rollback",
        f"ALTER TABLE {next(iter(others))} ENGINE=InnoDB, or write it in no ATOMIC handler",
    )


def rights(held: Set[str], *, has_role: bool) -> DoctorFinding:
    """Judge the rights that a user holds directly, without its roles.

    >>> rights({"SELECT", "INSERT", "UPDATE"}, has_role=False).remedy
    "GRANT DELETE ON this database's semel tables to this user"
    """
    lacking = sorted(NEEDED - held)
    if not lacking:
        return DoctorFinding("grants", "ok", "this user may do all that the store needs")
    if has_role:
        return DoctorFinding("grants", "note", f"{', '.join(lacking)} may come from a role, which is not checked")
    remedy = f"GRANT {', '.join(lacking)} ON this database's semel tables to this user"
    return DoctorFinding("grants", "warning", f"this user lacks {', '.join(lacking)} on semel_record", remedy)


def defaults(sql_mode: str, isolation: str) -> DoctorFinding:
    """Judge the default settings of the handlers' connections.

    >>> defaults("", "REPEATABLE-READ").level
    'note'
    """
    detail = f"ATOMIC handlers begin with {isolation} and sql_mode {sql_mode or '(empty)'}"
    if "STRICT_TRANS_TABLES" in sql_mode or "STRICT_ALL_TABLES" in sql_mode:
        return DoctorFinding("defaults", "ok", f"{detail}; Semel's own statements set READ COMMITTED and strict mode")
    remedy = "set sql_mode to include STRICT_TRANS_TABLES; Semel's own statements are strict in any case"
    return DoctorFinding("defaults", "note", f"{detail}: values that are too long for a column are truncated", remedy)
