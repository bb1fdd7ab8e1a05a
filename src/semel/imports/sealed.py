"""Kept files, sealed: a frame for each 256 KiB, which opens for its own file, place and size alone.

A frame is the length of what is sealed in four bytes, and then that. What binds it to the file's size makes the last
one known: frames that are missing, doubled, in another order or another file's do not make the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from struct import Struct
from typing import IO, Final

from semel.errors import ConfigurationError, SemelError
from semel.sealing.rules import MARK, Seals, key_name

SUFFIX: Final = ".sealed"
FRAME_BYTES: Final = 256 * 1024  # of the file, in each frame but the last
LENGTH: Final = Struct(">I")
_OVERHEAD_MAX: Final = 64 * 1024  # that a sealer of the application's may add
_ABOUT: Final = b"semel.import.content.1:"
_PLACES: Final = Struct(">QQ")
CONTENT_UNREADABLE: Final = "CONTENT_UNREADABLE"
_ANEW: Final = "Send the file again, or restore what was kept; then: semel imports retry"


class ContentUnreadable(Exception):
    """A kept file does not open. ``damaged``: it was changed; False: this process does not have its key."""

    def __init__(self, reason: str, *, damaged: bool) -> None:
        super().__init__(reason)
        self.damaged = damaged


def address_of(digest: str, *, is_sealed: bool) -> str:
    """Under which name a file's bytes are kept: both forms may lie side by side.

    >>> address_of("a3f8", is_sealed=True)
    'a3f8.sealed'
    """
    return digest + SUFFIX if is_sealed else digest


def digest_of(address: str) -> str:
    """The digest in an address."""
    return address.removesuffix(SUFFIX)


def about_frame(digest: bytes, place: int, size: int) -> bytes:
    """The binding of a frame: the file's digest and size, and the frame's place from 0."""
    return _ABOUT + digest + _PLACES.pack(place, size)


class SealedFile(io.RawIOBase):
    """A file as frames, sealed while it is read: memory holds one of them.

    It is read from its beginning: ``seek(0)`` begins again, and no other place can be sought.

    Parameters: ``file`` the plain one, of ``size`` bytes; ``digest`` of them, as 32 bytes.
    """

    def __init__(self, file: IO[bytes], sealer: Seals, digest: bytes, size: int) -> None:
        super().__init__()
        self._file = file
        self._sealer = sealer
        self._digest = digest
        self.size = size
        self._left = b""
        self._frames = self.frames()

    def frames(self) -> Iterator[bytes]:
        """Read every frame, from the first."""
        self._file.seek(0)
        place = 0
        while block := _read_whole(self._file, FRAME_BYTES):
            sealed = self._sealer.seal(block, about_frame(self._digest, place, self.size))
            yield LENGTH.pack(len(sealed)) + sealed
            place += 1

    def readable(self) -> bool:
        """True: the file can be read, and nothing else."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Begin anew. Raises UnsupportedOperation for any other place."""
        if offset or whence:
            raise io.UnsupportedOperation("a file that is sealed while it is read is read from its beginning")
        self._left, self._frames = b"", self.frames()
        return 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the frame reaches."""
        if not self._left:
            self._left = next(self._frames, b"")
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


class Opening:
    """The plain bytes of kept frames, piece by piece. Raises ContentUnreadable.

    >>> class Turned:
    ...     def seal(self, text, about):
    ...         return text[::-1] + about
    ...
    ...     def open(self, kept, about):
    ...         return kept.removesuffix(about)[::-1]
    >>> frames = SealedFile(io.BytesIO(b"sku"), Turned(), bytes(32), 3)
    >>> opening = Opening(Turned(), bytes(32), 3)
    >>> b"".join(opening.feed(frames.read())), opening.end()
    (b'sku', None)
    """

    def __init__(self, sealer: Seals | None, digest: bytes, size: int) -> None:
        self._sealer = sealer
        self._digest = digest
        self._size = size
        self._waiting = bytearray()
        self._place = 0
        self._opened = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Add bytes, and return the complete frames so far."""
        self._waiting += piece
        while len(self._waiting) >= LENGTH.size:
            [length] = LENGTH.unpack_from(self._waiting)
            if length > FRAME_BYTES + _OVERHEAD_MAX:
                raise _content_changed()
            end = LENGTH.size + length
            if len(self._waiting) < end:
                return
            sealed = bytes(self._waiting[LENGTH.size : end])
            del self._waiting[:end]
            yield self._open(sealed)

    def _open(self, sealed: bytes) -> bytes:
        key = key_name(sealed)
        if self._sealer is None:
            raise ContentUnreadable(
                f"the kept file is sealed under the key {key!r}, and this process has no sealer: give the engine its "
                "sealer, then: semel imports retry",
                damaged=False,
            )
        try:
            block = self._sealer.open(sealed, about_frame(self._digest, self._place, self._size))
        except ConfigurationError as error:
            if not sealed.startswith(MARK):
                raise _content_changed() from error
            raise ContentUnreadable(
                f"the kept file is sealed under the key {key!r}, which is not in the ring of this process: add it "
                "behind the others, then: semel imports retry",
                damaged=False,
            ) from None
        except SemelError:
            raise _content_changed() from None
        self._place += 1
        self._opened += len(block)
        return block

    def end(self) -> None:
        """Check that the whole file was read."""
        if self._waiting or self._opened != self._size:
            raise _content_changed()


def _content_changed() -> ContentUnreadable:
    return ContentUnreadable(
        "the kept file does not open: it was changed, cut short or exchanged since it was sealed, or its key is "
        f"another one of the same name; no row is booked from it. {_ANEW}",
        damaged=True,
    )


def _read_whole(file: IO[bytes], size: int) -> bytes:
    """As many bytes, unless the file ends: an unbuffered file may give fewer at once."""
    parts: list[bytes] = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
