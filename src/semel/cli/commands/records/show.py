"""`semel show`: one record, without its key, request or answer."""

from __future__ import annotations

import argparse
from typing import Final

from semel.admin.describe import record_document, state_label
from semel.admin.failures import NotFound, UsageFailed
from semel.admin.find import check_beginning, find_key, find_named, key_of
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.identity import derive_key
from semel.core.model import Record, Scope
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine

AUDIT_LINES: Final = 20


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "show",
        "show one record: its state, what a retry would get, who settled it and why",
        "semel show 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55\n"
        "semel show 0199e0c4\n"
        "semel show --key 8e03978e --tenant demo --caller alice --operation payments.create\n"
        "semel show 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55 --derived charge",
        "The key itself is not stored: only its scope finds it.",
    )
    parser.add_argument(
        "operation_id",
        nargs="?",
        metavar="OPERATION_ID",
        help="the operation's id, or at least 6 hex digits that it, the record's id or the key's hash begins with",
    )
    parser.add_argument("--key", help="the client's key, with --tenant, --caller and --operation")
    parser.add_argument("--tenant", help="with --key")
    parser.add_argument("--caller", help="with --key")
    parser.add_argument("--operation", help="with --key")
    parser.add_argument(
        "--derived",
        metavar="NAME",
        action="append",
        default=[],
        help="also show the key derived for this downstream call (permit.key_for), to ask the provider about",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Show one record and its audit trail."""
    _check_wanted(options)
    with open_store(options) as engine:
        if options.operation_id is not None:
            record = find_named(engine, options.operation_id, options, "OPERATION_ID")
        else:
            record = _find_key(engine, options)
        audit = engine.perform("audit", lambda: engine.store.audit(record.id, AUDIT_LINES))
        now = engine.perform("now", engine.store.now)
    document = record_document(record, now, audit)
    derived = {name: derive_key(record.id, record.generation, name) for name in options.derived if name}
    if derived:
        document["derivedKeys"] = derived
    out.document(document)
    width = max(len(name) for name in document)
    for name, value in document.items():
        # False facts are omitted: `lapsed` beside a doubt of the same name would only confuse.
        if name not in ("audit", "derivedKeys") and value is not None and value is not False:
            shown = state_label(str(value)) if name == "state" else value
            stored = f" (stored as {value})" if shown != value else ""
            out.say(f"{name.ljust(width)}  {shown}{stored}")
    for name, key in derived.items():
        out.say(f"{'derivedKey'.ljust(width)}  {name}: {key}")
    for line in audit:
        ago = span_text(now - line.at)
        out.say(f"{'audit'.ljust(width)}  {ago} ago: {line.action} by {line.actor}: {line.reason}")
    return Exit.OK


def _check_wanted(options: argparse.Namespace) -> None:
    """Raise UsageFailed if the options do not identify one record."""
    parts = ("key", "tenant", "caller", "operation")
    given = [f"--{name}" for name in parts if getattr(options, name) is not None]
    if options.operation_id is not None:
        if given:
            raise UsageFailed(f"give either OPERATION_ID or {given[0]} and its scope, not both")
        check_beginning(options.operation_id, "OPERATION_ID")
        return
    missing = [f"--{name}" for name in parts if not getattr(options, name)]
    if not given:
        raise UsageFailed("give an OPERATION_ID, or --key with --tenant, --caller and --operation")
    if missing:
        raise UsageFailed(f"{missing[0]} is missing: a key means something only in its scope")


def _find_key(engine: Engine, options: argparse.Namespace) -> Record:
    key = key_of(options.key, "--key")
    record = find_key(engine, Scope(options.tenant, options.caller, options.operation), key)
    if record is None:
        raise NotFound(
            "--key names no record in this scope; check --tenant, --caller and --operation "
            "(semel explain looks in every scope)"
        )
    return record
