"""`semel send`: one command to any HTTP service, under a key that survives this process."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.addresses import split_http_url
from semel.admin.failures import CommandFailed, UsageFailed
from semel.admin.words import Json
from semel.cli.arguments import Commands, Parser, add_command, seconds, whole_number
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.client.journal import Journal, JournalEntry, JournalError
from semel.client.limits import Budget
from semel.client.plan import Done, InDoubt, NotYet, Outcome, Refused
from semel.errors import ConfigurationError, RequestError
from semel.extras import install_command

if TYPE_CHECKING:
    from semel.client.sync_client import Client

_EXAMPLES: Final = """\
semel send POST https://shop.example/payments --json @body.json --journal intents.db
semel send POST https://shop.example/payments --body @body.json --name rent-june
semel send POST https://shop.example/payments --body '{"amount": "5.00"}' --header 'Authorization: Bearer alice'
semel send --resume --header-file ~/.shop-token
semel send --list
semel send --forget rent-june"""
_DESCRIPTION: Final = (
    "Writes the key and the request to the journal before it sends the first byte, so that --resume can continue "
    "after a crash with the same key. Never writes credentials: give --header or --header-file each time. Exit code "
    "0: every command is done; 1: one is refused, in doubt or open."
)


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands, "send", "send a command that is safe to retry, or resume open ones", _EXAMPLES, _DESCRIPTION
    )
    parser.add_argument("method", nargs="?", metavar="METHOD", help="such as POST")
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help="the whole http:// or https:// address")
    parser._optionals.conflict_handler = "resolve"  # this command's own --json, in place of the global one
    parser.add_argument(
        "--json",
        nargs="?",
        const=True,
        default=argparse.SUPPRESS,
        metavar="@FILE",
        help="print one JSON document instead of text; with @file or a JSON text, that is the body, too",
    )
    parser.add_argument("--body", metavar="TEXT|@FILE|-", help="the body: text, @file, or - for stdin")
    parser.add_argument(
        "--content-type",
        default="application/json",
        metavar="TYPE",
        help="the body's media type (default application/json)",
    )
    parser.add_argument("--name", help="your own reference; the same name means the same command, with the same key")
    parser.add_argument("--key", help="a key of your own")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated")
    parser.add_argument(
        "--header-file", metavar="FILE", help="header lines in a file, so that no token is in the process list"
    )
    parser.add_argument(
        "--journal", default="intents.db", metavar="FILE", help="the journal's file (default intents.db)"
    )
    parser.add_argument("--attempts", type=whole_number(1, 100), default=3, help="maximum for each command (default 3)")
    parser.add_argument(
        "--seconds", type=seconds(0.001, 86_400), default=20.0, help="the total deadline of each command (default 20)"
    )
    parser.add_argument("--bare", action="store_true", help="send the key without quotes")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="send the journal's open commands again, oldest first")
    group.add_argument("--list", action="store_true", help="show the journal's open commands; nothing is sent")
    group.add_argument(
        "--forget",
        metavar="NAME",
        help="delete the command with this name (or key) from the journal, so that the name can be used again, with a "
        "new key: only when you know its outcome",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Send one command, or all open ones."""
    _read_json(options)
    several = options.resume or options.list or options.forget is not None
    _check_usage(options, several)
    path = options.journal.removeprefix("sqlite:///")
    if several and not Path(path).exists():
        raise UsageFailed(f"--journal {options.journal!r} does not exist: nothing was sent with it")
    try:
        from semel.client.sync_client import Client
    except ImportError as error:
        if error.name != "httpx":
            raise
        raise CommandFailed(f"semel send needs httpx: {install_command('client')}") from None
    try:
        journal = Journal(f"sqlite:///{path}", payloads=True)
        if options.list:
            return _list(journal, out)
        if options.forget is not None:
            return _forget(journal, options.forget, out)
        budget = Budget(attempts=options.attempts, seconds=options.seconds)
        with Client(
            budget=budget,
            journal=journal,
            bare=options.bare,
            headers=_headers(options),
            progress=lambda made: out.note(f"attempt {made.attempt}: {made.text}"),
        ) as client:
            return _resume(client, out) if options.resume else _send(client, options, out)
    except (ConfigurationError, RequestError) as error:
        raise UsageFailed(str(error)) from None


def _read_json(options: argparse.Namespace) -> None:
    """Sort out what follows `--json`: the body, or METHOD, which argparse takes for the option's value."""
    found = getattr(options, "json", None)
    if not isinstance(found, str):
        return
    if found.lstrip()[:1] in ("@", "{", "["):
        if options.body is not None:
            raise UsageFailed("the body is given twice, by --json and by --body: leave one out")
        options.body = found
    elif options.address is None:
        options.method, options.address = found, options.method
    else:
        raise UsageFailed("--json takes @FILE or a JSON object or array; give any other body as --body")


def _check_usage(options: argparse.Namespace, several: bool) -> None:
    if several:
        given = [name for name in ("method", "body", "name", "key") if getattr(options, name) is not None]
        if given:
            raise UsageFailed(f"--resume, --list and --forget take the journal's commands: leave {given[0]} out")
    elif options.method is None or options.address is None:
        raise UsageFailed("METHOD and ADDRESS are missing, or --resume or --list (see semel send --help)")
    else:
        try:
            split_http_url(options.address)
        except ValueError as error:
            raise UsageFailed(f"ADDRESS cannot be used: {error}") from None


