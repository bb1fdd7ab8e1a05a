"""Settle records from a form: validate it, preview the effects, apply them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from semel.admin.damaged import is_damaged
from semel.admin.describe import state_label
from semel.admin.failures import CommandFailed
from semel.admin.settling import (
    REASON_LENGTH_MAX,
    consequence,
    foresee,
    make_answer,
    parse_step_result,
    read_steps,
    settle,
)
from semel.bulk.rules import is_bulk
from semel.core.identity import uuid_text
from semel.core.model import Record, Resolution, State
from semel.engine.sync_engine import Engine
from semel.errors import RecordUnreadableError
from semel.http.headers import BODYLESS_STATUSES
from semel.steps.doubts import step_of
from semel.steps.findings import find_unfinished, state_text
from semel.steps.rules import Unpackable, unpack_steps

FORCE: Final = "confirm that the handler has stopped"
OUTCOMES: Final = ("succeeded", "refused", "did-not-happen", "step-succeeded")
STEP_FIELD: Final = "step:"  # and the step's name
_SAID: Final = {"happened": True, "not": False}
ANSWER_BYTES_MAX: Final = 64 * 1024
_VERBATIM: Final = ("body", "result")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}[\x20-\x7e]{0,100}").fullmatch


@dataclass(frozen=True, slots=True)
class Finding:
    """The values of a form, as text."""

    outcome: str = ""
    status: str = ""
    body: str = ""
    media_type: str = ""
    result: str = ""
    no_answer: str = ""
    force: str = ""
    reason: str = ""
    evidence: str = ""
    steps: Mapping[str, bool] = field(default_factory=dict)  # whether each happened, by name

    @property
    def ends(self) -> bool:
        """Whether it ends the whole command, with an outcome for each step."""
        return bool(self.steps)


TEXTS: Final = tuple(each.name for each in fields(Finding) if each.name != "steps")


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of one command in their order, with the recorded state of each.

    ``open``: those that had begun and whose outcome was not recorded. ``resting``: nothing is in doubt,
    so a resolution ends the whole command.
    """

    steps: tuple[tuple[str, str], ...] = ()
    open: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    resting: bool = False
    damage: str | None = None


class NotSettled(str):
    """The reason that one record was not settled."""


def recorded_steps(engine: Engine, records: Sequence[Record]) -> RecordedSteps:
    """Read the steps of the only record; empty for several records, a bulk or a damaged record. Raises StoreError."""
    if len(records) != 1 or is_bulk(records[0].recipe) or is_damaged(records[0]):
        return RecordedSteps()
    [record] = records
    resting = record.state == State.CLAIMED
    try:
        steps = unpack_steps(read_steps(engine, record), record.generation)
    except Unpackable as error:
        return RecordedSteps(resting=resting, damage=str(error))
    return RecordedSteps(
        tuple((step.shown, state_text(step)) for step in steps),
        tuple(step.shown for step in find_unfinished(steps)),
        tuple(step.shown for step in steps if step.finished),
        resting,
    )


def call_names(record: Record, listed: object) -> list[str]:
    """Return the names of the calls that a command's steps have made, by which the other system knows them.

    Parameters: ``listed`` its steps, as :func:`semel.admin.settling.read_steps` reads them.
    """
    if is_bulk(record.recipe) or is_damaged(record):
        return []
    try:
        return [step.name for step in unpack_steps(listed, record.generation) if not step.ordinal]
    except Unpackable:
        return []


