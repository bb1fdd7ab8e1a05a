"""An operator's word on some records, as a form has it: what is wrong with it, what it would do, what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from semel.admin.describe import shown_state
from semel.admin.settling import REASON_LENGTH_MAX, consequence, foresee, settle
from semel.cli.exits import CommandFailed
from semel.core.identity import uuid_text
from semel.core.model import Answer, Record, Resolution, State
from semel.engine.sync_engine import Engine
from semel.errors import RecordUnreadableError
from semel.steps.doubts import step_of

FORCE: Final = "tick that the handler is gone"


@dataclass(frozen=True, slots=True)
class Word:
    """What a form says, as text."""

    word: str = ""
    status: str = ""
    no_answer: str = ""
    force: str = ""
    reason: str = ""
    evidence: str = ""


class Refused(str):
    """Why one record was not settled."""


def word_of(form: Mapping[str, str]) -> tuple[Word, dict[str, str]]:
    """The word, and what is wrong with it by field.

    >>> word_of({"word": "did-not-happen", "reason": "the provider has no charge"})[1]
    {}
    >>> sorted(word_of({"word": "succeeded"})[1])
    ['reason', 'status']
    """
    word = Word(**{field.name: form.get(field.name, "").strip() for field in fields(Word)})
    errors = {}
    if word.word not in ("succeeded", "did-not-happen"):
        errors["word"] = "Say what you found out."
    if not word.reason:
        errors["reason"] = "Say how you know; it is kept in the audit trail."
    elif len(_reason(word)) > REASON_LENGTH_MAX:
        errors["reason"] = f"Reason and evidence must have at most {REASON_LENGTH_MAX} characters together."
    is_status = word.status.isascii() and word.status.isdecimal() and 200 <= int(word.status[:4]) <= 599
    if word.status and not is_status:
        errors["status"] = "A status is a number from 200 to 599."
    elif word.word == "did-not-happen" and (word.status or word.no_answer):
        errors["status"] = "Only a success has an answer."
    elif word.word == "succeeded" and bool(word.status) == bool(word.no_answer):
        errors["status"] = "Give the status that retries get, or confirm that they get no answer: one of the two."
    return word, errors


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
        resolution = _resolution(record, word, operator)
        result: str
        if seen != seen_of(record):
            result = Refused(f"refused: the record has gone on since you looked at it{_by_whom(engine, record)}")
        else:
            try:
                if write:
                    state = settle(engine, record, resolution, force=FORCE)
                else:
                    state = foresee(record, resolution, now, force=FORCE)
                result = consequence(resolution, state)
            except (CommandFailed, RecordUnreadableError) as error:
                result = Refused(f"{error}{_by_whom(engine, record) if write else ''}")
        results.append(({**shown(record), "seen": seen}, result))
    return results


def _resolution(record: Record, word: Word, operator: str) -> Resolution:
    happened = word.word == "succeeded"
    answer = Answer(int(word.status), (), b"") if happened and word.status else None
    step = None if happened else step_of(record.doubt)
    return Resolution(record.id, record.fence, happened, answer, operator, _reason(word), bool(word.force), step=step)


def _reason(word: Word) -> str:
    return f"{word.reason} (evidence: {word.evidence})" if word.evidence else word.reason


def _by_whom(engine: Engine, record: Record) -> str:
    """Who was first, by the audit trail."""
    audit = engine.perform("audit", lambda: engine.store.audit(record.id, 1))
    return f"; {audit[-1].actor} has settled it: {audit[-1].reason}" if audit else ""
