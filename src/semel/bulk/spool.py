"""The items of a bulk on disk while it runs: read, named, checked and digested once, then read by page.

SQLite's private temporary file, which the operating system deletes with the process. Memory holds one page of any list:
a set of a million names alone would take a hundred megabytes.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Collection, Iterable
from typing import Final

from semel.bulk.rules import (
    ListDigest,
    ListedItem,
    ListTerms,
    NamedItem,
    content_id,
    named_item,
    unnamed_id,
    written_item,
)
from semel.errors import BulkRefused
from semel.policy import RETRY_BYTES_MAX

CACHE_KIB: Final = 4096


class ItemSpool:
    """A list on disk. One thread at a time fills it, then it is read; ``close`` frees the disk space."""

    def __init__(self, terms: ListTerms, failed: Collection[int] = ()) -> None:
        """``failed``: places whose items the limits refused when the list was first read.

        A list that breaks a limit (``refusal``) is still read, up to a bound: former limits may have allowed it.
        """
        self._terms = terms
        self._failed = failed
        self._beyond = 0  # bytes read beyond a limit
        self.refusal: BulkRefused | None = None
        self._lock = threading.Lock()
        self._digest = ListDigest()
        self.total = 0
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
            self._file.execute(f"PRAGMA {setting}")
        self._file.execute("CREATE TABLE item (place INTEGER PRIMARY KEY, id TEXT, raw BLOB, error TEXT)")
        # Digests of eight bytes would collide by chance in lists of billions; sixteen never do.
        self._file.execute("CREATE TABLE seen (name BLOB PRIMARY KEY, times INTEGER, first INTEGER) WITHOUT ROWID")
        self._file.execute("BEGIN")

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Add items as JSON. Raises BulkRefused, with the place, and leaves the spool as it is."""
        with self._lock:
            for raw in lines:
                self._add(raw)

    def add_values(self, values: Iterable[object]) -> None:
        """Add items as Python values of JSON's kinds, or as JSON (bytes). Raises as ``add_lines``."""
        with self._lock:
            for value in values:
                if isinstance(value, bytes):
                    self._add(value)
                    continue
                try:
                    raw = written_item(value)
                except (TypeError, ValueError, RecursionError) as error:
                    self._bad(b"", BulkRefused(self.total, None, f"it cannot be written as JSON: {error}"))
                else:
                    self._add(raw)

    def _add(self, raw: bytes) -> None:
        place = self.total
        terms = self._terms
        error = None
        if place >= terms.items_max:
            self._refuse(None, f"it has more than {terms.items_max} items; send it in parts", "TOO_MANY_ITEMS", raw)
        if len(raw) > terms.item_bytes_max:
            if terms.bad_item == "fail":
                error = "ITEM_TOO_LARGE"
            else:
                message = f"it has {len(raw)} bytes, more than {terms.item_bytes_max}"
                self._refuse(place, message, "ITEM_TOO_LARGE", raw)
        if place in self._failed:
            self._keep_bad(raw, "ITEM_MALFORMED")
            return
        try:
            named = named_item(raw, place, terms.member)
            item_id = self._name(named, place)
        except BulkRefused as refused:
            self._bad(raw, refused)
            return
        self._keep(item_id, named.raw, error)  # its name and content count, even if the limits have changed

    def _refuse(self, place: int | None, message: str, code: str, raw: bytes) -> None:
        if self.refusal is None:
            self.refusal = BulkRefused(place, None, message, code)
        self._beyond += len(raw)
        if self._beyond > RETRY_BYTES_MAX:
            raise self.refusal

    def _name(self, named: NamedItem, place: int) -> str:
        """Name an item: by its own name, or by counting its occurrence among equal ones."""
        if named.client_id is None:
            times, _ = self._count(b"c" + hashlib.sha256(named.raw).digest()[:16], place)
            return content_id(named.raw, times)
        times, first = self._count(b"n" + hashlib.sha256(named.client_id.encode()).digest()[:16], place)
        if times > 1:
            message = f"item {first} has the same name; each item needs its own"
            raise BulkRefused(place, self._terms.member, message, "DUPLICATE_ITEM_ID")
        return named.client_id

    def _count(self, name: bytes, place: int) -> tuple[int, int]:
        [row] = self._file.execute(
            "INSERT INTO seen VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times, first",
            (name, place),
        ).fetchall()
        return int(row[0]), int(row[1])

    def _bad(self, raw: bytes, refused: BulkRefused) -> None:
        if self._terms.bad_item == "refuse":
            raise refused
        self._keep_bad(raw, refused.code)

    def _keep_bad(self, raw: bytes, code: str) -> None:
        # It counts in the fingerprint: the list with this item corrected is another list.
        self._keep(unnamed_id(self.total), hashlib.sha256(raw).digest(), code)

    def _keep(self, item_id: str, raw: bytes, error: str | None) -> None:
        self._digest.add(item_id, raw)
        kept = raw if error is None else b""  # no handler sees it
        self._file.execute("INSERT INTO item VALUES (?, ?, ?, ?)", (self.total, item_id, kept, error))
        self.total += 1

    def fingerprint(self) -> bytes:
        """Return 32 bytes over the whole list, which may not grow from now on. Raises BulkRefused if it is empty."""
        if self.total == 0:
            raise BulkRefused(None, None, "it has no items", "NO_ITEMS")
        with self._lock:
            self._file.execute("DROP TABLE seen")
        return self._digest.end(self.total)

    def page(self, first: int, limit: int) -> list[ListedItem]:
        """Return up to ``limit`` items in their order, from the place ``first`` on."""
        with self._lock:
            rows = self._file.execute(
                "SELECT place, id, raw, error FROM item WHERE place >= ? ORDER BY place LIMIT ?", (first, limit)
            ).fetchall()
        return [ListedItem(*row) for row in rows]

    def close(self) -> None:
        """Delete the list."""
        with self._lock:
            self._file.close()
