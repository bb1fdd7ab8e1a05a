"""An outbox event as a value. ``outbox/rules.py`` defines the valid ones."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """A message for other systems, written in its effect's transaction."""

    id: str  # a UUID: the same for every run of the same execution
    topic: str
    type: str
    aggregate_type: str
    aggregate_id: str
    payload: bytes
    headers: tuple[tuple[str, str], ...]
    tenant: str
    operation_id: bytes | None


class Waiting(NamedTuple):
    """An event that is stored and not yet published. Times in microseconds of the store's clock."""

    seq: int
    event: Event
    created_at: int
    tries: int
    next_at: int = 0
    parked_at: int | None = None
    reason: str | None = None
    damage: str | None = None  # why it is unreadable; its event then holds the readable part, and is never published
