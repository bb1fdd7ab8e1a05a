"""Damaged SQLite files: every flipped byte leads to an answer or a clear error, and what was settled runs again only
where SQLite's own integrity check shows the damage.

SQLite keeps no checksums of its pages. A flip in an index may hide a record, which then looks as if it had never been:
that is the limit, and `semel doctor` is what notices it. A flip in a record itself is noticed by Semel.
"""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from semel.core.contract import Identity
from semel.core.flow import Flow
from semel.core.model import Claim, Proceed, Replay, State
from semel.engine.state import Core
from semel.errors import ConfigurationError, StoreError
from semel.policy import Policy
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.store import SqliteStore
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, OK, attempt, settlement
from semel.testing.clock import START_US, SettableClock
from tests.fuzz.reading import Choices

TOKENS = (
    *(bytes([0, page, low, 1 << bit]) for page in (0, 8, 16, 24, 32) for low in (0, 200) for bit in (0, 3, 7)),
    b"\xff",
)
FLIPS_MAX: Final = 4
POLICIES: Final = (EXTERNAL, IDEMPOTENT, Policy(answer_seconds=3600, tombstone_seconds=7200))
SETTLED: Final = (State.SUCCEEDED, State.FAILED_REPLAYABLE)


@dataclass(frozen=True)
class Sample:
    """A sound database file, and what was done in it."""

    folder: Path
    content: bytes
    claims: tuple[tuple[Claim, State], ...]


_made: list[Sample] = []


def one(data: bytes) -> None:
    """Up to four places (three bytes each) and what is flipped there (one byte)."""
    sample = _sample()
    choices = Choices(data)
    damaged = bytearray(sample.content)
    for _ in range(FLIPS_MAX):
        if choices.over:
            break
        damaged[choices.number(3) % len(damaged)] ^= choices.number()
    path = sample.folder / "damaged.db"
    path.write_bytes(damaged)
    try:
        _judge(path, sample)
    finally:
        for name in ("damaged.db", "damaged.db-wal", "damaged.db-shm", "damaged.db-journal"):
            (sample.folder / name).unlink(missing_ok=True)


def _judge(path: Path, sample: Sample) -> None:
    store, driver = SqliteStore(), SqliteDriver(str(path), busy_seconds=0.2, clock=SettableClock(START_US + 1_000_000))
    run_again = False
    try:
        if _perform(driver, store.identity) is None:
            return
        for claim, state in sample.claims:
            again = claim._replace(nonce=bytes(16))
            [verdict] = _perform(driver, partial(store.claim, [again])) or [None]
            if isinstance(verdict, Replay):
                assert verdict.answer == OK
                assert state in SETTLED
            run_again = run_again or (isinstance(verdict, Proceed) and state in SETTLED)
        for verb in (partial(store.lapse, 10), partial(store.purge, None, 10), store.counts):
            _perform(driver, verb)
    finally:
        driver.close()
    if run_again:
        assert integrity(path) != "ok", "a settled command would run again, and nothing shows why"


def _perform(driver: SqliteDriver, make: Callable[[], Flow[Any]]) -> Any:
    """Return what a verb answers; None if it raises an error that helps and repeats nothing stored."""
    problem = None
    try:
        answer = driver.run(make)
        if isinstance(answer, Identity):
            Core(None, None, 10, 10).check_identity(answer)
    except (ConfigurationError, StoreError) as error:
        problem = str(error)
    if problem is None:
        return answer
    assert ":" in problem
    assert "\n" not in problem
    assert "alice" not in problem
    return None


def integrity(path: Path) -> str:
    """Return what SQLite's own check finds in the file."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            return "\n".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check"))
    except sqlite3.Error as error:
        return str(error)


def _sample() -> Sample:
    if not _made:
        folder = Path(tempfile.mkdtemp(prefix="semel-fuzz-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = folder / "sound.db"
        clock = SettableClock()
        store, driver = SqliteStore(), SqliteDriver(str(path), clock=clock)
        driver.run(lambda: store.migrate("a-store", b"none"))
        claims = []
        for number in range(24):
            state = (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.SUCCEEDED, State.PROCESSING, State.UNKNOWN)[
                number % 5
            ]
            claim = attempt(f"key-{number}", policy=POLICIES[number % len(POLICIES)])
            [verdict] = driver.run(partial(store.claim, [claim]))
            assert isinstance(verdict, Proceed)
            if state is not State.PROCESSING:
                driver.run(partial(store.settle, [settlement(verdict.grant, state)]))
            claims.append((claim, state))
        driver.close()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE").fetchall()
        _made.append(Sample(folder, path.read_bytes(), tuple(claims)))
    return _made[0]
