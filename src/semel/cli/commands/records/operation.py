"""`semel operation`: one execution by its id or its business reference, even after its key was purged."""

from __future__ import annotations

import argparse

from semel.admin.describe import state_label, time_text
from semel.admin.failures import NotFound, UsageFailed
from semel.admin.words import Json
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.identity import uuid_bytes
from semel.operations.run import Execution, Reference, find_execution


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "operation",
        "find one execution by its id or business reference, even after its key was purged",
        "semel operation 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55\n"
        "semel operation --ref INV-2026-117 --operation invoices.pay --tenant acme\n"
        "semel operation --ref INV-2026-117 --operation invoices.pay --tenant acme --json",
        "Only executions whose operation declares operation_seconds or a business reference outlive their keys.",
    )
    parser.add_argument("id", nargs="?", metavar="OPERATION_ID", help="the operation's id")
    parser.add_argument("--ref", help="the business reference, with --operation and --tenant")
    parser.add_argument("--operation", help="with --ref: the operation's name")
    parser.add_argument("--tenant", help="with --ref: the tenant")
    parser.add_argument("--caller", help="with --ref: the caller, where the operation has reference_scope='caller'")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Find the operation and print its state."""
    name = _name(options)
    with open_store(options) as engine:
        found = find_execution(engine, name)
    if found is None:
        raise NotFound(
            "no such execution: it never ran here, its operation does not keep executions longer than keys, or it "
            "has expired"
        )
    document = _document(found)
    out.document(document)
    width = max(map(len, document))
    for label, value in document.items():
        if value not in (None, False):
            out.say(f"{label.ljust(width)}  {state_label(str(value)) if label == 'state' else value}")
    return Exit.OK


def _name(options: argparse.Namespace) -> str | Reference:
    if options.ref is None:
        if not options.id:
            raise UsageFailed("give an OPERATION_ID, or --ref with --operation and --tenant")
        if uuid_bytes(options.id) is None:
            raise UsageFailed("OPERATION_ID must be a UUID; semel explain takes the beginning of one")
        return str(options.id)
    if options.id:
        raise UsageFailed("give either OPERATION_ID or --ref, not both")
    for part in ("operation", "tenant"):
        if not getattr(options, part):
            raise UsageFailed(f"--{part} is missing: a reference means something only within operation and tenant")
    return Reference(options.tenant, options.operation, options.ref, options.caller)


def _document(found: Execution) -> dict[str, Json]:
    return {
        "operationId": found.operation_id,
        "state": found.state.name,
        "operation": found.operation,
        "tenant": found.tenant,
        "caller": found.caller,
        "businessReference": found.business_ref,
        "resourceType": None if found.resource is None else found.resource[0],
        "resourceId": None if found.resource is None else found.resource[1],
        "errorCode": found.error_code,
        "createdAt": time_text(found.created_at),
        "settledAt": time_text(found.settled_at),
        "keyForgotten": found.remembered,
    }