def _send(client: Client, options: argparse.Namespace, out: Output) -> int:
    body = _body(options.body)
    headers = {} if body is None else {"Content-Type": options.content_type}
    intent = client.intent(
        options.method, options.address, content=body, headers=headers, name=options.name, key=options.key
    )
    outcome = intent.send()
    out.document(_document(intent.name, outcome))
    _say(out, "", outcome)
    return _code([outcome])


def _resume(client: Client, out: Output) -> int:
    ended = client.resume()
    out.document({"commands": [_document(intent.name, outcome) for intent, outcome in ended]})
    out.say(f"{len(ended)} open commands")
    for intent, outcome in ended:
        _say(out, f"{intent.name or repr(intent)}: ", outcome)
    return _code([outcome for _, outcome in ended])


def _list(journal: Journal, out: Output) -> int:
    entries = journal.open()
    out.document({"commands": [_entry_document(entry) for entry in entries]})
    rows = [(entry.name or "-", entry.method, _place(entry), str(entry.sends), entry.code or "-") for entry in entries]
    out.table(("NAME", "METHOD", "ADDRESS", "ATTEMPTS", "LAST"), rows)
    return Exit.OK


def _forget(journal: Journal, name: str, out: Output) -> int:
    try:
        dropped = journal.drop(name)
    except JournalError as error:
        raise CommandFailed(f"{name!r} is not forgotten: {error}") from None
    if dropped is None:
        raise CommandFailed(f"the journal has no command {name!r}: nothing was forgotten (see semel send --list)")
    out.document({"forgotten": _entry_document(dropped), "state": dropped.state, "operation": dropped.operation_url})
    out.say(f"forgotten: {dropped.method} {_place(dropped)}, which was {_STATES[dropped.state]}")
    return Exit.OK


_STATES: Final = {"open": "open", "done": "done", "refused": "refused", "doubt": "in doubt"}


def _entry_document(entry: JournalEntry) -> Json:
    return {
        "name": entry.name,
        "method": entry.method,
        "address": _place(entry),
        "attempts": entry.sends,
        "last": entry.code,
    }


def _place(entry: JournalEntry) -> str:
    """Return the address without its private parts."""
    return entry.url.partition("?")[0].partition("#")[0]


def _say(out: Output, name: str, outcome: Outcome) -> None:
    match outcome:
        case Done(answer=answer, replayed=replayed):
            status = "" if answer is None else f" with status {answer.status}"
            out.say(f"{name}done{status}{' (the stored answer of an earlier attempt)' if replayed else ''}")
            if answer is not None and answer.body and not name:
                out.say(*answer.body.decode("utf-8", "replace").splitlines())
        case Refused(code=code, detail=detail, key_action=action):
            remedy = "remove the obstacle and resume" if action == "keep" else "correct the request, under a new name"
            out.say(f"{name}refused: {code}{_after(detail)}; {remedy}{_explanation_link(outcome)}")
        case InDoubt(code=code, operation_url=url, detail=detail):
            where = f"; see {url}" if url is not None else ""
            out.say(f"{name}in doubt: {code}{_after(detail)}{where}{_explanation_link(outcome)}")
        case NotYet(code=code, detail=detail, retry_after=wait):
            when = f" after {wait:.0f} s" if 1 <= wait < float("inf") else ""
            out.say(f"{name}no outcome yet: {code}{_after(detail)}; go on{when} with semel send --resume")


def _explanation_link(outcome: Outcome) -> str:
    """Return the link to the server's explanation of its refusal."""
    found = None if outcome.answer is None else outcome.answer.documentation
    return f" (explained at {found})" if found is not None else ""


def _after(detail: str) -> str:
    return f", {detail}" if detail else ""


def _document(name: str | None, outcome: Outcome) -> Json:
    answer = outcome.answer
    found: dict[str, Any] = {
        "name": name,
        "outcome": {Done: "done", Refused: "refused", InDoubt: "in-doubt", NotYet: "not-yet"}[type(outcome)],
        "status": None if answer is None else answer.status,
        "body": None if answer is None else answer.body.decode("utf-8", "replace"),
    }
    if answer is not None and answer.documentation is not None:
        found["documentation"] = answer.documentation
    match outcome:
        case Done(replayed=replayed):
            return {**found, "replayed": replayed}
        case Refused(code=code, key_action=action, detail=detail):
            return {**found, "code": code, "keyAction": action, "detail": detail}
        case InDoubt(code=code, operation_url=url, detail=detail):
            return {**found, "code": code, "operation": url, "detail": detail}
        case NotYet(code=code, retry_after=wait, may_have_happened=happened, detail=detail):
            later = wait if wait < float("inf") else None
            return {**found, "code": code, "retryAfter": later, "mayHaveHappened": happened, "detail": detail}


def _code(outcomes: list[Outcome]) -> int:
    return Exit.OK if all(isinstance(outcome, Done) for outcome in outcomes) else Exit.REFUSED


def _body(text: str | None) -> bytes | None:
    if text is None:
        return None
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    return _read(text[1:], "the body")


def _headers(options: argparse.Namespace) -> dict[str, str]:
    lines = list(options.header)
    if options.header_file is not None:
        lines += [
            line for line in _read(options.header_file, "--header-file").decode("latin-1").splitlines() if line.strip()
        ]
    found = {}
    for line in lines:
        name, colon, text = line.partition(":")
        if not colon or not name.strip():
            raise UsageFailed("a header is written 'Name: value', such as --header 'Authorization: Bearer ...'")
        if name.strip().lower() == "idempotency-key":
            raise UsageFailed("semel send makes the key itself; give your own one with --key")
        found[name.strip()] = text.strip()
    return found


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageFailed(f"{option}: {path!r} cannot be read: {error.strerror or error}") from None
