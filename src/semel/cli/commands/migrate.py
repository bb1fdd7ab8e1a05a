"""`semel migrate`: bring the store's schema up to date."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from semel.admin.doctor_schema import REMEDY, migrations_of, missing
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import connect
from semel.cli.progress import add_progress, told
from semel.cli.terminal import Output
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError
from semel.stores.redis.store import RedisStore


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "migrate",
        "create the store's tables or bring them up to date",
        "semel migrate\nsemel migrate --url sqlite:////var/lib/shop/semel.db",
        "Safe to run at any time, also twice at once; software of the former version keeps working.",
    )
    parser.add_argument(
        "--records-may-be-lost",
        action="store_true",
        help="Redis: use a store again that has lost keys; a retry of a lost record's key runs again",
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Migrate, and say what ran."""
    engine = connect(options)
    try:
        ran = told(
            "migrate", _restoring(engine) if options.records_may_be_lost else engine.migrate, asked=options.progress
        )
        engine.open()
        if lacking := missing(engine, migrations_of(engine.store)):
            raise SchemaError(f"all migrations have run, but {lacking}: {REMEDY}")
    finally:
        engine.close()
    out.document({"migrations": ran})
    out.say(f"migrated: {', '.join(ran)}" if ran else "the store is up to date: nothing to do")
    return Exit.OK


def _restoring(engine: Engine) -> Callable[[], list[str]]:
    store = engine.store
    if not isinstance(store, RedisStore):
        raise ConfigurationError("--records-may-be-lost is for Redis: no other store evicts records; leave it out")
    return lambda: engine.perform("migrate", lambda: store.restore(*engine.core.first_identity()))
