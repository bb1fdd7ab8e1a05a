"""`semel migrate`: bring the store's schema up to date."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from typing import Final
from urllib.parse import parse_qs, urlsplit

from semel.admin.doctor.schema import REMEDY, missing
from semel.admin.failures import UsageFailed
from semel.admin.migration_sql import migration_sql
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import connect, url_of
from semel.cli.progress import add_progress, show_elapsed
from semel.cli.terminal import Output
from semel.core.contract import Restorable
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError

_NEW: Final = (
    "This store is new. If there was one before (was the server flushed?), its records are lost, and keys that were "
    "issued before may run again; engines that have opened it refuse new commands until they are restarted."
)


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "migrate",
        "create the store's tables or bring them up to date",
        "semel migrate\nsemel migrate --url sqlite:////var/lib/shop/semel.db\n"
        "semel migrate --sql --url postgresql://shop@db/shop > semel.sql",
        "Safe to run at any time, even twice at once; software of the previous version keeps working.",
    )
    parser.add_argument(
        "--records-may-be-lost",
        action="store_true",
        help="Redis: reuse a store that has lost keys; a retry whose record was lost runs again",
    )
    parser.add_argument(
        "--sql",
        action="store_true",
        help="print the SQL that would run, for a database administrator to run; changes nothing",
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Migrate and print the migrations that ran, or print those that would run."""
    if options.sql:
        return _print_sql(options, out)
    engine = connect(options)
    try:
        ran = show_elapsed(
            "migrate", _restoring(engine) if options.records_may_be_lost else engine.migrate, asked=options.progress
        )
        engine.open()
        if lacking := missing(engine, engine.store.migrations):
            raise SchemaError(f"all migrations have run, but {lacking}: {REMEDY}")
    finally:
        engine.close()
    out.document({"migrations": ran})
    out.say(f"migrated: {', '.join(ran)}" if ran else "the store is up to date: nothing to do")
    if "0001_first" in ran and isinstance(engine.store, Restorable):
        out.say(_NEW)
    return Exit.OK


def _print_sql(options: argparse.Namespace, out: Output) -> int:
    if options.records_may_be_lost:
        raise UsageFailed("--sql and --records-may-be-lost exclude each other: the latter is for Redis")
    [schema] = parse_qs(urlsplit(url_of(options)).query).get("schema", [None])
    with closing(connect(options)) as engine:
        statements = migration_sql(engine, schema)
    out.document({"statements": statements})
    if statements:
        out.say("-- What `semel migrate` would run. Run all of it, as the owner of the tables.")
        for statement in statements:
            out.say(*(line.rstrip() for line in f"{statement};".splitlines()))
    else:
        out.say("-- the store is up to date: nothing to do")
    return Exit.OK


def _restoring(engine: Engine) -> Callable[[], list[str]]:
    store = engine.store
    if not isinstance(store, Restorable):
        raise ConfigurationError("--records-may-be-lost is for Redis: no other store evicts records; leave it out")
    return lambda: engine.perform("migrate", lambda: store.restore(*engine.core.first_identity()))
