"""Notes: a downstream system that deduplicates by the given key, so its operation may be declared IDEMPOTENT."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from semel.reference.ledger import Ledger, LedgerLine


@dataclass(frozen=True, slots=True)
class Note:
    """One written note."""

    id: str
    caller: str
    text: str


class Notes:
    """Writes each key's note once, however often clients send it. ``path`` is the file of its ledger."""

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path)

    def write(self, key: str, caller: str, text: str) -> Note:
        """Write a note durably; for a known key, return the note that was written first. Blocks for one fsync."""
        entry: LedgerLine = {
            "key": key,
            "id": f"note_{secrets.token_hex(8)}",
            "caller": caller,
            "detail": {"text": text},
        }
        return _note(self._ledger.append(entry, once=True))

    def notes_of(self, caller: str) -> list[Note]:
        """Return one caller's notes, in their order."""
        return [_note(entry) for entry in self._ledger.entries() if entry["caller"] == caller]


def _note(entry: LedgerLine) -> Note:
    return Note(entry["id"], entry["caller"], entry["detail"]["text"])
