"""Writes the requests and replies of one process, so that its death leaves every line it had finished.

Each event is one ``write`` to a file opened with O_APPEND: what was written before a SIGKILL is in the file, except
that the very last line may be cut. Nothing is synced: a history survives its process, not its machine.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import semel
from semel.core.model import Answer
from semel.engine.permit import Permit
from verification.history.events import FORMAT, SUFFIX, VERSION, HistoryError, digest

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The machine's present run, which monotonic times belong to; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class Recorder:
    """A process's history. Thread-safe; a forked child goes on in its own file.

    Parameters: ``folder`` where the files go (made if missing); ``store`` the store's URL, for the reader; ``settings``
    anything that helps to repeat the run, such as a seed.

    Raises HistoryError where a line cannot be written whole: a history with holes would prove nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Recorder(folder, store="memory://") as recorder:
    ...     op = recorder.invoke("attempt", bytes(16), request="00", effects="external", lease_us=1, attempts_max=1)
    ...     recorder.ok(op, verdict="in-progress")
    ...     len(recorder.path.read_text().splitlines())
    3
    """

    def __init__(self, folder: str | Path, *, store: str, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self.store = store
        self.settings = dict(settings or {})
        self._lock = threading.Lock()
        self._file = -1
        self._pid = -1
        self._open()

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        self._numbers = itertools.count()
        opened = time.monotonic_ns()
        self.process = f"{self._pid}.{opened}"
        self.path = self.folder / f"{self.process}{SUFFIX}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "semel": semel.__version__,
            "process": self.process,
            "pid": self._pid,
            "boot": boot_id(),
            "opened_ns": opened,
            "wall_offset_ns": time.time_ns() - time.monotonic_ns(),
            "store": self.store,
            "settings": self.settings,
        }
        self._write(header)

    def _write(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise HistoryError(f"{self.path}: cannot be written ({error}); free some space and record anew") from None
        if written != len(line):
            raise HistoryError(f"{self.path}: a line was cut; free some space and record anew")

    def _ready(self) -> None:
        if self._pid != os.getpid():
            with self._lock:  # the child's threads; the parent's lock was free, or the child could not be here
                if self._pid != os.getpid():
                    os.close(self._file)
                    self._open()

    def invoke(self, kind: str, key: bytes, **words: Any) -> int:
        """An operation begins: its number, which its end must name.

        Parameters: ``kind`` attempt, settle, resolve, read or look; ``key`` the record's id; ``words`` what it asks,
        as the functions of ``events`` and ``engines`` make them.
        """
        self._ready()
        number = next(self._numbers)
        client = threading.get_ident() & 0xFFFF
        at = time.monotonic_ns()
        self._write({"event": "invoke", "op": number, "at": at, "kind": kind, "key": key.hex(), "by": client, **words})
        return number

    def ok(self, op: int, **words: Any) -> None:
        """Record that it was answered; ``words`` hold the answer."""
        self._write({"event": "ok", "op": op, "at": time.monotonic_ns(), **words})

    def fail(self, op: int, reason: str) -> None:
        """Record that it certainly had no effect."""
        self._write({"event": "fail", "op": op, "at": time.monotonic_ns(), "reason": reason})

    def unknown(self, op: int, reason: str) -> None:
        """Record that it ended without an answer: it may take effect at any later time, or never."""
        self._write({"event": "unknown", "op": op, "at": time.monotonic_ns(), "reason": reason})

    def effect(self, permit: Permit, answer: Answer, *, name: str = "charge") -> None:
        """A side effect outside the store was made under this permit, and will be answered so.

        Write it in the same breath as the effect: right after it, if a doubled one is what you look for.
        """
        self._ready()
        self.note_effect(
            permit.grant.id,
            effects=permit.effects.name.lower(),
            generation=permit.generation,
            derived=permit.key_for(name),
            answer=answer,
        )

    def note_effect(
        self, key: bytes, *, effects: str, generation: int, derived: str | None, answer: Answer | None
    ) -> None:
        """An effect found elsewhere, such as a committed row of the business table (``derived`` None)."""
        self._ready()
        event = {"event": "effect", "at": time.monotonic_ns(), "key": key.hex(), "effects": effects}
        self._write({**event, "generation": generation, "derived": derived, "answer": digest(answer)})

    def note_end(self, pid: int) -> None:
        """Record that a process is dead. The process that has waited for it writes this."""
        self._ready()
        self._write({"event": "ended", "at": time.monotonic_ns(), "pid": pid})

    def close(self) -> None:
        """No more events."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
