"""The only file part of a multipart form while it arrives: its bytes, its name, and the small fields beside it.

The strict reader of ``http/fingerprint/multipart`` refuses any form that two parsers might read differently.
"""

from __future__ import annotations

from typing import Final

from semel.errors import ImportRefused, InvalidBody
from semel.http.fingerprint.multipart import MultipartDigest, _State

FIELD_BYTES_MAX: Final = 4096
FIELDS_MAX: Final = 100


class FileParts(MultipartDigest):
    r"""Extracts the only file of a form.

    Parameters: ``boundary`` of its media type.

    >>> form = FileParts(b"b")
    >>> head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.csv"\r\nContent-Type: text/csv\r\n\r\n'
    >>> form.feed(head + b"sku\nA-1\n" + b"\r\n--b--\r\n")
    >>> form.take(), form.filename, form.media_type
    (b'sku\nA-1\n', 'a.csv', 'text/csv')
    >>> form.end()
    """

    __slots__ = ("_field", "_files", "_led", "_out", "fields", "filename", "media_type")

    def __init__(self, boundary: bytes) -> None:
        super().__init__(boundary)
        self._files = 0
        self._led = False
        self._field: str | None = None
        self._out = bytearray()
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.media_type: str | None = None

    def take(self) -> bytes:
        """Return the file's bytes since the last call."""
        piece = bytes(self._out)
        self._out.clear()
        return piece

    def end(self) -> None:
        """End the body. Raises ImportRefused and InvalidBody where it was not a form with one file."""
        if self.finish() is None:
            raise InvalidBody("The multipart form is malformed or cut short; send it again.")
        if self._files != 1:
            raise ImportRefused("the form must have one file part; it has none", "NOT_ONE_FILE")

    def _start(self) -> bool:
        if not self._led and len(self._buffer) >= 2:
            self._led = True
            if self._buffer.startswith(b"\r\n"):  # an empty preamble: Werkzeug's client writes one
                del self._buffer[:2]
        return super()._start()

    def _headers(self) -> bool:
        went = super()._headers()
        if went and self._state is _State.CONTENT:
            self._begin_part()
        return went

    def _begin_part(self) -> None:
        part = self._part
        name = _text(part.name)
        if part.filename is None and part.filename_extended is None:
            if name in self.fields or len(self.fields) == FIELDS_MAX:
                raise ImportRefused("the form has a field twice, or too many of them", "NOT_ONE_FILE")
            self._field = name
            self.fields[name] = ""
            return
        self._files += 1
        if self._files > 1:
            raise ImportRefused("the form must have one file part; it has more", "NOT_ONE_FILE")
        self._field = None
        self.filename = _text(part.filename or "")
        if part.media is not None:
            essence, _, rest = part.media.removeprefix("?").partition(";")
            charset = rest.partition(";")[0]
            self.media_type = f"{essence}; charset={charset}" if charset else essence

    def _take(self, count: int) -> None:
        piece = bytes(self._buffer[:count])
        self._content_bytes += count
        if self._field is None:
            self._out += piece
            return
        value = self.fields[self._field] + piece.decode("utf-8", "replace")
        if len(value) > FIELD_BYTES_MAX:
            raise ImportRefused(f"a field of the form has more than {FIELD_BYTES_MAX} bytes", "NOT_ONE_FILE")
        self.fields[self._field] = value


def _text(raw: str) -> str:
    return raw.encode("latin-1").decode("utf-8", "replace")
