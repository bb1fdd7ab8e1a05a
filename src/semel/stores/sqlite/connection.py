"""Opens SQLite connections, performs a flow's asks on them, and explains SQLite's errors."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from semel.core.flow import Ask
from semel.errors import HandlerRefused, SchemaError, StoreError, StoreTimeout, StoreUnavailable
from semel.stores.clock import Clock
from semel.stores.failures import BROKEN_RULE, with_causes
from semel.stores.sql.statements import NOW_LOCKED, Execute, ExecuteMany, Now, Query, Script, TakeTurn
from semel.stores.sqlite.doctor import LookAtFile
from semel.stores.sqlite.file import read_facts
from semel.stores.sqlite.fork import refuse_inherited
from semel.stores.sqlite.turns import take_turn

STATEMENTS_CACHED: Final = 256
READ_WAIT_MS: Final = 100
SYNCHRONOUS: Final = ("FULL", "NORMAL", "EXTRA")
UNSEEN: Final = "the database file cannot be looked at: check the disk, and the permissions of its directory"


def open_connection(
    path: str, synchronous: str, *, reading: bool = False, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open a connection in explicit-transaction mode; any thread may use it, one at a time.

    Raises sqlite3.Error where the file cannot be opened, SchemaError where there is none to read,
    StoreUnavailable in a forked process that must not open it.
    """
    refuse_inherited(path)
    if reading and not _exists(path):
        raise SchemaError(f"the database file {path!r} does not exist; {_migrate(path)}")
    if not reading:
        _create_private(path)
    connection = sqlite3.connect(
        path,
        timeout=0,  # the driver waits instead: it knows whether it may block
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
        factory=factory,
    )
    try:
        if reading:
            # Readers wait only while another connection recovers or removes the write-ahead log, which is soon over.
            connection.execute(f"PRAGMA busy_timeout={READ_WAIT_MS}")
            connection.execute("PRAGMA query_only=1")
        else:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            # The driver checkpoints itself, so that no commit on an event loop ever pays for one.
            connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute(f"PRAGMA synchronous={synchronous}")  # a reading connection only reports it
        connection.execute("PRAGMA cache_size=-16384")
    except UnicodeDecodeError as error:
        connection.close()
        raise undecodable() from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(path: str) -> str:
    """Name the command to run; on a connection of the user's there is no path, and the engine adds the store's URL."""
    return (
        f"run: semel migrate --url {shlex.quote('sqlite:///' + quote(os.fsencode(path)))}"
        if path
        else "run: semel migrate"
    )


def _create_private(path: str) -> None:
    """Create a missing database file for this user alone: it will hold answers.

    SQLite gives the file's mode to the write-ahead log beside it. If the file cannot be created here, SQLite reports
    the error, which the driver explains.
    """
    with contextlib.suppress(OSError, ValueError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600))


def why_not(file: Path) -> str:
    """Say why a process cannot open and write a database file, with the remedy."""
    try:
        return _explain_path(file)
    except OSError as error:  # the disk that refuses SQLite may refuse this look as well
        return f"{error.strerror}; check the disk, and the permissions of its folder"


def _explain_path(file: Path) -> str:
    folder = file.absolute().parent
    if file.is_dir():
        return f"it is a directory; name a file in it, such as sqlite:///{file}/semel.db"
    if not folder.exists():
        return f"its folder {str(folder)!r} does not exist; make it, or correct the path"
    if not folder.is_dir():
        return f"{str(folder)!r} is not a folder; correct the path"
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return "this user may not read and write it; give it to the user that the process runs as"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user may not write in its folder {str(folder)!r}, where SQLite keeps its log beside it; allow it"
    return "check the disk, its mount (read-only?), and the limit of open files (ulimit -n)"


def undecodable() -> sqlite3.DatabaseError:
    """Explain a UnicodeDecodeError on a connection: SQLite's own message quotes a damaged schema."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreUnavailable(f"SQLite: {error.strerror} ({UNSEEN})") from error
    return True


class TransactionAsk(Ask[None]):
    """An ask of the driver itself, which begins or commits a transaction. No flow yields one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


BEGIN: Final = TransactionAsk("BEGIN IMMEDIATE")
COMMIT: Final = TransactionAsk("COMMIT")

Answer = Callable[[Ask[Any]], Any]
Answering = Callable[[sqlite3.Connection, Clock], Answer]


