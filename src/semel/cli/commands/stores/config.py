"""`semel config`: the settings in force for each operation, their sources, and the resulting guarantees."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from semel.admin.effective import (
    Effective,
    Setting,
    of_application,
    of_records,
    store_settings,
)
from semel.admin.failures import NotFound
from semel.admin.words import Json
from semel.cli.arguments import Commands, Parser, add_command, near, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output

WALKED: int = 10_000


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "config",
        "show the policy in force for each operation, and which guarantees it has",
        "semel config shop.main:app\nsemel config 'shop.main:make_app()' --json\nsemel config                         "
        "    the policies of the records in the store",
        "With an application, shows its declared policies. Without one, shows the policies that the store's newest "
        "records carry; these stay in force for those records, even if the declaration has changed since. The "
        "application is imported, not started.",
    )
    parser.add_argument(
        "application", nargs="?", metavar="APPLICATION", help="module:app, module:make_app(), or a module of functions"
    )
    parser.add_argument("--operation", help="only this operation")
    parser.add_argument(
        "--records",
        type=whole_number(1, 10_000_000),
        default=WALKED,
        help=f"without an application: how many of the newest records to read (default {WALKED})",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Show the settings of the store and of each operation."""
    if options.application is not None:
        operations, settings = of_application(options.application)
    else:
        with open_store(options) as engine:
            operations = of_records(engine, options.records)
            settings = store_settings(engine, options)
    if options.operation is not None:
        known = [each.name for each in operations]
        operations = [each for each in operations if each.name == options.operation]
        if not operations:
            raise NotFound(f"--operation {options.operation!r} is none of these{near(options.operation, known)}")
    out.document(_document(operations, settings))
    out.say_styled("bold", "store")
    _say_settings(out, settings)
    for operation in operations:
        _say_operation(out, operation)
    if not operations:
        named = getattr(options.project, "application", None) or "module:app"
        out.say("", f"no records yet: name an application to see its policies (semel config {named})")
    return Exit.OK


def _document(operations: list[Effective], settings: list[Setting]) -> dict[str, Json]:
    return {
        "store": {each.name: _setting(each) for each in settings},
        "operations": [
            {
                "operation": each.name,
                "route": each.route or None,
                "effects": each.effects,
                "level": each.level,
                "settings": {setting.name: _setting(setting) for setting in each.settings},
                "guarantees": [asdict(promise) for promise in each.promises],
                "caveats": each.caveats,
                "records": each.records,
            }
            for each in operations
        ],
    }


def _setting(setting: Setting) -> dict[str, Json]:
    return {"value": setting.value, "source": setting.source}


def _say_operation(out: Output, operation: Effective) -> None:
    route = f"  ({operation.route})" if operation.route else ""
    count = "" if operation.records is None else f"  ({operation.records} records)"
    out.say("")
    out.say_styled("bold", f"{operation.name}{route}{count}")
    out.say(f"  {operation.effects}: {operation.level}")
    out.say(*(f"  note: {caveat}" for caveat in operation.caveats))
    rows = [(promise.name, promise.holds, promise.why) for promise in operation.promises]
    out.say("")
    out.table(("INVARIANT", "HERE", "BECAUSE"), rows, indent=2)
    out.say("")
    _say_settings(out, operation.settings)


def _say_settings(out: Output, settings: list[Setting]) -> None:
    rows = [(each.name, each.shown, each.source) for each in settings]
    out.table(("SETTING", "VALUE", "SOURCE"), rows, indent=2)
