"""Which lists and books of steps are the same: their times relative to now, everything else as it is."""

from __future__ import annotations

from typing import Any

from semel.core.model import Record
from semel.core.outcomes import Outcome
from semel.steps.rules import Step, Unpackable, unpack_steps
from verification.explore.world import DEDUP, Worker, World


def book_form(world: World, worker: Worker) -> tuple[Any, ...]:
    """What of a worker's book makes one state another."""
    book = worker.book
    if book is None:
        return ()
    held = tuple([(name, _form(value, world.now)) for name, value in book.ledger or ()])
    outcome = None if book.outcome is None else (repr(type(book.outcome[0])), _doubt(book.outcome[0]), book.outcome[1])
    return (book.place, book.phase, held, outcome)


def steps_form(packed: bytes | None, row: Record | None, now: int) -> Any:
    """A stored list, with its times relative to now."""
    if packed is None or row is None:
        return None
    try:
        return _form(unpack_steps(packed, row.generation), now)
    except Unpackable:
        return packed


def _doubt(outcome: Outcome) -> tuple[Any, ...]:
    return tuple([getattr(outcome, name, None) for name in ("doubt", "reason", "proven", "resumes")])


def _form(value: Any, now: int) -> Any:
    if isinstance(value, Step):
        left = max(0, value.started_at + DEDUP - now) if value.repeatable and not value.finished else 0
        return (*value._replace(started_at=left),)
    if isinstance(value, (tuple, frozenset)):
        forms = [_form(each, now) for each in value]
        return tuple(sorted(forms)) if isinstance(value, frozenset) else tuple(forms)
    return value
