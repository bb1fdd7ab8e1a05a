"""The client's journal: stores keys and payload digests before the first byte of a request is sent.

A journal is a small SQLite file (or memory, if you choose) that belongs to this client and that only its user can read.
After a crash it answers three questions: which intents are open, which key each must continue with, and whether a
payload is the one that the key was made for. Only one process at a time may send an intent. Claims use the monotonic
clock that the processes of one host share, so that no jump of the wall clock ends them; do not share a journal between
hosts.

The journal opens a connection for each call: threads may share it, and it works after a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from semel.client.plan import LIFETIME_SECONDS
from semel.errors import ConfigurationError, SemelError

IntentState = Literal["open", "done", "refused", "doubt"]
"""``open``: send it (again). ``done``, ``refused``: ended. ``doubt``: never send it, the server may forget the key."""

KEEP_SECONDS: Final = 30 * 86_400.0
_APPLICATION_ID: Final = 0x536D4A31  # "SmJ1", in the header of the file
_BUSY_SECONDS: Final = 10.0
_SCHEMA: Final = (
    """CREATE TABLE semel_intent (
        intent_key TEXT PRIMARY KEY,
        name TEXT UNIQUE,
        parent TEXT,
        method TEXT NOT NULL,
        url TEXT NOT NULL,
        headers TEXT NOT NULL,
        digest BLOB NOT NULL,
        body BLOB,
        state TEXT NOT NULL,
        sends INTEGER NOT NULL DEFAULT 0,
        first_sent_at REAL,
        lifetime_seconds REAL NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        code TEXT,
        operation_url TEXT,
        status INTEGER,
        answer_headers TEXT,
        answer_body BLOB,
        may_have_happened INTEGER NOT NULL DEFAULT 0,
        claim_token TEXT,
        claim_from REAL,
        claim_until REAL,
        claim_place TEXT,
        claim_pid INTEGER,
        first_sent_boot TEXT,
        first_sent_steady REAL
    ) WITHOUT ROWID""",
    "CREATE INDEX semel_intent_updated ON semel_intent (updated_at)",
    "CREATE INDEX semel_intent_open ON semel_intent (created_at) WHERE state = 'open'",
    f"PRAGMA application_id = {_APPLICATION_ID}",
)
_ADDED: Final = {"first_sent_boot": "TEXT", "first_sent_steady": "REAL"}  # to files of earlier versions
_COLUMNS: Final = (
    "intent_key, name, parent, method, url, headers, digest, body, state, sends, first_sent_at, lifetime_seconds, "
    "created_at, updated_at, code, operation_url, status, answer_headers, answer_body, may_have_happened"
)


class JournalError(SemelError):
    """The journal cannot be used. No request was sent that the journal had not stored."""


class PayloadMismatch(SemelError):
    """A stored name or key was used with another payload. Nothing was sent."""


class JournalSeals(Protocol):
    """The part of :class:`semel.sealing.sealer.Sealer` that a journal needs."""

    def seal(self, text: bytes, about: bytes) -> bytes:
        """Encrypt ``text``, bound to ``about``."""
        ...

    def open(self, kept: bytes, about: bytes) -> bytes:
        """Decrypt data that was bound to ``about``."""
        ...


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One stored intent. Its representation shows neither the key nor a payload."""

    key: str = field(repr=False)
    name: str | None
    parent: str | None = field(repr=False)
    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    digest: bytes = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    state: IntentState = "open"
    sends: int = 0
    first_sent_at: float | None = None
    lifetime_seconds: float = LIFETIME_SECONDS
    created_at: float = 0.0
    updated_at: float = 0.0
    code: str | None = None
    operation_url: str | None = None
    status: int | None = None
    answer_headers: Mapping[str, str] | None = field(default=None, repr=False)
    answer_body: bytes | None = field(default=None, repr=False)
    may_have_happened: bool = False


@dataclass(frozen=True, slots=True)
class SendingClaim:
    """The exclusive right to send an intent, until the claim is released or its ``seconds`` have passed."""

    entry: JournalEntry
    token: str = field(repr=False)
    age_seconds: float  # since the first attempt: the most that a clock, or a reading that the journal has seen, says


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process or thread is sending the intent, for at most ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ending:
    """The result of a ``send()``."""

    state: IntentState
    code: str | None = None
    operation_url: str | None = None
    lifetime_seconds: float = LIFETIME_SECONDS
    status: int | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    body: bytes | None = field(default=None, repr=False)
    may_have_happened: bool = True


