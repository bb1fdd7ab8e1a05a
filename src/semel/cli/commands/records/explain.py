"""`semel explain`: the state of a key, the reason for it, what the next attempt would get, and what to do."""

from __future__ import annotations

import argparse
import re
import textwrap

from semel.admin.damaged import repair
from semel.admin.describe import record_document
from semel.admin.explain import NextAttempt, Story, tell
from semel.admin.failures import NotFound
from semel.admin.find import (
    PREFIX_LENGTH_MIN,
    begins_with,
    by_whole_id,
    carries,
    find_key,
    is_beginning,
    key_of,
    name_of,
    the_one,
    walk,
)
from semel.admin.reconciliations import standing_document, standing_lines, standing_of
from semel.admin.settling import read_import, read_steps
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.commands.records.show import AUDIT_LINES
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.progress import add_progress
from semel.cli.terminal import Output
from semel.core.identity import uuid_bytes, uuid_text
from semel.core.model import Record, Scope
from semel.engine.sync_engine import Engine
from semel.errors import InvalidKey
from semel.keys import parse_key


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "explain",
        "explain the state of a key, what the next attempt would get, and what to do",
        "semel explain 8e03978e-40d5-43e8-bc93-6894a57f9324 --operation payments.create --tenant demo --caller alice\n"
        "semel explain rent-june\n"
        "semel explain 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55\n"
        "semel explain 3f9ac2 --json",
        "With its whole scope, or as a whole id, it is one read; otherwise the store is searched, newest first. "
        "Changes nothing.",
    )
    parser.add_argument(
        "key",
        metavar="KEY",
        help="the client's key, an operation id, or at least 6 hex digits that an operation id, a record id or a key "
        "hash begins with",
    )
    parser.add_argument("--operation", help="only of this operation")
    parser.add_argument("--tenant", help="only of this tenant")
    parser.add_argument("--caller", help="only of this caller")
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Find the record and tell its story."""
    _check(options.key)
    with open_store(options) as engine:
        record = find(engine, options)
        audit = engine.perform("audit", lambda: engine.store.audit(record.id, AUDIT_LINES))
        now = engine.perform("now", engine.store.now)
        asked = standing_of(engine, record)
        listed, job = read_steps(engine, record), read_import(engine, record)
    story = tell(record, audit, now, listed, job)
    document = {**record_document(record, now, audit), "story": story.document()}
    out.document(document if asked is None else {**document, "reconciliation": standing_document(asked)})
    _print(repair(record), story, out)
    if asked is not None:
        _paragraph(out, "What reconcilers found", standing_lines(asked))
    return Exit.OK


def _check(text: str) -> None:
    """Raise UsageFailed where the text is neither a key nor the beginning of an id or hash."""
    if not is_beginning(text):
        key_of(text, "KEY")


def find(engine: Engine, options: argparse.Namespace) -> Record:
    """Find the record. Raises NotFound, and CommandFailed if several match."""
    text = options.key
    try:
        key = parse_key((text.encode("utf-8", "surrogateescape"),))
    except InvalidKey:
        key = None  # then it is the beginning of an id or hash
    scope = (options.tenant, options.caller, options.operation)
    if key is not None and all(scope):
        record = find_key(engine, Scope(*scope), key)
        if record is not None:
            return record
    whole = by_whole_id(engine, text) if uuid_bytes(text) is not None else None
    if whole is not None:
        return whole
    if key is not None:
        found = list(walk(engine, carries(engine, key), options))
        if found:
            return the_one(engine, found, "KEY")
    if is_beginning(text):
        found = list(walk(engine, begins_with(text), options))
        if found:
            return the_one(engine, found, "KEY")
    raise NotFound(_nowhere(engine, options, key))


def _nowhere(engine: Engine, options: argparse.Namespace, key: str | None) -> str:
    """Return the message for a key without a record, with other scopes in which the key exists."""
    given = [name for name in ("tenant", "caller", "operation") if getattr(options, name)]
    if key is not None and given:
        anywhere = argparse.Namespace(**{**vars(options), "tenant": None, "caller": None, "operation": None})
        others = list(walk(engine, carries(engine, key), anywhere))
        if others:
            named = ", ".join(name_of(record) for record in others[:3])
            return (
                f"KEY was never used in this scope (an attempt would run), but in another one: {named}; check "
                f"{', '.join(f'--{name}' for name in given)}"
            )
    short = ""
    if re.fullmatch(rf"[0-9a-fA-F-]{{1,{PREFIX_LENGTH_MIN - 1}}}", options.key):
        short = (
            f" As the beginning of an operation id, a record id or a key hash it is too short: give at least "
            f"{PREFIX_LENGTH_MIN} hex digits."
        )
    return (
        "KEY has no record: it was never used here, or its tombstone has expired; an attempt would run as a new "
        f"command.{short} Check --url, and: semel list"
    )


def _print(record: Record, story: Story, out: Output) -> None:
    out.say_styled("bold", f"{record.operation}, operation {uuid_text(record.operation_id)}")
    _paragraph(out, "What happened", story.happened)
    _paragraph(out, "The next attempt", [f"With the same request: {_attempt_text(story.same)}",
                                         f"With another request: {_attempt_text(story.other)}"])  # fmt: skip
    _paragraph(out, "What you can do", story.operator)
    _paragraph(out, "How long it is kept", [story.kept])
    _paragraph(out, "What to tell the client", [story.client])


def _attempt_text(attempt: NextAttempt) -> str:
    answer = attempt.answer
    http = "" if answer is None else f" Over HTTP: {answer['status']} {answer['code']}."
    return f"{attempt.verdict}: {attempt.meaning}. Why: {attempt.why}.{http}"


def _paragraph(out: Output, head: str, lines: list[str]) -> None:
    out.say("")
    out.say_styled("bold", head)
    for line in lines:
        if line.startswith("semel "):  # a command to be copied: never split
            out.say(f"      {line}")
            continue
        options = {"initial_indent": "  ", "subsequent_indent": "    "}
        out.say(*textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False, **options))  # type: ignore[arg-type]
