"""Sealed files: a frame for each 256 KiB, which opens only for its own file, place and file size.

A frame is the length of the sealed bytes in four bytes, followed by these bytes. As each frame is bound to the file's
size, missing, duplicate, reordered and foreign frames do not open as the file.
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
_OVERHEAD_MAX: Final = 64 * 1024  # an application's own sealer may add as much
_ABOUT: Final = b"semel.import.content.1:"
_PLACES: Final = Struct(">QQ")
CONTENT_UNREADABLE: Final = "CONTENT_UNREADABLE"
_ANEW: Final = "Send the file again, or restore the kept file; then: semel imports retry"


class ContentUnreadable(Exception):
    """A kept file does not open. ``damaged``: it was changed; False: this process lacks its key."""

    def __init__(self, reason: str, *, damaged: bool) -> None:
        super().__init__(reason)
        self.damaged = damaged


def address_of(digest: str, *, is_sealed: bool) -> str:
    """Return the name under which a file's bytes are kept: both forms may exist side by side.

    >>> address_of("a3f8", is_sealed=True)
    'a3f8.sealed'
    """
    return digest + SUFFIX if is_sealed else digest


def digest_of(address: str) -> str:
    """Return the digest in an address."""
    return address.removesuffix(SUFFIX)


def about_frame(digest: bytes, place: int, size: int) -> bytes:
    """Return the binding of a frame: the file's digest and size, and the frame's place from 0."""
    return _ABOUT + digest + _PLACES.pack(place, size)


class SealedFile(io.RawIOBase):
    """A file as frames, sealed while it is read: memory holds one frame.

    Reading begins at the start: ``seek(0)`` begins again, and no other position is supported.

    Parameters: the plain ``file`` of ``size`` bytes; ``digest`` of these, as 32 bytes.
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
        """Return True: the file supports only reading."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Begin again. Raises UnsupportedOperation for any other position."""
        if offset or whence:
            raise io.UnsupportedOperation("a file that is sealed while it is read can only be read from its beginning")
        self._left, self._frames = b"", self.frames()
        return 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer from the current frame."""
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
        """Add bytes, and yield the plain bytes of each complete frame."""
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
        "the kept file does not open: it was changed, cut short or exchanged since it was sealed, or this process has "
        f"a different key of the same name; no row is booked from it. {_ANEW}",
        damaged=True,
    )


def _read_whole(file: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the file's end: an unbuffered file may return fewer per call."""
    parts: list[bytes] = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
