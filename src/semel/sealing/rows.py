"""Replaces a record's stored answer by another form of it. Pure, over the whole row, as ``core/settle.py``."""

from __future__ import annotations

from typing import NamedTuple

from semel.core.model import STORED_ANSWERS, Answer, AnswerKind, Record
from semel.core.record import answer_digest, is_sound, pack_headers


class Reseal(NamedTuple):
    """A stored answer in another form: sealed now, or under another key. ``seen``: digest of the answer it replaces."""

    id: bytes
    seen: bytes
    answer: Answer
    answer_kind: AnswerKind


def reseal_row(row: Record | None, change: Reseal) -> Record | None:
    """Return the row with its answer in another form; None if the answer is not the one that was seen."""
    if row is None or not is_sound(row) or row.answer_kind not in STORED_ANSWERS or row.answer_digest != change.seen:
        return None
    block = pack_headers(change.answer.headers)
    return row._replace(
        answer_kind=change.answer_kind,
        answer_digest=answer_digest(change.answer.status, block, change.answer.body),
        headers=block,
        body=change.answer.body,
    )
