"""Store the bytes of imports by their SHA-256: in the database, in a folder, or behind two methods of your own.

Semel stores the bytes before the job that needs them, so that every job has its bytes. After an hour ``purge`` drops
bytes that no job needs any more, and the leftovers of killed processes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Protocol, runtime_checkable

from semel.engine.async_engine import AsyncEngine
from semel.errors import ImportRefused, PolicyError
from semel.imports.sealed import SUFFIX, SealedFile, digest_of
from semel.imports.store import GRACE_US, PLAIN, SEALED, ImportRows

PART_BYTES: Final = 256 * 1024
BLOCK_BYTES: Final = 1024 * 1024
PARTIAL: Final = ".part-"
_DROPPED: Final = ".drop-"
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ContentMissing(Exception):
    """The bytes of a job are missing."""


@runtime_checkable
class Content(Protocol):
    """Keeps bytes by their digest, such as an object store. Both methods may be called again for the same digest.

    For imports with ``answers="seal"`` the name is the digest followed by ``.sealed``, and the bytes are sealed.
    """

    async def write(self, digest: str, file: IO[bytes]) -> None:
        """Keep the bytes of a file, read from its beginning (``seek(0)``, ``read(n)``).

        Once this returns, the bytes must survive a crash of the host.
        """

    def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces. Raises ContentMissing where there are none."""


@runtime_checkable
class Forgets(Protocol):
    """A :class:`Content` that can delete bytes. One that cannot needs its own rule, such as a bucket's lifecycle."""

    async def forget(self, is_used: Callable[[str], object], limit: int) -> int:
        """Drop bytes that no job has needed for an hour, and return the number of digests."""


class DatabaseContent:
    """Keeps bytes in Semel's own database, in parts of 256 KiB: nothing else to back up or to mount.

    Parameters: ``engine`` of the imports.
    """

    kind: Final = "database"

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._rows = ImportRows(engine.store)

    async def write(self, digest: str, file: IO[bytes]) -> None:
        """Keep the bytes of a file. Raises StoreError."""
        (id, form), rows = _of(digest), self._rows
        size = file.size if isinstance(file, SealedFile) else await asyncio.to_thread(file.seek, 0, os.SEEK_END)
        if await self._engine.perform("import_content", lambda: rows.touch(id, size, form)):
            return
        # A part is a whole frame: two processes that write the same file at once may each write some of the parts.
        parts = file.frames() if isinstance(file, SealedFile) else _blocks(file)
        place = 0
        while part := await asyncio.to_thread(next, parts, b""):
            await self._engine.perform(
                "import_content",
                lambda part=part, place=place: rows.put_part(id, place, part, form),  # type: ignore[misc]
            )
            place += 1
        if not await self._engine.perform("import_content", lambda: rows.end_blob(id, place, form)):
            raise ContentMissing("the parts of the file were dropped while they were written; send it again")

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes, part by part."""
        (id, form), rows = _of(digest), self._rows
        if not await self._engine.perform("import_content", lambda: rows.has_blob(id, form)):
            raise ContentMissing("the database does not hold the file's bytes")
        place = 0
        while part := await self._engine.perform("import_content", lambda: rows.part(id, place, form)):  # noqa: B023 - at once
            yield part
            place += 1

    async def doubt(self, digest: str) -> None:
        """Drop damaged bytes: the next upload of the file writes them again."""
        id, form = _of(digest)
        await self._engine.perform("import_content", lambda: self._rows.doubt_blob(id, form))

    async def forget(self, is_used: Callable[[str], object], limit: int) -> int:
        """Drop bytes that no job needs."""
        gone = 0
        for digest in await self._engine.perform("import_content", lambda: self._rows.find_unused(limit)):
            gone += await self._engine.perform("import_content", lambda id=digest: self._rows.drop_blob(id))  # type: ignore[misc]
        return gone


def _of(address: str) -> tuple[bytes, int]:
    return bytes.fromhex(digest_of(address)), SEALED if address.endswith(SUFFIX) else PLAIN


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while block := file.read(PART_BYTES):
        yield block


class FolderContent:
    """Keeps bytes in a folder of this store's own: a temporary file, fsync, rename to the digest.

    Parameters: ``folder``, created if it does not exist. All processes of the store must share it.

    Raises PolicyError where it cannot be created.
    """

    kind: Final = "folder"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise PolicyError(f"folder {str(folder)!r} cannot be used: {error.strerror or error}") from None

    def path(self, digest: str) -> Path:
        """Return the path of the bytes."""
        return self.folder / digest[:2] / digest

    async def write(self, digest: str, file: IO[bytes]) -> None:
        """Keep the bytes of a file. Raises ImportRefused where the disk is full, and leaves no partial file."""
        await asyncio.to_thread(self.write_now, digest, file)

    def write_now(self, digest: str, file: IO[bytes]) -> None:
        """Keep the bytes as :meth:`write` does, in the calling thread."""
        target = self.path(digest)
        part = self.folder / f"{PARTIAL}{secrets.token_hex(8)}"
        try:
            target.parent.mkdir(exist_ok=True, mode=0o700)
            with part.open("xb") as made:
                file.seek(0)
                while block := file.read(BLOCK_BYTES):
                    made.write(block)
                made.flush()
                os.fsync(made.fileno())
            os.replace(part, target)  # even if it exists: its new time keeps a purge from dropping it
            _sync_folder(target.parent)
            _sync_folder(self.folder)
        except BaseException as error:
            with suppress(OSError):
                part.unlink()
            if isinstance(error, OSError):
                raise of_disk(error) from error
            raise

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces."""
        try:
            file = await asyncio.to_thread(self.path(digest).open, "rb")
        except FileNotFoundError:
            raise ContentMissing("the folder does not hold the file's bytes") from None
        try:
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            file.close()

    async def forget(self, is_used: Callable[[str], object], limit: int) -> int:
        """Drop bytes that no job needs, and temporary files of processes that have died."""
        gone = 0
        old = time.time() - GRACE_US / 1_000_000
        for path in await asyncio.to_thread(self._old, old):
            if path.name.startswith((PARTIAL, _DROPPED)):
                with suppress(FileNotFoundError):
                    path.unlink()
                continue
            if gone < limit and not await is_used(path.name):  # type: ignore[misc]
                gone += await asyncio.to_thread(self._drop, path, old)
        return gone

    def _old(self, old: float) -> list[Path]:
        found = []
        for path in [*self.folder.glob(f"{PARTIAL}*"), *self.folder.glob(f"{_DROPPED}*"), *self.folder.glob("??/*")]:
            with suppress(OSError):
                if path.stat().st_mtime <= old:
                    found.append(path)
        return found

    def _drop(self, path: Path, old: float) -> int:
        """Drop a file by moving it away first; move it back if an upload has just written it again."""
        away = self.folder / f"{_DROPPED}{secrets.token_hex(8)}"
        try:
            os.rename(path, away)
        except FileNotFoundError:
            return 0
        fresh = away.stat().st_mtime > old
        if fresh:
            with suppress(FileExistsError):
                os.link(away, path)
        away.unlink()
        return 0 if fresh else 1


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def of_disk(error: OSError) -> Exception:
    """Return the uploader's error for a disk error: a refusal for no space, else the error itself."""
    if error.errno in _DISK_FULL:
        return ImportRefused("the server's disk is full; nothing of the file is kept", "NO_ROOM")
    return error