def parse_finding(
    form: Mapping[str, str], records: Sequence[Record] = (), recorded: RecordedSteps | None = None
) -> tuple[Finding, dict[str, str]]:
    """Parse the finding in a form, and return it with its errors by field.

    Parameters: ``recorded`` the steps of the only record.

    >>> parse_finding({"outcome": "did-not-happen", "reason": "the provider has no charge"})[1]
    {}
    >>> sorted(parse_finding({"outcome": "succeeded"})[1])
    ['reason', 'status']
    >>> parse_finding({"outcome": "refused", "status": "409", "reason": "refunded", "step:mail": "not"})[0].steps
    {'mail': False}
    """
    given = {name: form.get(name, "") for name in TEXTS}
    # Browsers send line ends as CR LF.
    finding = Finding(
        **{name: text.replace("\r\n", "\n") if name in _VERBATIM else text.strip() for name, text in given.items()},
        steps={
            name.removeprefix(STEP_FIELD): _SAID[value]
            for name, value in form.items()
            if name.startswith(STEP_FIELD) and value in _SAID
        },
    )
    errors = {}
    if finding.outcome not in OUTCOMES:
        errors["outcome"] = "Choose what you found."
    if not finding.reason:
        errors["reason"] = "Explain how you know; the audit trail keeps it."
    elif len(_reason(finding)) > REASON_LENGTH_MAX:
        errors["reason"] = f"Reason and evidence must have at most {REASON_LENGTH_MAX} characters together."
    elif "\0" in _reason(finding):
        errors["reason"] = "Reason and evidence must be text without a NUL character."
    if status := _wrong_status(finding):
        errors["status"] = status
    if body := _wrong_body(finding):
        errors["body"] = body
    if steps := _wrong_steps(finding, recorded or RecordedSteps()):
        errors["steps"] = steps
    if len(records) > 1 and finding.steps:
        errors["one"] = "Steps belong to one command: settle each record separately."
    elif len(records) > 1 and (finding.body or finding.outcome == "step-succeeded"):
        errors["one"] = "A body and a step's result belong to one command: settle each record separately."
    elif finding.outcome == "step-succeeded":
        try:
            for record in records:
                parse_step_result(step_of(record.doubt), finding.result)
        except ValueError as error:
            errors["result"] = f"The step's result {error}."
        except CommandFailed as error:
            errors["result"] = f"{error}."
    elif finding.result.strip():
        errors["result"] = "Give a step's result only if the step in doubt succeeded."
    return finding, errors


def _wrong_steps(finding: Finding, recorded: RecordedSteps) -> str | None:
    """Check the store's rules for steps, in the words of the form. The store decides, under the record's lock."""
    if finding.outcome == "step-succeeded" and finding.ends:
        return (
            "Either the step in doubt succeeded and the command continues, or the outcome of each step ends it: "
            "choose one."
        )
    if not (finding.ends or recorded.resting) or finding.outcome not in OUTCOMES or recorded.damage is not None:
        return None
    unanswered = [name for name in recorded.open if name not in finding.steps]
    if unanswered:
        return f"For each step that had begun, choose whether it happened; missing: {', '.join(unanswered)}."
    happened = [name for name in (*recorded.finished, *finding.steps) if finding.steps.get(name, True)]
    if finding.outcome == "did-not-happen" and happened:
        return (
            f"The step {happened[0]} has happened, so the whole command may not run again. If it was undone, settle "
            "the command as refused, with an answer that explains it."
        )
    return None


def _wrong_status(finding: Finding) -> str | None:
    is_status = finding.status.isascii() and finding.status.isdecimal() and 200 <= int(finding.status[:4]) <= 599
    if finding.status and not is_status:
        return "A status is a number from 200 to 599."
    if finding.outcome in ("did-not-happen", "step-succeeded") and (finding.status or finding.no_answer):
        return "Only a command that ends has an answer."
    if finding.outcome == "refused" and (finding.no_answer or not is_status or int(finding.status) < 400):
        return "A refusal needs the status that retries get, from 400 to 599, such as 409."
    if finding.outcome == "succeeded" and bool(finding.status) == bool(finding.no_answer):
        return "Give the status that retries get, or confirm that they get no answer: one of the two."
    if finding.status and finding.body and int(finding.status) in BODYLESS_STATUSES:
        return f"An answer with status {finding.status} has no body."
    return None


