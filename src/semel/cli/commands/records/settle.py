"""`semel settle`: an operator's decision about a command whose outcome could not be proven.

The settlement is a compare-and-set on the record that was read. It needs a reason, goes to the audit trail, and
must wait for the handler's deadline: until then the handler might still be running. Where a step is in doubt,
"did not happen" applies to that step: finished steps do not run again. An operator ends a command between its
steps, whose client has lost the key, as a whole, with an outcome for each step that had begun.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
from pathlib import Path
from typing import Final

from semel.admin.failures import NotFound, UsageFailed
from semel.admin.find import check_beginning, find_named, name_of
from semel.admin.settling import (
    REASON_LENGTH_MAX,
    consequence,
    foresee,
    make_answer,
    parse_step_result,
    read_steps,
    settle,
)
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.identity import uuid_text
from semel.core.model import Answer, Record, Resolution, State
from semel.engine.sync_engine import Engine
from semel.policy import NEVER_REPLAYED
from semel.steps.doubts import step_of
from semel.steps.rules import any_begun

JSON_TYPE: Final = "application/json"
BODY_BYTES_MAX: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch
_VALUE: Final = re.compile(r"[\x20-\x7e\x80-\xff]*").fullmatch


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "settle",
        "settle a command whose outcome is UNKNOWN, after you found out what really happened",
        "semel settle 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55 --did-not-happen --reason 'no charge at the provider'\n"
        "semel settle 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55 --succeeded --status 201 --body-file answer.json \\\n"
        "    --header 'Content-Type: application/json' --reason 'charged: ch_81 at the provider'\n"
        "semel settle 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55 --step-succeeded '\"ch_81\"' --reason 'ch_81 is there'\n"
        "semel settle 0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55 --refused --status 409 --step mail=not --reason 'refunded'",
        "Retries then get the answer, or run the command. Where a step is in doubt, --did-not-happen applies to that "
        "step only: finished steps do not run again. To end a CLAIMED command, whose client lost the key between two "
        "steps, give the outcome of each step that had begun (--step). Settling is refused until the handler's "
        "deadline has passed.",
    )
    parser.add_argument(
        "operation_id",
        metavar="OPERATION_ID",
        help="the operation's id, or at least 6 hex digits that it, the record's id or the key's hash begins with",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--succeeded", action="store_true", help="the effect happened: retries never run it again")
    what.add_argument(
        "--refused", action="store_true", help="the command ended without its effect: retries get this answer"
    )
    what.add_argument(
        "--did-not-happen",
        action="store_true",
        help="the effect (of the step in doubt) did not happen: a retry may run it",
    )
    what.add_argument(
        "--step-succeeded", metavar="JSON", help="the step in doubt returned this: a retry continues after it"
    )
    parser.add_argument(
        "--step",
        action="append",
        default=[],
        metavar="NAME=happened|not",
        help="ends the command: whether this step, which had begun, happened; repeat it for each such step",
    )
    parser.add_argument("--dry-run", action="store_true", help="show how the command would end; write nothing")
    parser.add_argument("--reason", required=True, help="how you know; kept in the audit trail")
    parser.add_argument("--actor", help="who settles it (default: the user name)")
    parser.add_argument(
        "--force", action="store_true", help="settle before the deadline: you know that the handler has stopped"
    )
    parser.add_argument(
        "--no-answer",
        action="store_true",
        help=(
            "with --succeeded and without --status: no retry ever gets an answer, only the fact that the command was "
            "done"
        ),
    )
    parser.add_argument(
        "--status", type=whole_number(200, 599), help="with --succeeded or --refused: the answer's HTTP status"
    )
    parser.add_argument("--body-file", metavar="FILE", help="with --status: the answer's body")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="with --status: one of its headers (default for a body of JSON: 'Content-Type: application/json')",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Settle one record."""
    check_beginning(options.operation_id, "OPERATION_ID")
    reason = _text("--reason", options.reason)
    actor = _text("--actor", options.actor if options.actor is not None else _user())
    answer, assumed = _with_type(_answer(options))
    findings = _steps(options.step)
    with open_store(options) as engine:
        everywhere = argparse.Namespace(**vars(options), tenant=None, caller=None, operation=None)
        record = find_named(engine, options.operation_id, everywhere, "OPERATION_ID")
        operation_id = record.operation_id
        whole = bool(findings) or (options.did_not_happen and _has_not_begun(engine, record))
        if findings and options.step_succeeded is not None:
            raise UsageFailed("--step ends the command, and --step-succeeded lets it continue: give one of the two")
        step = None if options.succeeded or options.refused or whole else step_of(record.doubt)
        result = _result(options.step_succeeded, step)
        happened = not options.did_not_happen
        resolution = Resolution(
            record.id, record.fence, happened, answer, actor, reason, options.force, step=step, result=result
        )
        ends = tuple(findings.items()) if whole and result is None else None
        resolution = resolution._replace(refused=options.refused, ends=ends)
        state = _foresee(engine, record, resolution) if options.dry_run else settle(engine, record, resolution)
    out.document(
        {
            "operationId": uuid_text(operation_id),
            "state": state.name,
            "answer": answer is not None,
            "step": step,
            "steps": findings,
            "dryRun": options.dry_run,
        }
    )
    if options.operation_id != uuid_text(operation_id):
        out.say(name_of(record))  # a prefix was given: print the record that it found
    if assumed:
        out.say(f"content type: {assumed}, because the body is JSON (--header 'Content-Type: ...' gives another)")
    out.say(f"{'would be settled' if options.dry_run else 'settled'}: {consequence(resolution, state)}")
    return Exit.OK