def answering(connection: sqlite3.Connection, clock: Clock) -> Answer:
    """Make the function that performs asks on this connection; a driver uses the database only through it."""
    execute = connection.execute

    def answer(needed: Ask[Any]) -> Any:
        kind = type(needed)
        if kind is Query or kind is Execute:
            statement, params = needed.statement, needed.params  # type: ignore[attr-defined]
            try:
                cursor = execute(statement.qmark, params if type(params) is tuple else statement.values(params))
                return cursor.fetchall() if kind is Query else cursor.rowcount
            except UnicodeDecodeError as error:
                raise undecodable() from error
        if kind is Now:
            return clock()
        if kind is ExecuteMany:
            return connection.executemany(needed.statement.qmark, needed.rows).rowcount  # type: ignore[attr-defined]
        if kind is TransactionAsk:
            return execute(needed.text)  # type: ignore[attr-defined]
        if kind is TakeTurn:
            [path] = [file for _, name, file in execute("PRAGMA database_list") if name == "main"]
            return take_turn(path, cast(TakeTurn, needed), clock()) if path else None
        if kind is LookAtFile:
            [path] = [file for _, name, file in execute("PRAGMA database_list") if name == "main"]
            return read_facts(path)
        assert isinstance(needed, Script)
        for statement in needed.statements:
            execute(statement)
        return None

    return answer


def writes(needed: Ask[Any]) -> bool:
    """Whether an ask needs the write transaction."""
    kind = type(needed)
    return kind is Execute or kind is Script or kind is ExecuteMany or needed is NOW_LOCKED


class FileLocked(StoreUnavailable):
    """The file's write lock was not free in time. ``path`` of the file."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the file's write lock right now."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_stopped(error: BaseException) -> bool:
    """Whether a handler's statement was interrupted. A lock does not count: it may be its own transaction's."""
    return any(
        isinstance(each, sqlite3.Error) and getattr(each, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_INTERRUPT
        for each in with_causes(error)
    )


def outlives_its_cause(error: BaseException) -> bool:
    """Whether a process may keep getting this error after its cause is fixed, while it has the file open.

    A connection opened on a failing disk stays read-only, and one whose unlock failed keeps the lock: the driver then
    closes all. A full disk does not count: reopening a file needs room, even for reading.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF if isinstance(error, sqlite3.Error) else sqlite3.SQLITE_OK
    return code in (
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
    )


def store_error(error: sqlite3.Error, path: str = "", *, committing: bool = False) -> StoreError | SchemaError:
    """Map a SQLite error to Semel's, with the remedy in the message.

    Parameters: ``path`` of the file, where it is known: what is wrong with it is looked up.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = " ".join(str(error).split())  # one line: SQLite quotes a damaged schema over several
    if text.startswith("Could not decode to UTF-8"):
        text = "a text in the database is not UTF-8"  # Python's own message quotes it, perhaps another caller's
        code = sqlite3.SQLITE_CORRUPT
    if "no such table: semel" in text:
        return SchemaError(f"this database has no Semel tables; {_migrate(path)}")
    if "no such column" in text or "has no column" in text:
        return SchemaError(f"this database's Semel tables are of another version; {_migrate(path)}")
    if path and code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):  # SQLite's own text names nothing
        return StoreUnavailable(f"SQLite: {text} (the database file {path!r} cannot be used: {why_not(Path(path))})")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return HandlerRefused(f"SQLite: {text} ({BROKEN_RULE})")
    remedy = {
        sqlite3.SQLITE_FULL: "the disk is full: make room; answers already stored are still replayed",
        sqlite3.SQLITE_READONLY: "the database file is read-only: check its owner, its directory and the mount",
        sqlite3.SQLITE_BUSY: "the database file is locked by another writer: retry with the same key",
        sqlite3.SQLITE_LOCKED: "the database file is locked by another writer: retry with the same key",
        sqlite3.SQLITE_PROTOCOL: "the database file's locks fail: keep it on a local disk, then run: semel doctor",
        sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened: check that its directory exists and is writable",
        # Also raised if the file may not grow: EFBIG, and errors of delayed allocation, which a sync reports.
        sqlite3.SQLITE_IOERR: (
            "the disk answered with an error, or the file may not grow: check the disk, its room and quota, "
            "and the limit on file sizes (ulimit -f), then run: semel doctor"
        ),
        sqlite3.SQLITE_CORRUPT: "the database file is damaged: restore it, then run: semel doctor",
        sqlite3.SQLITE_NOTADB: "the file is not a SQLite database: check the path in the URL",
    }.get(code, "run: semel doctor")
    if committing and code == sqlite3.SQLITE_IOERR:
        text = f"the commit failed in the middle ({text}): whether it took effect is not known yet"
        return StoreTimeout(f"SQLite: {text} ({remedy})")
    text = f"SQLite: {text} ({remedy})"
    return FileLocked(text, path) if is_busy(error) else StoreUnavailable(text)