class Journal:
    """Intents in a SQLite file, or in memory.

    Parameters:
        url: ``sqlite:///intents.db``, ``sqlite:////var/lib/shop/intents.db``, or ``memory://`` for intents that need
            not survive the process. A missing file is created with mode 0600; one that others may read is refused.
        payloads: store the bodies of open intents, so that ``resume()`` can send them, and the answers of ended ones.
            By default only a digest is stored: payloads are personal data, and the caller can supply them again.
        sealer: a :class:`semel.sealing.sealer.Sealer` that encrypts stored payloads and answers.
        wall: the clock in Unix seconds; ``steady``: the monotonic one. For tests.

    Raises ConfigurationError for an invalid URL and for a file that other users may read; JournalError if the file
    cannot be used.

    >>> journal = Journal("memory://")
    >>> journal.open()
    []
    """

    def __init__(
        self,
        url: str = "sqlite:///intents.db",
        *,
        payloads: bool = False,
        sealer: JournalSeals | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(url, str) or not (url == "memory://" or url.startswith("sqlite:///")) or url == "sqlite:///":
            raise ConfigurationError(
                f"a journal's URL is sqlite:///intents.db (three slashes, or four for an absolute path) or memory://; "
                f"it is {url!r}"
            )
        self.payloads = payloads
        self._sealer = sealer
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._memory: sqlite3.Connection | None = None
        self._path = url.removeprefix("sqlite:///")
        if url == "memory://":
            self._memory = _connect(":memory:")
        else:
            _make_private(self._path)
        with self._transaction() as connection:
            _prepare(connection, self._path)

    def __repr__(self) -> str:
        return f"Journal({'memory://' if self._memory is not None else 'sqlite:///' + self._path!s})"

    def close(self) -> None:
        """Discard a journal in memory; a file needs no closing."""
        if self._memory is not None:
            self._memory.close()

    # --- writing ---

    def add(self, entry: JournalEntry) -> JournalEntry:
        """Store a new intent, or find the one with its name or key.

        Raises PayloadMismatch if that one has another method, URL or payload, or the key has another name.
        """
        now = self._wall()
        with self._transaction() as connection:
            stored = self._find(connection, entry.key, entry.name)
            if stored is None:
                body = entry.body if self.payloads else None
                connection.execute(
                    "INSERT INTO semel_intent (intent_key, name, parent, method, url, headers, digest, body, state, "
                    "lifetime_seconds, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, ?)",
                    (
                        *(
                            entry.key,
                            entry.name,
                            entry.parent,
                            entry.method,
                            entry.url,
                            json.dumps(dict(entry.headers)),
                        ),
                        *(entry.digest, self._seal(body, entry.key), entry.lifetime_seconds, now, now),
                    ),
                )
                stored = self._find(connection, entry.key, None)
                assert stored is not None
        other_name = entry.name is not None and stored.name != entry.name
        if stored.digest != entry.digest or other_name:
            which = f"the name {entry.name!r}" if entry.name is not None and stored.name == entry.name else "this key"
            raise PayloadMismatch(
                f"{which} belongs to another request (its name, method, URL, media type or body differs), and nothing "
                "was sent; a new command needs a new intent, with another name"
            )
        return stored

    def claim(self, key: str, seconds: float) -> SendingClaim | Busy:
        """Claim the right to send an intent for ``seconds``. Raises JournalError if there is no such intent."""
        token = secrets.token_hex(16)
        with self._transaction() as connection:
            # Read the clock under the lock: an earlier reading could precede a claim made meanwhile, which would then
            # look like a claim from an earlier boot.
            now, wall = self._steady(), self._wall()
            entry = self._find(connection, key, None)
            if entry is None:
                raise JournalError("the journal no longer has this intent; it was deleted, or this is a different file")
            held = connection.execute(
                "SELECT claim_token, claim_from, claim_until, claim_place, claim_pid, first_sent_boot, "
                "first_sent_steady FROM semel_intent WHERE intent_key = ?",
                (key,),
            ).fetchone()
            if held[0] is not None and held[1] <= now < held[2] and not _is_dead(held[3], held[4]):
                return Busy(held[2] - now)
            connection.execute(
                "UPDATE semel_intent SET claim_token = ?, claim_from = ?, claim_until = ?, claim_place = ?, "
                "claim_pid = ? WHERE intent_key = ?",
                (token, now, now + seconds, _place(), os.getpid(), key),
            )
            [latest] = connection.execute("SELECT max(updated_at) FROM semel_intent").fetchone()
        ages = [0.0]
        if entry.first_sent_at is not None:
            ages.append(max(wall, latest) - entry.first_sent_at)
            if held[6] is not None and held[5] == _boot():  # the wall clock may have been set back since
                ages.append(now - held[6])
        return SendingClaim(entry, token, max(ages))

    def begin(self, claim: SendingClaim, lifetime_seconds: float, operation_url: str | None) -> bool:
        """Count an attempt before it is made. Returns False if the claim was lost: then nothing may be sent."""
        now = self._wall()
        with self._transaction() as connection:
            steady = self._steady()
            changed = connection.execute(
                "UPDATE semel_intent SET sends = sends + 1, may_have_happened = 1, "
                "first_sent_boot = CASE WHEN first_sent_at IS NULL THEN ? ELSE first_sent_boot END, "
                "first_sent_steady = CASE WHEN first_sent_at IS NULL THEN ? ELSE first_sent_steady END, "
                "first_sent_at = coalesce(first_sent_at, ?), "
                "lifetime_seconds = ?, operation_url = coalesce(?, operation_url), "
                "updated_at = max(updated_at, ?) WHERE intent_key = ? AND claim_token = ? AND claim_until > ?",
                (
                    *(_boot(), steady, now, lifetime_seconds, operation_url, now),
                    *(claim.entry.key, claim.token, steady),
                ),
            )
            return changed.rowcount == 1

    def conclude(self, claim: SendingClaim, ending: Ending) -> None:
        """Write the result of a ``send()`` and release the claim. If the claim was lost, write only a final result."""
        key, now = claim.entry.key, self._wall()
        is_over = ending.state != "open"
        keep = self.payloads and is_over
        headers = json.dumps(dict(ending.headers)) if keep and ending.headers is not None else None
        with self._transaction() as connection:
            connection.execute(
                "UPDATE semel_intent SET state = ?, code = ?, operation_url = coalesce(?, operation_url), "
                "lifetime_seconds = ?, may_have_happened = ?, status = ?, answer_headers = ?, answer_body = ?, "
                "updated_at = max(updated_at, ?), body = CASE WHEN ? THEN NULL ELSE body END, claim_token = NULL "
                "WHERE intent_key = ? AND state = 'open' AND (claim_token = ? OR ?)",
                (
                    *(ending.state, ending.code, ending.operation_url, ending.lifetime_seconds),
                    *(ending.may_have_happened, ending.status, headers),
                    *(self._seal(ending.body if keep else None, key), now, is_over, key, claim.token, is_over),
                ),
            )

    def release(self, claim: SendingClaim) -> None:
        """Give a claim back without recording an outcome."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE semel_intent SET claim_token = NULL WHERE intent_key = ? AND claim_token = ?",
                (claim.entry.key, claim.token),
            )

    def forget(self, older_than_seconds: float = KEEP_SECONDS) -> int:
        """Delete done and refused intents that have not changed for this long, and return how many.

        Open intents and those in doubt stay: their names would get new keys, under which the commands could take
        effect a second time. Use :meth:`drop` for such an intent once you know what happened.
        """
        with self._transaction() as connection:
            return connection.execute(
                "DELETE FROM semel_intent WHERE updated_at < ? AND state IN ('done', 'refused')",
                (self._wall() - older_than_seconds,),
            ).rowcount

    def drop(self, name_or_key: str) -> JournalEntry | None:
        """Delete one intent in any state, so that its name may be used for a new command, under a new key.

        Do so only when you know what happened, from your business reference or the operation's status. Returns the
        deleted intent, or None if there is no such intent. Raises JournalError while it is being sent.
        """
        with self._transaction() as connection:
            entry = self._find(connection, name_or_key, name_or_key)
            if entry is None:
                return None
            now = self._steady()
            held = connection.execute(
                "SELECT claim_from, claim_until, claim_place, claim_pid FROM semel_intent "
                "WHERE intent_key = ? AND claim_token IS NOT NULL",
                (entry.key,),
            ).fetchone()
            if held is not None and held[0] <= now < held[1] and not _is_dead(held[2], held[3]):
                raise JournalError("this intent is being sent by another process or thread: wait until it has ended")
            connection.execute("DELETE FROM semel_intent WHERE intent_key = ?", (entry.key,))
            return entry

    # --- reading ---

    def find(self, *, key: str | None = None, name: str | None = None) -> JournalEntry | None:
        """Return the intent with this key or name."""
        with self._transaction() as connection:
            return self._find(connection, key, name)

    def open(self, limit: int = 1000) -> list[JournalEntry]:
        """Return open intents, oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM semel_intent WHERE state = 'open' ORDER BY created_at, intent_key LIMIT ?",  # noqa: S608 - a constant
                (limit,),
            ).fetchall()
        return [self._entry(row) for row in rows]

    def _find(self, connection: sqlite3.Connection, key: str | None, name: str | None) -> JournalEntry | None:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM semel_intent WHERE name = ? OR intent_key = ? ORDER BY name = ? DESC LIMIT 1",  # noqa: S608 - a constant
            (name, key, name),
        ).fetchone()
        return None if row is None else self._entry(row)

    def _entry(self, row: tuple[Any, ...]) -> JournalEntry:
        raw = JournalEntry(*row)
        return replace(
            raw,
            headers=json.loads(row[5]),
            body=self._unseal(raw.body, raw.key),
            answer_headers=None if row[17] is None else json.loads(row[17]),
            answer_body=self._unseal(raw.answer_body, raw.key),
            may_have_happened=bool(raw.may_have_happened),
        )

    def _seal(self, text: bytes | None, key: str) -> bytes | None:
        return text if text is None or self._sealer is None else self._sealer.seal(text, key.encode())

    def _unseal(self, kept: bytes | None, key: str) -> bytes | None:
        return kept if kept is None or self._sealer is None else self._sealer.open(kept, key.encode())

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction: it is durable when the block ends, or rolled back."""
        try:
            if self._memory is not None:
                with self._lock, _transaction(self._memory):
                    yield self._memory
                return
            with closing(_connect(self._path)) as connection, _transaction(connection):
                yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise JournalError(
                f"the journal {self._path!r} cannot be used ({error}); check its folder, its disk and its permissions. "
                "The client sends only requests that the journal has stored"
            ) from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the table in an empty file. Raises ConfigurationError for another program's file."""
    [found] = connection.execute("PRAGMA application_id").fetchone()
    if found == _APPLICATION_ID:
        there = {row[1] for row in connection.execute("PRAGMA table_info(semel_intent)")}
        for name in _ADDED.keys() - there:
            connection.execute(f"ALTER TABLE semel_intent ADD COLUMN {name} {_ADDED[name]}")
        return
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if found or tables:
        raise ConfigurationError(f"{path!r} is another program's database; give the journal its own file")
    for statement in _SCHEMA:
        connection.execute(statement)


def _make_private(path: str) -> None:
    """Create a missing file that only this user can read. Raises ConfigurationError if others can access it."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the journal {path!r} cannot be created: {why}; correct the path") from None
    if sys.platform != "win32" and Path(path).is_file() and Path(path).stat().st_mode & 0o077:
        raise ConfigurationError(f"the journal {path!r} holds keys, and other users can access it: chmod 600 {path}")


def _place() -> str | None:
    """Identify this boot and PID namespace: only process ids from the same place are comparable. None: unknown."""
    boot = _boot()
    try:
        return None if boot is None else f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _boot() -> str | None:
    """Identify this boot: only monotonic times from the same boot are comparable. None: unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None


def _is_dead(place: str | None, pid: int) -> bool:
    """Return whether the process that holds a claim has certainly ended."""
    if place is None or place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
