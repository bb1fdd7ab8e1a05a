"""The checks of `semel doctor` for a MariaDB server: space, connections, permissions, the handlers' defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final

from semel.admin.doctor.finding import Finding, look_at_connections, names_text, size_text
from semel.core.flow import ask
from semel.engine.sync_engine import Engine
from semel.stores.sql.statements import Query, Row, statements

SQL: Final = statements("semel.stores.mariadb", "sql/doctor.sql")
NEEDED: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})


def look_at_room(engine: Engine) -> Iterator[Finding]:
    """The findings about the table, the server's connections, this user's rights, and what handlers begin with."""
    size, about = _row(engine, "table_room")
    detail = f"semel_record has {size_text(int(size or 0))} with its indexes, about {int(about or 0)} rows"
    yield Finding("room", "ok", f"{detail}; the server does not tell how full its disk is")
    used, most = _row(engine, "connections")
    yield look_at_connections(int(used or 0), int(most or 0))
    held = engine.perform("rights", lambda: ask(Query(SQL["rights"], {})))
    yield rights({str(right) for right, _ in held}, has_role=any(role is not None for _, role in held))
    mode, isolation = _row(engine, "defaults")
    yield defaults(str(mode), str(isolation))
    yield look_at_tables(engine)


def look_at_tables(engine: Engine) -> Finding:
    """The finding on the database's tables that an ATOMIC transaction cannot vouch for."""
    found = engine.perform("other_engines", lambda: ask(Query(SQL["other_engines"], {})))
    return tables({str(name): str(kind) for name, kind in found})


def _row(engine: Engine, name: str) -> Row:
    rows = engine.perform(name, lambda: ask(Query(SQL[name], {})))
    return rows[0] if rows else (None, None)


def tables(others: Mapping[str, str]) -> Finding:
    """The finding on the tables that know no transactions, by name, with their engine.

    >>> tables({"log": "MyISAM"}).detail
    'log (MyISAM) without transactions: the writes of an ATOMIC handler there survive its rollback'
    """
    if not others:
        return Finding("tables", "ok", "every table of this database has transactions")
    named = names_text([f"{name} ({engine})" for name, engine in others.items()])
    ours = any(name.startswith("semel_") for name in others)
    return Finding(
        "tables",
        "problem" if ours else "note",
        f"{named} without transactions: the writes of an ATOMIC handler there survive its rollback",
        f"ALTER TABLE {next(iter(others))} ENGINE=InnoDB, or write it in no ATOMIC handler",
    )


def rights(held: Set[str], *, has_role: bool) -> Finding:
    """The finding on the rights that a user holds by itself.

    >>> rights({"SELECT", "INSERT", "UPDATE"}, has_role=False).remedy
    "GRANT DELETE ON this database's semel tables to this user"
    """
    lacking = sorted(NEEDED - held)
    if not lacking:
        return Finding("grants", "ok", "this user may do all that the store needs")
    if has_role:
        return Finding("grants", "note", f"{', '.join(lacking)} may come from a role, which is not looked into")
    remedy = f"GRANT {', '.join(lacking)} ON this database's semel tables to this user"
    return Finding("grants", "warning", f"this user lacks {', '.join(lacking)} on semel_record", remedy)


def defaults(sql_mode: str, isolation: str) -> Finding:
    """The finding on the default settings of the handlers' connections.

    >>> defaults("", "REPEATABLE-READ").level
    'note'
    """
    detail = f"ATOMIC handlers begin with {isolation} and sql_mode {sql_mode or '(empty)'}"
    if "STRICT_TRANS_TABLES" in sql_mode or "STRICT_ALL_TABLES" in sql_mode:
        return Finding("defaults", "ok", f"{detail}; Semel's own statements set READ COMMITTED and strict mode")
    remedy = "set sql_mode to include STRICT_TRANS_TABLES; Semel's own statements are strict in any case"
    return Finding("defaults", "note", f"{detail}: values that are too long for a column are truncated", remedy)
