"""`semel migrate`: bring the store's schema up to date."""

from __future__ import annotations

import argparse

from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.doctor_schema import REMEDY, migrations_of, missing
from semel.cli.exits import Exit
from semel.cli.progress import add_progress, told
from semel.cli.store import connect
from semel.cli.terminal import Output
from semel.errors import SchemaError


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "migrate",
        "create the store's tables or bring them up to date",
        "semel migrate\nsemel migrate --url sqlite:////var/lib/shop/semel.db",
        "Safe to run at any time, also twice at once; software of the former version keeps working.",
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Migrate, and say what ran."""
    engine = connect(options)
    try:
        ran = told("migrate", engine.migrate, asked=options.progress)
        engine.open()
        if lacking := missing(engine, migrations_of(engine.store)):
            raise SchemaError(f"all migrations have run, but {lacking}: {REMEDY}")
    finally:
        engine.close()
    out.document({"migrations": ran})
    out.say(f"migrated: {', '.join(ran)}" if ran else "the store is up to date: nothing to do")
    return Exit.OK