def _wrong_body(finding: Finding) -> str | None:
    if not finding.body:
        return None
    if not finding.status:
        return "A body needs a status: give both, or neither."
    if len(finding.body.encode()) > ANSWER_BYTES_MAX:
        return f"A body has at most {ANSWER_BYTES_MAX} bytes here; for a longer one: semel settle --body-file"
    if not _MEDIA_TYPE(finding.media_type):
        return "Give the body's content type, such as application/json."
    if finding.media_type.partition(";")[0].strip().lower().endswith(("/json", "+json")):
        try:
            json.loads(finding.body)
        except (ValueError, RecursionError) as error:
            return f"The content type is JSON, but the body is not: {error}."
    return None


def form_fields(record: Record) -> dict[str, str]:
    """Return one record as form fields; ``seen`` identifies the version that the operator saw."""
    return {
        "seen": seen_stamp(record),
        "id": uuid_text(record.operation_id),
        "operation": record.operation,
        "caller": f"{record.tenant}/{record.caller}",
        "state": state_label(State(record.state).name) if record.state in tuple(State) else "DAMAGED",
        "doubt": record.doubt or "",
    }


def seen_stamp(record: Record) -> str:
    """Identify the version of a record, so that a form settles no record that has changed since.

    A record in doubt may be CLAIMED by now: a resolution meant for the doubt would end the whole command.
    """
    resting = int(record.state == State.CLAIMED)
    return f"{uuid_text(record.operation_id)}:{record.fence}:{resting}:{step_of(record.doubt) or ''}"


def settle_all(
    engine: Engine, chosen: Sequence[tuple[str, Record]], finding: Finding, operator: str, now: int, *, write: bool
) -> list[tuple[dict[str, str], str]]:
    """Settle or preview each record; the text is a :class:`NotSettled` for each that cannot be settled."""
    results: list[tuple[dict[str, str], str]] = []
    for seen, record in chosen:
        result: str
        if seen != seen_stamp(record):
            result = NotSettled(f"refused: the record has changed since you loaded it{_by_whom(engine, record)}")
        else:
            try:
                resolution = _resolution(record, finding, operator)
                if write:
                    state = settle(engine, record, resolution, force=FORCE)
                else:
                    state = foresee(record, resolution, now, listed=read_steps(engine, record), force=FORCE)
                result = consequence(resolution, state)
            except (CommandFailed, RecordUnreadableError) as error:
                result = NotSettled(f"{error}{_by_whom(engine, record) if write else ''}")
        results.append(({**form_fields(record), "seen": seen}, result))
    return results


def _resolution(record: Record, finding: Finding, operator: str) -> Resolution:
    happened = finding.outcome != "did-not-happen"
    answer = None
    if finding.outcome in ("succeeded", "refused") and finding.status:
        headers = ((b"content-type", finding.media_type.encode()),) if finding.body else ()
        answer = make_answer(int(finding.status), headers, finding.body.encode())
    ends = tuple(finding.steps.items()) if finding.ends or record.state == State.CLAIMED else None
    is_of_step = ends is None and finding.outcome in ("did-not-happen", "step-succeeded")
    step = step_of(record.doubt) if is_of_step else None
    result = parse_step_result(step, finding.result) if finding.outcome == "step-succeeded" else None
    return Resolution(
        *(record.id, record.fence, happened, answer, operator, _reason(finding), bool(finding.force)),
        step=step,
        result=result,
        refused=finding.outcome == "refused",
        ends=ends,
    )


def _reason(finding: Finding) -> str:
    return f"{finding.reason} (evidence: {finding.evidence})" if finding.evidence else finding.reason


def _by_whom(engine: Engine, record: Record) -> str:
    """Describe the actor who settled the record first, by the audit trail."""
    audit = engine.perform("audit", lambda: engine.store.audit(record.id, 1))
    return f"; {audit[-1].actor} has settled it: {audit[-1].reason}" if audit else ""
