"""The commands that the crash tests run, and the evidence they leave outside Semel.

A process that may be killed writes its evidence with one ``write`` to an O_APPEND file and syncs it: a line is
there whole or not at all. The ledger represents the outside world, the acks the clients' answers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from semel import Answer, AsyncEngine, Command, Effects, Engine, Permit, Policy, Scope
from semel.core.identity import record_id
from verification.history.check import Report, check
from verification.history.engines import AsyncRecordingEngine, RecordingEngine
from verification.history.reading import read_history
from verification.history.recorder import Recorder
from verification.history.timeline import violation_lines

LEASE_SECONDS = 1.0
SCOPE = Scope("acme", "alice", "pay")
HEADERS = ((b"content-type", b"text/plain"),)


def command(key: str, effects: Effects | str, **options: Any) -> Command:
    """A command that is the same in every process."""
    made = {"lease_seconds": LEASE_SECONDS, "deadline_seconds": 60, "wait_seconds": 0, **options}
    name = effects.name.lower() if isinstance(effects, Effects) else effects
    policy = Policy.of(effects=name, **made)
    return Command(SCOPE, key, hashlib.sha256(key.encode()).digest(), "crash", policy)


def id_of(key: str) -> bytes:
    return record_id(SCOPE, key, None)


def answer_of(key: str, token: str) -> Answer:
    """The answer of the execution whose effect has this token."""
    return Answer(201, HEADERS, f"{key}:{token}".encode())


def append(path: Path, *words: str) -> None:
    """Append one line that survives this process."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (" ".join(words) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


class Folder:
    """The folder of one scenario: the store, the ledger, the acks, and the histories of its processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.database = self.path / "semel.db"
        self.ledger = self.path / "ledger"
        self.acks = self.path / "acks"
        self.histories = self.path / "histories"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def create(self) -> None:
        """Migrate the store and make the business table, on connections that are closed again."""
        engine = Engine.connect(self.url)
        engine.migrate()
        engine.close()
        self.sql("CREATE TABLE business (key TEXT NOT NULL, token TEXT NOT NULL)")

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement on its own connection."""
        import sqlite3

        connection = sqlite3.connect(self.database, timeout=5, isolation_level=None)
        try:
            return connection.execute(text, values).fetchall()
        finally:
            connection.close()

    def is_locked(self) -> bool:
        """Whether a writer holds the file."""
        import sqlite3

        connection = sqlite3.connect(self.database, timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    def engine(self, options: str = "", **more: Any) -> Engine:
        return Engine.connect(self.url + options, **more)

    def async_engine(self, options: str = "", **more: Any) -> AsyncEngine:
        return AsyncEngine.connect(self.url + options, **more)

    def recorder(self) -> Recorder:
        """A history of this process, in its own file."""
        return Recorder(self.histories, store=self.url)

    def recording(self, recorder: Recorder, options: str = "") -> RecordingEngine:
        return RecordingEngine.recording(self.url + options, recorder)

    def async_recording(self, recorder: Recorder, options: str = "") -> AsyncRecordingEngine:
        return AsyncRecordingEngine.recording(self.url + options, recorder)

    def judge(self) -> Report:
        """Check the histories of all processes, with the effects that an ATOMIC command committed."""
        with self.recorder() as recorder:
            for key, token in self.sql("SELECT key, token FROM business"):
                answer = answer_of(key, token)
                recorder.note_effect(id_of(key), effects="atomic", generation=0, derived=None, answer=answer)
        report = check(read_history([self.histories]))
        assert report.violations == [], "\n".join(
            line for violation in report.violations[:3] for line in violation_lines(violation)
        )
        assert report.undecided == []
        assert "the wall clock was stepped" not in " ".join(report.notes), report.notes
        return report

    def perform_effect(self, permit: Permit, key: str, recorder: Recorder | None = None) -> Answer:
        """The side effect, where its kind belongs, and an answer that no second execution would give."""
        token = os.urandom(8).hex()
        if permit.effects is Effects.ATOMIC:
            permit.connection.execute("INSERT INTO business (key, token) VALUES (?, ?)", (key, token))
        else:
            append(self.ledger, key, permit.key_for("charge"), token)
            if recorder is not None:
                recorder.effect(permit, answer_of(key, token))
        return answer_of(key, token)

    def acknowledge(self, key: str, answer: Answer) -> None:
        """The client got its answer."""
        append(self.acks, key, json.dumps([answer.status, answer.body.decode()]).replace(" ", ""))

    # --- reading the evidence ---

    def effects_by_key(self) -> Counter[str]:
        """Effects outside the store."""
        return Counter(key for key, *_ in lines(self.ledger))

    def derived_keys(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for key, derived, _ in lines(self.ledger):
            found[key].add(derived)
        return found

    def read_acks(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for key, answer in lines(self.acks):
            found[key].add(answer)
        return found

    def states(self, keys: Iterable[str]) -> dict[str, int]:
        """The stored state of each of these keys that has a record."""
        stored = dict(self.sql("SELECT id, state FROM semel_record"))
        return {key: stored[id_of(key)] for key in keys if id_of(key) in stored}

    def business(self) -> Counter[str]:
        return Counter(key for (key,) in self.sql("SELECT key FROM business"))