def _has_not_begun(engine: Engine, record: Record) -> bool:
    """Return whether a command rests before its first step, so that it has had no effect."""
    return record.state == State.CLAIMED and not any_begun(read_steps(engine, record), record.generation)


def _foresee(engine: Engine, seen: Record, resolution: Resolution) -> State:
    """Return the state that the record would have. Raises CommandFailed, NotFound."""
    now = engine.perform("now", engine.store.now)
    [record] = engine.perform("read", lambda: engine.store.read((seen.id,)))
    if record is None:
        raise NotFound("the record no longer exists; see: semel list")
    return foresee(record, resolution, now, listed=read_steps(engine, record))


def _steps(given: list[str]) -> dict[str, bool]:
    """Read the options that settle single steps. Raises UsageFailed."""
    findings: dict[str, bool] = {}
    for each in given:
        name, _, what = each.rpartition("=")
        if not name or what not in ("happened", "not"):
            raise UsageFailed(f"--step must have the form NAME=happened or NAME=not, such as mail=not; it is {each!r}")
        if name in findings:
            raise UsageFailed(f"--step {name} is given twice: give one outcome")
        findings[name] = what == "happened"
    return findings


def _result(given: str | None, step: str | None) -> bytes | None:
    """Return a step's result in its recorded form. Raises UsageFailed, CommandFailed."""
    if given is None:
        return None
    try:
        return parse_step_result(step, given)
    except ValueError as error:
        text = str(error)
        raise UsageFailed(f"--step-succeeded{' ' if text.startswith('must') else ': '}{text}") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _text(name: str, given: str) -> str:
    text = given.strip()
    if not text or len(text) > REASON_LENGTH_MAX:
        raise UsageFailed(f"{name} must be a text of 1 to {REASON_LENGTH_MAX} characters")
    return text


def _answer(options: argparse.Namespace) -> Answer | None:
    """Return the answer that retries will get. Raises UsageFailed."""
    if not (options.succeeded or options.refused):
        for name, given in (
            ("--status", options.status),
            ("--body-file", options.body_file),
            ("--header", options.header),
            ("--no-answer", options.no_answer),
        ):
            if given:
                raise UsageFailed(
                    f"{name} belongs to --succeeded and --refused: only an answer to the whole command has one"
                )
        return None
    if options.refused and (options.status is None or options.status < 400):
        raise UsageFailed("--refused needs the answer that retries get, with a status from 400 on: --status 409")
    if options.status is None:
        if options.body_file or options.header:
            raise UsageFailed("--status is missing: an answer has a status, such as --status 201")
        if not options.no_answer:
            raise UsageFailed(
                "--succeeded without --status is final: every retry is refused with NOT_REPLAYABLE, and no answer can "
                "be given later. Give the answer that clients should get (--status 201 --body-file answer.json), or "
                "confirm with --no-answer"
            )
        return None
    if options.no_answer:
        raise UsageFailed("give either --status or --no-answer, not both")
    headers, body = tuple(_header(line) for line in options.header), _body(options.body_file)
    try:
        return make_answer(options.status, headers, body)
    except ValueError as error:
        raise UsageFailed(f"--body-file: {error}") from error


def _with_type(answer: Answer | None) -> tuple[Answer | None, str | None]:
    """Add the content type to the answer, and return the type too if it was not given. Raises UsageFailed."""
    if answer is None or not answer.body or any(name == b"content-type" for name, _ in answer.headers):
        return answer, None
    try:
        json.loads(answer.body)
    except (ValueError, RecursionError):
        raise UsageFailed(
            "--body-file: the body is not JSON, so its content type is needed: --header 'Content-Type: text/plain'"
        ) from None
    return answer._replace(headers=((b"content-type", JSON_TYPE.encode()), *answer.headers)), JSON_TYPE


def _header(line: str) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(":")
    if not colon or not _NAME(name) or not _VALUE(value):
        raise UsageFailed(f"--header must have the form 'Name: value', not {line!r}")
    raw = name.lower().encode("ascii")
    if raw in NEVER_REPLAYED:
        raise UsageFailed(f"--header {name}: this header is never stored and never replayed")
    return raw, value.strip().encode("latin-1")


def _body(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        with Path(path).open("rb") as file:
            body = file.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        raise UsageFailed(f"--body-file {path}: {error.strerror}") from error
    if len(body) > BODY_BYTES_MAX:
        raise UsageFailed(f"--body-file {path} is larger than {BODY_BYTES_MAX} bytes: settle it without an answer")
    return body
