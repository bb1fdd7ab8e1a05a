"""An incoming file: hashed and written to a temporary file as it arrives, so that memory holds one piece of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final, Self

from semel.bulk.declaration import FILE_CHANGED, file_stamp
from semel.errors import ImportRefused, PolicyError
from semel.imports.content import of_disk

Source = bytes | os.PathLike[str] | IO[bytes] | AsyncIterable[bytes]
APART_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 512 * 1024  # one piece is hashed while the next is read and written
TOO_LARGE: Final = "the file has more than {most} bytes"


class Upload:
    """One file. Closing it drops its bytes; the operating system does so if the process is killed.

    Parameters: ``bytes_max`` of the file; ``folder`` for the temporary file (None: the system's).

    >>> with Upload(100) as upload:
    ...     upload.write(b"sku,quantity\\n")
    ...     upload.end()
    ...     upload.size, upload.digest[:8]
    (13, 'c3e714b9')
    """

    def __init__(self, bytes_max: int, folder: str | None = None) -> None:
        self._bytes_max = bytes_max
        self._hashing = hashlib.sha256()
        self._waiting = bytearray()
        self._hasher: ThreadPoolExecutor | None = None
        self._hashed: Future[None] | None = None  # of the previous piece
        self.size = 0
        self.digest = ""
        try:
            self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close()
        except OSError as error:
            raise of_disk(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, piece: bytes | memoryview) -> None:
        """Write a piece, in the calling thread. The caller must not change it afterwards.

        Raises ImportRefused where the file is too large or the disk is full.
        """
        self.size += len(piece)
        if self.size > self._bytes_max:
            raise ImportRefused(TOO_LARGE.format(most=self._bytes_max), "FILE_TOO_LARGE")
        self._wait_for_hash()
        if len(piece) >= APART_BYTES:  # hashing releases the GIL, as writing does
            if self._hasher is None:
                self._hasher = ThreadPoolExecutor(1, "semel-import-hash")
            self._hashed = self._hasher.submit(self._hashing.update, piece)
        else:
            self._hashing.update(piece)
        view = memoryview(piece)
        try:
            while view:
                view = view[self.file.write(view) :]
        except OSError as error:
            raise of_disk(error) from error

    def _wait_for_hash(self) -> None:
        """Wait until the previous piece is hashed, so that memory holds at most two pieces."""
        if self._hashed is not None:
            self._hashed.result()
            self._hashed = None

    async def feed(self, piece: bytes) -> None:
        """Add a piece. A thread writes to the disk, half a mebibyte at a time."""
        self._waiting += piece
        if self.size + len(self._waiting) > self._bytes_max:
            raise ImportRefused(TOO_LARGE.format(most=self._bytes_max), "FILE_TOO_LARGE")
        if len(self._waiting) >= PIECE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write the waiting bytes."""
        if self._waiting:
            block, self._waiting = self._waiting, bytearray()
            await asyncio.to_thread(self.write, memoryview(block))

    def end(self) -> None:
        """End the upload. Raises ImportRefused if it has no bytes."""
        if not self.size:
            raise ImportRefused("the file is empty", "EMPTY_FILE")
        self._wait_for_hash()
        self.digest = self._hashing.hexdigest()

    def close(self) -> None:
        """Drop the bytes."""
        if self._hasher is not None:
            self._hasher.shutdown()
        self.file.close()

    async def take(self, source: Any) -> None:
        """Read a whole source: bytes, a path, an open binary file or an async iterable of bytes."""
        if isinstance(source, (bytes, bytearray, memoryview)):
            await self.feed(bytes(source))
        elif isinstance(source, os.PathLike):
            await asyncio.to_thread(self._copy_path, Path(source))
        elif isinstance(source, AsyncIterable):
            async for piece in source:
                await self.feed(piece)
        elif callable(getattr(source, "read", None)):
            await asyncio.to_thread(self._copy, source)
        else:
            raise PolicyError(
                "file must be bytes, a pathlib.Path, a file opened with 'rb', or an async iterable of bytes; it is a "
                f"{type(source).__name__}"
            )
        await self.flush()
        self.end()

    def _copy_path(self, path: Path) -> None:
        try:
            with path.open("rb", buffering=0) as file:
                before = file_stamp(file)
                self._copy(file)
                if file_stamp(file) != before:
                    raise ImportRefused(FILE_CHANGED, "FILE_CHANGED")
        except OSError as error:
            raise PolicyError(f"file {str(path)!r} cannot be read: {error.strerror or error}") from None

    def _copy(self, file: IO[bytes]) -> None:
        while block := file.read(PIECE_BYTES):
            if not isinstance(block, bytes):
                raise PolicyError("file must be opened with 'rb'; it returns text")
            self.write(block)
