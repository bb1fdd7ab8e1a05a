"""A request's body held for its second reader: in memory while it is small, in a temporary file beyond that."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from typing import IO, Final

SPOOL_BYTES_MAX: Final = 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
_GIVEN_BACK: Final = io.BytesIO()  # reading it raises ValueError, like any closed file
_GIVEN_BACK.close()


class Spool:
    """A body, written once and read as often as needed. ``on_disk``: reading and writing may block on a disk.

    Most bodies come in one small piece: only the others get a file.

    >>> spool = Spool()
    >>> spool.write(b"one "), spool.write(b"two"), spool.size
    (None, None, 7)
    >>> spool.content(), spool.read(4), spool.close()
    (b'one two', b'two', None)
    """

    __slots__ = ("_file", "_first", "_is_over", "size")

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._first = b""  # the whole body, where there is no file
        self._is_over = False
        self.size = 0

    @property
    def on_disk(self) -> bool:
        """Whether the next piece read or written may touch the disk."""
        return self.size > SPOOL_BYTES_MAX - CHUNK_BYTES

    @property
    def closed(self) -> bool:
        """Whether it was released."""
        return self._file is not None and self._file.closed

    def write(self, chunk: bytes) -> None:
        """Append a piece."""
        size = len(chunk)
        if not self.size and size <= CHUNK_BYTES and self._file is None:
            self._first = chunk
        else:
            file = self._file or self._make_file()
            try:
                file.write(chunk)
            finally:
                if self._is_over:  # the request was cancelled while a thread was writing
                    file.close()  # the file on the disk, which was made meanwhile
        self.size += size

    def read(self, at: int) -> bytes:
        """Return the next piece from a position in the body; empty at its end."""
        if self._file is None:
            return self._first[at : at + CHUNK_BYTES]
        self._file.seek(at)
        return self._file.read(CHUNK_BYTES)

    def content(self) -> bytes:
        """Return the whole body."""
        return self._first if self._file is None else self.open().read()

    def chunks(self) -> Iterator[bytes]:
        """Yield the body from its beginning, in pieces."""
        at = 0
        while at < self.size:
            chunk = self.read(at)
            at += len(chunk)
            yield chunk

    def open(self) -> IO[bytes]:
        """Return the body as a file, at its beginning."""
        file = self._file or self._make_file()
        file.seek(0)
        return file

    def close(self) -> None:
        """Release the memory or the file."""
        self._is_over = True
        if self._file is None:
            self._file, self._first = _GIVEN_BACK, b""
        else:
            self._file.close()

    def _make_file(self) -> IO[bytes]:
        file = self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX)  # noqa: SIM115 -- see close()
        file.write(self._first)
        self._first = b""
        return file
