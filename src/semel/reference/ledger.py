"""An append-only ledger: a file of JSON lines that several processes may write, each line flushed to the disk.

Once ``append`` returns, the entry survives a crash of the process and of the host. Readers skip a line torn by a
crash: it was never acknowledged. No entry is ever changed or removed. For POSIX systems (``flock``).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict, TypeVar

T = TypeVar("T")

ENTRY_BYTES_MAX: Final = 64 * 1024
_CREATED_MODE: Final = 0o600


class LedgerLine(TypedDict):
    """One line: its derived key, its own id, the caller, and its content."""

    key: str
    id: str
    caller: str
    detail: dict[str, str]


class Ledger:
    """One file of entries. Thread-safe; opened at its first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # flock does not distinguish the threads of one process
        self._entries: list[LedgerLine] = []
        self._by_key: dict[str, LedgerLine] = {}
        self._read_bytes = 0

    def append(self, entry: LedgerLine, *, once: bool) -> LedgerLine:
        """Append an entry durably; with ``once``, keep an existing entry under the same key instead."""
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if len(line) > ENTRY_BYTES_MAX:
            raise ValueError(f"a ledger entry is at most {ENTRY_BYTES_MAX} bytes; this one has {len(line)}")
        return self._lock_and_act(lambda file: self._append(file, entry, line, once))

    def entries(self) -> list[LedgerLine]:
        """Return all entries of all processes so far, in their order."""
        if not self._path.exists():
            return []
        return self._lock_and_act(self._all)

    def _append(self, file: int, entry: LedgerLine, line: bytes, once: bool) -> LedgerLine:
        self._catch_up(file)
        known = self._by_key.get(entry["key"])
        if once and known is not None:
            return known
        # A process that died may have left a torn line: begin on a new one.
        os.write(file, b"\n" + line if self._is_torn(file) else line)
        os.fsync(file)
        return entry

    def _all(self, file: int) -> list[LedgerLine]:
        self._catch_up(file)
        return list(self._entries)

    def _lock_and_act(self, act: Callable[[int], T]) -> T:
        with self._lock:
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _CREATED_MODE)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                return act(file)
            finally:
                os.close(file)  # closing releases the lock

    def _catch_up(self, file: int) -> None:
        """Read the new lines, up to the last complete one."""
        size = os.fstat(file).st_size
        if size <= self._read_bytes:
            return
        chunk = os.pread(file, size - self._read_bytes, self._read_bytes)
        whole = chunk.rfind(b"\n") + 1
        self._read_bytes += whole
        for line in chunk[:whole].splitlines():
            try:
                entry: LedgerLine = json.loads(line)
                self._by_key.setdefault(entry["key"], entry)
                self._entries.append(entry)
            except (ValueError, KeyError, TypeError):
                continue  # torn by a crash, never acknowledged

    @staticmethod
    def _is_torn(file: int) -> bool:
        size = os.fstat(file).st_size
        return size > 0 and os.pread(file, 1, size - 1) != b"\n"
