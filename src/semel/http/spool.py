"""A request's body held for its second reader: in memory while it is small, in a temporary file beyond that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Final

SPOOL_BYTES_MAX: Final = 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024


class Spool:
    """Written once, then read as often as needed. ``on_disk``: reading and writing may block on a disk."""

    __slots__ = ("_file", "size")

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX)  # noqa: SIM115 -- see close()
        self.size = 0

    @property
    def on_disk(self) -> bool:
        """Whether the next piece read or written may touch the disk."""
        return self.size > SPOOL_BYTES_MAX - CHUNK_BYTES

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return self._file.closed

    def write(self, chunk: bytes) -> None:
        """Append a piece."""
        self._file.write(chunk)
        self.size += len(chunk)

    def read(self, at: int) -> bytes:
        """The next piece from a place in the body; empty at its end."""
        self._file.seek(at)
        return self._file.read(CHUNK_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """The body from its beginning, in pieces."""
        at = 0
        while at < self.size:
            chunk = self.read(at)
            at += len(chunk)
            yield chunk

    def open(self) -> IO[bytes]:
        """The body as a file at its beginning."""
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Give the memory or the file back."""
        self._file.close()
