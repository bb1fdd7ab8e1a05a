"""An operator's word on some records, as a form has it: what is wrong with it, what it would do, what it did."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from semel.admin.describe import shown_state
from semel.admin.settling import (
    REASON_LENGTH_MAX,
    begun_steps,
    consequence,
    foresee,
    found_answer,
    found_step_result,
    settle,
)
from semel.cli.exits import CommandFailed
from semel.core.identity import uuid_text
from semel.core.model import Record, Resolution, State
from semel.engine.sync_engine import Engine
from semel.errors import RecordUnreadableError
from semel.http.headers import BODYLESS_STATUSES
from semel.steps.doubts import step_of

FORCE: Final = "tick that the handler is gone"
WORDS: Final = ("succeeded", "did-not-happen", "step-succeeded")
ANSWER_BYTES_MAX: Final = 64 * 1024
_VERBATIM: Final = ("body", "result")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}[\x20-\x7e]{0,100}").fullmatch


@dataclass(frozen=True, slots=True)
class Word:
    """What a form says, as text."""

    word: str = ""
    status: str = ""
    body: str = ""
    media_type: str = ""
    result: str = ""
    no_answer: str = ""
    force: str = ""
    reason: str = ""
    evidence: str = ""


class NotSettled(str):
    """Why one record was not settled."""


def word_of(form: Mapping[str, str], records: Sequence[Record] = ()) -> tuple[Word, dict[str, str]]:
    """The word on these records, and what is wrong with it by field.

    >>> word_of({"word": "did-not-happen", "reason": "the provider has no charge"})[1]
    {}
    >>> sorted(word_of({"word": "succeeded"})[1])
    ['reason', 'status']
    """
    given = {field.name: form.get(field.name, "") for field in fields(Word)}
    # A browser sends each line's end as CR LF, whatever was typed.
    word = Word(
        **{name: text.replace("\r\n", "\n") if name in _VERBATIM else text.strip() for name, text in given.items()}
    )
    errors = {}
    if word.word not in WORDS:
        errors["word"] = "Say what you found out."
    if not word.reason:
        errors["reason"] = "Say how you know; it is kept in the audit trail."
    elif len(_reason(word)) > REASON_LENGTH_MAX:
        errors["reason"] = f"Reason and evidence must have at most {REASON_LENGTH_MAX} characters together."
    elif "\0" in _reason(word):
        errors["reason"] = "Reason and evidence must be text without a NUL character."
    if status := _wrong_status(word):
        errors["status"] = status
    if body := _wrong_body(word):
        errors["body"] = body
    if len(records) > 1 and (word.body or word.word == "step-succeeded"):
        errors["one"] = "A body and a step's result belong to one command: settle each record by itself."
    elif word.word == "step-succeeded":
        try:
            for record in records:
                found_step_result(step_of(record.doubt), word.result)
        except ValueError as error:
            errors["result"] = f"The step's result {error}."
        except CommandFailed as error:
            errors["result"] = f"{error}."
    elif word.result.strip():
        errors["result"] = "A step's result belongs to: the step in doubt succeeded."
    return word, errors


def _wrong_status(word: Word) -> str | None:
    is_status = word.status.isascii() and word.status.isdecimal() and 200 <= int(word.status[:4]) <= 599
    if word.status and not is_status:
        return "A status is a number from 200 to 599."
    if word.word in ("did-not-happen", "step-succeeded") and (word.status or word.no_answer):
        return "Only a success of the whole command has an answer."
    if word.word == "succeeded" and bool(word.status) == bool(word.no_answer):
        return "Give the status that retries get, or confirm that they get no answer: one of the two."
    if word.status and word.body and int(word.status) in BODYLESS_STATUSES:
        return f"An answer with status {word.status} has no body."
    return None


def _wrong_body(word: Word) -> str | None:
    if not word.body:
        return None
    if not word.status:
        return "A body needs a status: give both, or neither."
    if len(word.body.encode()) > ANSWER_BYTES_MAX:
        return f"A body has at most {ANSWER_BYTES_MAX} bytes here; for a longer one: semel settle --body-file"
    if not _MEDIA_TYPE(word.media_type):
        return "Say what the body is by its content type, such as application/json."
    if word.media_type.partition(";")[0].strip().lower().endswith(("/json", "+json")):
        try:
            json.loads(word.body)
        except (ValueError, RecursionError) as error:
            return f"The content type says JSON, and the body is none: {error}."
    return None


def shown(record: Record) -> dict[str, str]:
    """One record as a form has it; ``seen`` is what the operator has looked at."""
    return {
        "seen": seen_of(record),
        "id": uuid_text(record.operation_id),
        "operation": record.operation,
        "caller": f"{record.tenant}/{record.caller}",
        "state": shown_state(State(record.state).name) if record.state in tuple(State) else "DAMAGED",
        "doubt": record.doubt or "",
    }


def seen_of(record: Record) -> str:
    """Of a record that has gone on since, nothing is settled."""
    return f"{uuid_text(record.operation_id)}:{record.fence}:{step_of(record.doubt) or ''}"


def settle_all(
    engine: Engine, chosen: Sequence[tuple[str, Record]], word: Word, operator: str, now: int, *, write: bool
) -> list[tuple[dict[str, str], str]]:
    """What becomes of each record, or would become of it; a :class:`Refused` where nothing does."""
    results: list[tuple[dict[str, str], str]] = []
    for seen, record in chosen:
        result: str
        if seen != seen_of(record):
            result = NotSettled(f"refused: the record has gone on since you looked at it{_by_whom(engine, record)}")
        else:
            try:
                resolution = _resolution(record, word, operator)
                if write:
                    state = settle(engine, record, resolution, force=FORCE)
                else:
                    state = foresee(record, resolution, now, listed=begun_steps(engine, record), force=FORCE)
                result = consequence(resolution, state)
            except (CommandFailed, RecordUnreadableError) as error:
                result = NotSettled(f"{error}{_by_whom(engine, record) if write else ''}")
        results.append(({**shown(record), "seen": seen}, result))
    return results


def _resolution(record: Record, word: Word, operator: str) -> Resolution:
    happened = word.word != "did-not-happen"
    answer = None
    if word.word == "succeeded" and word.status:
        headers = ((b"content-type", word.media_type.encode()),) if word.body else ()
        answer = found_answer(int(word.status), headers, word.body.encode())
    step = None if word.word == "succeeded" else step_of(record.doubt)
    result = found_step_result(step, word.result) if word.word == "step-succeeded" else None
    return Resolution(
        *(record.id, record.fence, happened, answer, operator, _reason(word), bool(word.force)),
        step=step,
        result=result,
    )


def _reason(word: Word) -> str:
    return f"{word.reason} (evidence: {word.evidence})" if word.evidence else word.reason


def _by_whom(engine: Engine, record: Record) -> str:
    """Who was first, by the audit trail."""
    audit = engine.perform("audit", lambda: engine.store.audit(record.id, 1))
    return f"; {audit[-1].actor} has settled it: {audit[-1].reason}" if audit else ""
