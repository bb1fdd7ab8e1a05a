"""The checks of `semel doctor` and `semel migrate` for the tables: everything that the migrations made exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

from semel.core.contract import DoctorFinding, Identity, Store
from semel.core.flow import ask
from semel.engine.sync_engine import Engine
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.statements import Query, script, statements

SQL: Final = statements("semel.admin.doctor", "schema.sql")
REMEDY: Final = (
    "the tables were changed by hand, or restored in part: restore them all from one backup, or create the missing "
    "parts from the migrations in semel/stores; semel migrate runs no migration twice"
)
_TABLE: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(semel_\w+) \(\n(.*)\n\)", re.DOTALL)
_ADDED: Final = re.compile(r"ALTER TABLE (semel_\w+) ADD COLUMN (?:IF NOT EXISTS )?(\w+)")
_COLUMN: Final = re.compile(r"^ {4}([a-z]\w*) ", re.MULTILINE)  # only columns are in lower case


def look_at_schema(engine: Engine, identity: Identity) -> DoctorFinding:
    """Return the finding on the version of the schema, and on its tables."""
    done, pending = engine.store.migrations[: identity.schema_version], pending_of(engine.store, identity)
    lacking = missing(engine, done)
    if lacking:
        return DoctorFinding("schema", "problem", f"version {identity.schema_version}, but {lacking}", REMEDY)
    if not pending:
        pending = tuple(engine.perform("doctor", engine.store.missing_additions))
    if pending:
        return DoctorFinding("schema", "warning", f"pending: {', '.join(pending)}", "run: semel migrate")
    return DoctorFinding("schema", "ok", f"version {identity.schema_version}, nothing pending")


def missing(engine: Engine, migrations: Iterable[str]) -> str:
    """List the missing tables and columns of these migrations in words; empty if none is missing."""
    if not engine.store.capabilities.holds_features:  # no tables: it is not a SQL database
        return ""
    folder = dialect_of(engine.store, "tables").name
    here: dict[str, set[str]] = {}
    for table, column in engine.perform("columns", lambda: ask(Query(SQL[f"columns_{folder}"], {}))):
        here.setdefault(str(table), set()).add(str(column))
    wanted = parse_tables("\n".join(_text(folder, name) for name in migrations))
    gone = [f"the table {table}" for table in wanted if table not in here]
    gone += [f"{table}.{column}" for table in here for column in wanted.get(table, ()) if column not in here[table]]
    return f"{', '.join(sorted(gone))} cannot be found" if gone else ""


def parse_tables(text: str) -> Mapping[str, list[str]]:
    """Return the tables that migrations make, with their columns.

    >>> parse_tables("CREATE TABLE semel_a (\\n    id bytea,\\n  UNIQUE (id)\\n);ALTER TABLE semel_a ADD COLUMN n int;")
    {'semel_a': ['id', 'n']}
    """
    found: dict[str, list[str]] = {}
    for statement in script(text):
        if made := _TABLE.search(statement):
            found[made[1]] = _COLUMN.findall(made[2])
        if added := _ADDED.search(statement):
            found[added[1]].append(added[2])
    return found


def pending_of(store: Store, identity: Identity) -> tuple[str, ...]:
    """Return the migrations that have not run on a store yet."""
    return store.migrations[identity.schema_version :]


def _text(folder: str, name: str) -> str:
    return resources.files("semel.stores").joinpath(folder, "migrations", f"{name}.sql").read_text("utf-8")
