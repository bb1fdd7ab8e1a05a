"""A request body with several readers: the framework before the claim, the claim, and the view."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any, Final

from semel.errors import ConfigurationError, InvalidBody
from semel.http.spool import CHUNK_BYTES, Spool

WITHHELD: Final = "The server passes no body in chunks on to the application; send the body's length (Content-Length)."


class KeptBody(io.RawIOBase):
    """A stream that keeps its content, so that the claim can fingerprint a body that a form parser has read.

    Parameters: ``source`` the server's own stream; ``length`` of the body, None where the stream ends with it;
    ``bytes_max`` how much is kept: a longer body is passed on and belongs to no command.

    >>> body = KeptBody(io.BytesIO(b"amount=7&note=x"), 15, 100)
    >>> body.read(6)
    b'amount'
    >>> body.fill()
    True
    >>> b"".join(body.spool.chunks()), body.read()
    (b'amount=7&note=x', b'=7&note=x')
    >>> body.spool.close()
    """

    def __init__(self, source: Any, length: int | None, bytes_max: int) -> None:
        super().__init__()
        self.spool = Spool()
        self.too_long = False
        self._source = source
        self._left = length
        self._bytes_max = bytes_max
        self._at = 0
        self._is_whole = False

    def fill(self) -> bool:
        """Read the rest from the client. False: the body is too long, and is not kept."""
        while not self._is_whole and not self.too_long:
            self._pull(CHUNK_BYTES)
        return not self.too_long

    def end(self) -> None:
        """Release the memory or the file."""
        self.spool.close()

    def begin_anew(self) -> None:
        """Read from the first byte again.

        Raises ConfigurationError if the beginning is no longer kept.
        """
        if self.too_long and self._at:
            raise ConfigurationError("the request's body has been read already, and is too long to be read again")
        self._at = 0

    def pass_on(self) -> bool:
        """Stop keeping content: no claim follows. False: some kept content is still unread."""
        if self._at < self.spool.size and not self.too_long:
            return False
        self.too_long = True
        self.spool.close()
        return True

    # --- what a framework reads -----------------------------------------------------------------

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to ``size`` bytes, or all that is left."""
        if size is None or size < 0:
            pieces = []
            while piece := self._piece(CHUNK_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        return self._piece(size)

    def readinto(self, buffer: Any, /) -> int:
        """As :meth:`read`, into a buffer; ``readline`` of the base class comes here."""
        piece = self._piece(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Do nothing: a framework closes the stream after reading it, but the claim and the view still need it."""

    def _piece(self, size: int) -> bytes:
        if self._at < self.spool.size and not self.too_long:
            piece = self.spool.read(self._at)[:size]
            self._at += len(piece)
            return piece
        piece = self._pull(size)
        self._at += len(piece)
        return piece

    def _pull(self, size: int) -> bytes:
        wanted = size if self._left is None else min(size, self._left)
        piece: bytes = b"" if self._is_whole or wanted == 0 else _read(self._source, wanted)
        if self._left is not None:
            self._left -= len(piece)
        if not piece:
            self._is_whole = self._is_whole or size > 0
        elif not self.too_long:
            if self.spool.size + len(piece) > self._bytes_max:
                self.too_long = True  # fill() refuses the request: the dropped bytes are never read
                self.spool.close()
            else:
                self.spool.write(piece)
        return piece


class BodyPieces:
    """A body that its endpoint reads a piece at a time; it is not kept.

    >>> pieces = BodyPieces({"wsgi.input": io.BytesIO(b"abc"), "CONTENT_LENGTH": "3"})
    >>> pieces.next(), pieces.next()
    (b'abc', b'')
    """

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._source: Any = environ.get("wsgi.input") or io.BytesIO()
        if isinstance(self._source, KeptBody):
            self._source.begin_anew()
            self._source.pass_on()
        self.length = length_of(environ)
        self._left = self.length
        self._is_withheld = is_withheld(environ)

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.next():
            yield piece

    def next(self) -> bytes:
        """Read the next piece; empty at the end.

        Raises InvalidBody for a premature end or a body that the server withholds, and the server's exceptions.
        """
        if self._is_withheld:
            raise InvalidBody(WITHHELD)
        wanted = CHUNK_BYTES if self._left is None else min(CHUNK_BYTES, self._left)
        piece = _read(self._source, wanted) if wanted else b""
        if self._left is not None:
            self._left -= len(piece)
            if wanted and not piece:
                raise InvalidBody("The body is cut short; send it again.")
        return piece


def _read(source: Any, size: int) -> bytes:
    """Read up to ``size`` bytes. Raises OSError if the client has disconnected, and InvalidBody for broken chunks."""
    try:
        piece: bytes = source.read(size)
    except (OSError, InvalidBody):
        raise
    except Exception as error:  # a server's own error: gunicorn raises it for a chunk that it cannot read
        raise InvalidBody("The body cannot be read; send it again.") from error
    return piece


def length_of(environ: Mapping[str, Any]) -> int | None:
    """Return the announced length of the body; None if it ends with its stream."""
    length: str = environ.get("CONTENT_LENGTH") or ""
    if length.isdecimal():
        return int(length)
    return None if environ.get("wsgi.input_terminated") else 0


def is_withheld(environ: Mapping[str, Any]) -> bool:
    """Return whether a body came in chunks that the server withholds from the application, as uWSGI does.

    The client's body is then unknown: as empty bodies, two different requests would be one command.

    >>> is_withheld({"wsgi.input": io.BytesIO(), "HTTP_TRANSFER_ENCODING": "chunked"})
    True
    """
    is_announced = environ.get("CONTENT_LENGTH") or environ.get("wsgi.input_terminated")
    return not is_announced and "wsgi.input" in environ and bool(environ.get("HTTP_TRANSFER_ENCODING"))
