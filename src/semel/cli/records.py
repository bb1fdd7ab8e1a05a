"""`semel list` and `semel show`: what the store holds, without keys, requests or answers."""

from __future__ import annotations

import argparse
from typing import Final

from semel.cli.arguments import Commands, Parser, add_command, near, whole_number
from semel.cli.describe import record_document, row_document, state_name
from semel.cli.exits import Exit, NotFound, UsageFailed
from semel.cli.store import opened
from semel.cli.terminal import Output, span_text
from semel.engine.sync import Engine
from semel.errors import InvalidKey
from semel.model import Find, Record, Scope, State
from semel.rules.identity import derived_key, record_id, uuid_bytes, uuid_text
from semel.rules.keys import parse_key

AUDIT_LINES: Final = 20
LIMIT_MAX: Final = 1000
_HEADS: Final = ("STATE", "OPERATION", "CALLER", "AGE", "ATTEMPT", "OPERATION ID")
_STATES: Final = tuple(state.name.lower() for state in State)


def add(commands: Commands[Parser]) -> None:
    """Declare both commands."""
    listing = add_command(
        commands,
        "list",
        "list records, newest first",
        "semel list\nsemel list --state unknown --operation payments.create\nsemel list --lapsed --json",
    )
    listing.add_argument("--state", action="append", type=_state, default=[], help=f"{', '.join(_STATES)}; repeatable")
    listing.add_argument("--operation", help="only this operation's")
    listing.add_argument("--tenant", help="only this tenant's")
    listing.add_argument("--caller", help="only this caller's")
    listing.add_argument("--lapsed", action="store_true", help="only open records whose lease is over")
    listing.add_argument(
        "--limit", type=whole_number(1, LIMIT_MAX), default=50, help=f"at most so many (default 50, up to {LIMIT_MAX})"
    )
    listing.add_argument(
        "--before", type=whole_number(1, 10**11), help="the next page: the cursor the former page ended with"
    )
    listing.set_defaults(run=run_list)
    show = add_command(
        commands,
        "show",
        "show one record: where it stands, what a retry would get, who settled it and why",
        "semel show 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55\n"
        "semel show --key 8e03978e --tenant demo --caller alice --operation payments.create\n"
        "semel show 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55 --derived charge",
        "The key itself is not stored: only its scope finds it.",
    )
    show.add_argument("operation_id", nargs="?", metavar="OPERATION_ID", help="the operation's id, a UUID")
    show.add_argument("--key", help="the client's key, with --tenant, --caller and --operation")
    show.add_argument("--tenant", help="with --key")
    show.add_argument("--caller", help="with --key")
    show.add_argument("--operation", help="with --key")
    show.add_argument(
        "--derived",
        metavar="NAME",
        action="append",
        default=[],
        help="also show the key derived for this downstream call (permit.key_for), to ask the provider about",
    )
    show.set_defaults(run=run_show)


def _state(text: str) -> State:
    try:
        return State[text.upper().replace("-", "_")]
    except KeyError:
        raise argparse.ArgumentTypeError(f"unknown state {text!r}{near(text, _STATES)}") from None


def run_list(options: argparse.Namespace, out: Output) -> int:
    """A page of records."""
    query = Find(
        states=tuple(options.state),
        tenant=options.tenant,
        caller=options.caller,
        operation=options.operation,
        limit=options.limit,
        before=options.before,
        lapsed=options.lapsed,
    )
    with opened(options) as engine:
        page = engine.perform("find", lambda: engine.store.find(query))
    out.document(
        {"records": [row_document(record, page.now) for record in page.records], "nextBefore": page.next_before}
    )
    out.table(_HEADS, [_row(record, page.now) for record in page.records])
    if page.next_before is not None:
        out.say(f"there are more: --before {page.next_before}")
    return Exit.OK


def _row(record: Record, now: int) -> tuple[str, ...]:
    return (
        state_name(record, now),
        record.operation,
        f"{record.tenant}/{record.caller}",
        span_text(now - record.created_at),
        str(record.attempt),
        uuid_text(record.operation_id),
    )


def run_show(options: argparse.Namespace, out: Output) -> int:
    """One record and its audit trail."""
    by_operation = _wanted(options)
    with opened(options) as engine:
        if by_operation is not None:
            record = find_operation(engine, by_operation)
        else:
            record = _find_key(engine, options)
        audit = engine.perform("audit", lambda: engine.store.audit(record.id, AUDIT_LINES))
        now = engine.perform("find", lambda: engine.store.find(Find(limit=1))).now
    document = record_document(record, now, audit)
    derived = {name: derived_key(record.id, record.generation, name) for name in options.derived if name}
    if derived:
        document["derivedKeys"] = derived
    out.document(document)
    width = max(len(name) for name in document)
    for name, value in document.items():
        if name not in ("audit", "derivedKeys") and value is not None:
            out.say(f"{name.ljust(width)}  {value}")
    for name, key in derived.items():
        out.say(f"{'derivedKey'.ljust(width)}  {name}: {key}")
    for line in audit:
        ago = span_text(now - line.at)
        out.say(f"{'audit'.ljust(width)}  {ago} ago: {line.action} by {line.actor}: {line.reason}")
    return Exit.OK


def _wanted(options: argparse.Namespace) -> bytes | None:
    """The operation id that was asked for, or None where a key was. Raises UsageFailed."""
    parts = ("key", "tenant", "caller", "operation")
    given = [f"--{name}" for name in parts if getattr(options, name) is not None]
    if options.operation_id is not None:
        if given:
            raise UsageFailed(f"give either OPERATION_ID or {given[0]} and its scope, not both")
        return operation_id_of(options.operation_id)
    missing = [f"--{name}" for name in parts if not getattr(options, name)]
    if not given:
        raise UsageFailed("give an OPERATION_ID, or --key with --tenant, --caller and --operation")
    if missing:
        raise UsageFailed(f"{missing[0]} is missing: a key means something only in its scope")
    return None


def operation_id_of(text: str) -> bytes:
    """The bytes of an OPERATION_ID argument. Raises UsageFailed."""
    raw = uuid_bytes(text)
    if raw is None:
        raise UsageFailed(f"OPERATION_ID must be a UUID as `semel list` shows it, not {text!r}")
    return raw


def find_operation(engine: Engine, operation_id: bytes) -> Record:
    """The record of an operation id. Raises NotFound."""
    [record] = engine.perform("read_operations", lambda: engine.store.read_operations((operation_id,)))
    if record is None:
        raise NotFound(f"OPERATION_ID {uuid_text(operation_id)} names no record of this store; see: semel list")
    return record


def _find_key(engine: Engine, options: argparse.Namespace) -> Record:
    try:
        key = parse_key((options.key.encode("utf-8", "surrogateescape"),))
    except InvalidKey as error:
        raise UsageFailed(f"--key: {error}") from error
    scope = Scope(options.tenant, options.caller, options.operation)
    id = record_id(scope, key, engine.core.id_secret)
    [record] = engine.perform("read", lambda: engine.store.read((id,)))
    if record is None:
        raise NotFound("--key names no record in this scope; check --tenant, --caller and --operation (semel list)")
    return record
