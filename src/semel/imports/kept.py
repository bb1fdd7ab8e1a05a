"""The kept bytes of imports: written once under their digest, sealed where that is declared, and verified when read."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import IO, Any, Final

from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.imports.content import BLOCK_BYTES, Content, ContentMissing, DatabaseContent, FolderContent
from semel.imports.rules import Job
from semel.imports.sealed import Opening, SealedFile, address_of
from semel.imports.upload import Upload

_SEALED: Final = " sealed"  # suffix of a job's kind of content


class KeptFiles:
    """The bytes of one kind of imports, in its ``content``.

    Parameters: ``engine`` whose sealer seals them; ``operation`` of the imports, for messages; ``seals`` whether new
    files are sealed; ``spool_folder`` for temporary files.
    """

    def __init__(
        self, engine: AsyncEngine, content: Content, operation: str, *, seals: bool, spool_folder: str | None
    ) -> None:
        self._engine = engine
        self._content = content
        self._operation = operation
        self._spool_folder = spool_folder
        self.reference = getattr(content, "kind", "other") + (_SEALED if seals else "")  # of a new job's bytes

    async def write(self, upload: Upload, *, is_sealed: bool, is_doubted: bool = False) -> None:
        """Keep the bytes of an upload, sealed where that is declared (or was, for an existing job).

        Parameters: ``is_doubted`` replaces kept bytes that do not open.
        """
        address = address_of(upload.digest, is_sealed=is_sealed)
        sealer = self._engine.core.sealer
        if is_sealed and sealer is None:  # before anything is dropped: another process may have the key
            raise ConfigurationError(f"the files of {self._operation!r} are sealed: give the engine its sealer")
        if is_doubted:
            await self._doubt(address)
        if not is_sealed or sealer is None:
            await self._content.write(address, upload.file)
            return
        with SealedFile(upload.file, sealer, bytes.fromhex(upload.digest), upload.size) as file:
            await self._content.write(address, file)  # type: ignore[arg-type] # it reads as IO[bytes] does

    async def _doubt(self, address: str) -> None:
        """Make the next upload write the kept bytes again."""
        if isinstance(self._content, DatabaseContent):  # a folder always writes them again
            await self._content.doubt(address)

    @asynccontextmanager
    async def open(self, job: Job) -> AsyncIterator[IO[bytes]]:
        """Open a job's bytes as a file, after verifying their digest. Raises ContentMissing and ContentUnreadable."""
        digest = job.sha256.hex()
        if job.content_ref is None:
            raise ContentMissing("the file's bytes are no longer kept")
        is_sealed = was_sealed(job)
        with self._file(digest, is_sealed=is_sealed) as file:
            hashing = hashlib.sha256()
            if is_sealed:
                await self._unseal(job, file, hashing)
            elif isinstance(self._content, FolderContent):
                await asyncio.to_thread(_hash_file, file, hashing)
            else:
                async for piece in self._content.read(digest):
                    hashing.update(piece)
                    await asyncio.to_thread(file.write, piece)
            if hashing.hexdigest() != digest:
                await self._doubt(address_of(digest, is_sealed=is_sealed))
                raise ContentMissing("the kept bytes are not those that were sent")
            yield file

    async def _unseal(self, job: Job, file: IO[bytes], hashing: Any) -> None:
        """Decrypt a job's frames into a file, one frame at a time."""
        address = address_of(job.sha256.hex(), is_sealed=True)
        opening = Opening(self._engine.core.sealer, job.sha256, job.size)

        def write(piece: bytes) -> None:
            for block in opening.feed(piece):
                hashing.update(block)
                file.write(block)

        # Keep frames that do not open: the right key may come back, and an upload writes them again.
        async for piece in self._content.read(address):
            await asyncio.to_thread(write, piece)
        opening.end()

    @contextmanager
    def _file(self, digest: str, *, is_sealed: bool) -> Iterator[IO[bytes]]:
        if isinstance(self._content, FolderContent) and not is_sealed:
            try:
                file: IO[bytes] = self._content.path(digest).open("rb")
            except FileNotFoundError:
                raise ContentMissing("the folder does not hold the file's bytes") from None
        else:
            file = tempfile.TemporaryFile(dir=self._spool_folder)  # noqa: SIM115 - closed below
        with closing(file):
            yield file


def was_sealed(job: Job) -> bool:
    """Return whether a job's bytes were sealed when they were stored."""
    return (job.content_ref or "").endswith(_SEALED)


def _hash_file(file: IO[bytes], hashing: Any) -> None:
    while block := file.read(BLOCK_BYTES):
        hashing.update(block)
