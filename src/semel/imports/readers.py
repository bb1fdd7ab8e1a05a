"""Files as rows: CSV, JSON lines and a JSON array, each row as canonical JSON with its line. Pure: lines in, rows out.

The application declares how to read a file; Semel never guesses. The format is stored with the job, so that a run after
a deployment reads the same rows. An unreadable row is a :class:`~semel.imports.rules.BadRow` among the others.
"""

from __future__ import annotations

import codecs
import csv
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any, ClassVar, Final

from semel.bulk.body import ItemReader
from semel.errors import BulkRefused, ImportRefused, PolicyError, RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json
from semel.imports.rules import BadRow

RECIPE_VERSION: Final = 1
"""The version of the conversion of a row to canonical bytes. Each version has its own set of known rows."""

PIECE_BYTES: Final = 64 * 1024
COLUMNS_MAX: Final = 10_000
_BOM: Final = "\ufeff"
Read = bytes | BadRow


class UnreadableFile(Exception):
    """The file as a whole cannot be read as rows, because of its header, structure or declared format."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """Comma-separated values with a header line; a row is an object of its columns' texts.

    Parameters: ``encoding`` in which a line feed is one byte (a byte order mark of UTF-8 is dropped); ``delimiter`` and
    ``quote`` one character each; ``columns`` where the file has no header line; ``row_bytes_max`` of one row.

    >>> from io import BytesIO
    >>> list(Csv().rows(BytesIO(b"sku,quantity\\nA-1,2\\nB\\n")))[0]
    b'{"quantity":"2","sku":"A-1"}'
    """

    form: ClassVar[str] = "csv"
    media_types: ClassVar[tuple[str, ...]] = ("text/csv",)
    encoding: str = "utf-8"
    delimiter: str = ","
    quote: str = '"'
    columns: tuple[str, ...] = ()
    row_bytes_max: int = 65_536

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        for name, text in (("delimiter", self.delimiter), ("quote", self.quote)):
            if not isinstance(text, str) or len(text) != 1 or text in "\r\n\x00":
                raise PolicyError(f"{name} must be one character; it is {text!r}")
        if self.delimiter == self.quote:
            raise PolicyError("delimiter and quote must be two different characters")
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.columns:
            problem = _wrong_header(list(self.columns))
            if problem:
                raise PolicyError(f"columns: {problem}")
        _check_row_bytes(self.row_bytes_max)

    def rows(self, file: IO[bytes], lines: Lines | None = None) -> Iterator[Read]:
        """Yield the rows of a file. Raises UnreadableFile where its header cannot be read."""
        source = _Physical(file, self.encoding, self.quote, self.row_bytes_max)
        table = csv.reader(source, delimiter=self.delimiter, quotechar=self.quote, strict=True)
        header = list(self.columns) or _header(table, source)
        bare = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
        width = len(header)
        while True:
            source.begin()
            try:
                cells = next(table)
            except StopIteration:
                return
            except (csv.Error, _TooLong) as error:
                source.leave()
                yield _note_line(lines, BadRow(source.first, None, "ROW_MALFORMED", _csv_reason(error)), source.first)
                continue
            if not cells:
                continue
            bad = _bad_cells(cells, header, width, source.first)
            if bad is not None:
                yield _note_line(lines, bad, source.first)
                continue
            if lines is not None:
                lines.add(source.first)
            yield bare(dict(zip(header, cells, strict=True))).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """One JSON value a line, in UTF-8. Parameters: ``row_bytes_max`` of one line.

    >>> from io import BytesIO
    >>> list(JsonLines().rows(BytesIO(b'{"sku": "A-1"}\\n')))
    [b'{"sku":"A-1"}']
    """

    form: ClassVar[str] = "lines"
    media_types: ClassVar[tuple[str, ...]] = (
        *("application/jsonl", "application/x-ndjson", "application/x-jsonlines", "application/ndjson"),
    )
    row_bytes_max: int = 65_536

    def __post_init__(self) -> None:
        _check_row_bytes(self.row_bytes_max)

    def rows(self, file: IO[bytes], lines: Lines | None = None) -> Iterator[Read]:
        """Yield the rows of a file."""
        number = 0
        while raw := file.readline(self.row_bytes_max + 1):
            number += 1
            if len(raw) > self.row_bytes_max and not raw.endswith(b"\n"):
                _skip_line(file)
                yield _note_line(lines, BadRow(number, None, "ROW_TOO_LONG", _too_long(self.row_bytes_max)), number)
                continue
            raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if stripped := raw.strip(b" \t\r\n"):
                yield _note_line(lines, _json_row(stripped, number), number)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArray:
    """One JSON array in UTF-8, an element a row. Parameters: ``row_bytes_max`` of one element.

    >>> from io import BytesIO
    >>> list(JsonArray().rows(BytesIO(b'[{"sku": "A-1"}, 7]')))
    [b'{"sku":"A-1"}', b'7']
    """

    form: ClassVar[str] = "array"
    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    row_bytes_max: int = 65_536

    def __post_init__(self) -> None:
        _check_row_bytes(self.row_bytes_max)

    def rows(self, file: IO[bytes], lines: Lines | None = None) -> Iterator[Read]:
        """Yield the rows of a file; an element's line is its number. Raises UnreadableFile if it is not an array."""
        reader = ItemReader("array", self.row_bytes_max)
        number = 0
        try:
            while piece := file.read(PIECE_BYTES):
                for raw in reader.feed(piece):
                    number += 1
                    yield _note_line(lines, _json_row(raw, number), number)
            for raw in reader.end():
                number += 1
                yield _note_line(lines, _json_row(raw, number), number)
        except BulkRefused as error:
            raise UnreadableFile("FILE_MALFORMED", f"the file is not one JSON array: {error}") from None


Format = Csv | JsonLines | JsonArray
FORMATS: Final[dict[str, type[Any]]] = {"csv": Csv, "lines": JsonLines, "array": JsonArray}


def packed_recipe(form: Format) -> str:
    """Return the format of a file as stored with its job."""
    return json.dumps({"version": RECIPE_VERSION, "form": form.form, **asdict(form)}, separators=(",", ":"))


def read_recipe(recipe: str) -> Format:
    """Parse the format stored with a job. Raises UnreadableFile where this version of Semel does not know it."""
    try:
        options = json.loads(recipe)
        version, form = options.pop("version"), options.pop("form")
        if version != RECIPE_VERSION:
            raise UnreadableFile("RECIPE_UNKNOWN", f"the rows are to be read by version {version} of the recipe")
        made: Format = FORMATS[form](**options)
    except (ValueError, KeyError, TypeError, AttributeError, PolicyError):
        raise UnreadableFile("RECIPE_UNKNOWN", "this version does not know how to read the rows") from None
    return made


def format_for(media_type: str, formats: tuple[Format, ...]) -> Format:
    """Return the declared format of a media type. Raises ImportRefused."""
    essence = media_type.partition(";")[0].strip().lower()
    for form in formats:
        if essence in form.media_types:
            _check_charset(media_type, form)
            return form
    known = ", ".join(name for form in formats for name in form.media_types)
    raise ImportRefused(f"the media type must be one of {known}", "MEDIA_TYPE")


def _check_charset(media_type: str, form: Format) -> None:
    """Refuse a file whose charset differs from its format's encoding."""
    for parameter in media_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            declared = form.encoding if isinstance(form, Csv) else "utf-8"
            try:
                same = codecs.lookup(value.strip().strip('"')).name == codecs.lookup(declared).name
            except (LookupError, ValueError):
                same = False
            if not same:
                raise ImportRefused(f"the charset must be {declared}, as declared", "MEDIA_TYPE")


class Lines:
    """The line on which each row of a file begins. It stores only changes of the distance: for most files, none."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._gaps: list[int] = []
        self._count = 0

    def add(self, line: int) -> None:
        """Add the line of the next row."""
        gap = line - self._count
        if not self._gaps or self._gaps[-1] != gap:
            self._places.append(self._count)
            self._gaps.append(gap)
        self._count += 1

    def line_of(self, place: int) -> int:
        """Return the line of the row at a place, from 0.

        >>> lines = Lines()
        >>> for line in (2, 3, 7):
        ...     lines.add(line)
        >>> [lines.line_of(place) for place in range(3)]
        [2, 3, 7]
        """
        return place + self._gaps[bisect_right(self._places, place) - 1] if self._gaps else place + 1


def _note_line(lines: Lines | None, row: Read, line: int) -> Read:
    if lines is not None:
        lines.add(line)
    return row


def check_encoding(encoding: object) -> None:
    """Refuse an encoding that Python does not know, or that does not encode a line feed or comma as its ASCII byte."""
    try:
        plain = isinstance(encoding, str) and all(
            text.encode(encoding) == text.encode("ascii") for text in ("\n", "\r", ",", "a,b\n")
        )
    except (LookupError, UnicodeError):
        raise PolicyError(f"encoding must be one that Python knows, such as 'utf-8'; it is {encoding!r}") from None
    if not plain or codecs.lookup(str(encoding)).name in ("utf-7", "utf-8-sig"):
        raise PolicyError(
            f"encoding must be one in which a line feed is one byte, such as 'utf-8' or 'cp1252'; {encoding!r} is none"
        )


def _check_row_bytes(value: object) -> None:
    if type(value) is not int or not 64 <= value <= 1024 * 1024:
        raise PolicyError(f"row_bytes_max must be a whole number from 64 to 1048576; it is {value!r}")


# --- CSV ---------------------------------------------------------------------------------------------


class _TooLong(Exception):
    pass


class _Physical:
    """The lines of a CSV file as text, for ``csv.reader``; after an error, reading continues with the next row.

    The text after an unreadable row may still be inside its quotes, and is then not a row: :meth:`leave` skips it.
    """

    def __init__(self, file: IO[bytes], encoding: str, quote: str, row_bytes_max: int) -> None:
        self._file = file
        self._encoding = encoding
        self._quote = quote.encode(encoding)
        self._row_bytes_max = row_bytes_max
        self._line = 0
        self._size = 0
        self._quotes = 0  # of the row so far; a row can end only after an even number
        self.first = 1

    def begin(self) -> None:
        """Begin a row at the next line."""
        self._size = self._quotes = 0
        self.first = self._line + 1

    def leave(self) -> None:
        """Skip the rest of an unreadable row: up to the line in which its quotes end, or to the end of the file."""
        while self._quotes % 2 and self._read_line():
            pass

    def __iter__(self) -> _Physical:
        return self

    def __next__(self) -> str:
        raw = self._read_line()
        if not raw:
            raise StopIteration
        self._size += len(raw)
        if self._size > self._row_bytes_max:
            raise _TooLong(
                _too_long(self._row_bytes_max) + (", or a quoted text does not end" if self._quotes % 2 else "")
            )
        try:
            text = raw.decode(self._encoding)
        except UnicodeDecodeError:  # only this row fails
            text = raw.decode("ascii", "surrogateescape")
        return text.removeprefix(_BOM) if self._line == 1 else text

    def _read_line(self) -> bytes:
        """Read the next line, or the beginning of one that is too long, and count all its quotes."""
        raw = self._file.readline(self._row_bytes_max + 1)
        if raw:
            self._line += 1
            self._quotes += raw.count(self._quote)
        piece = raw
        while len(piece) > self._row_bytes_max and not piece.endswith(b"\n"):
            piece = self._file.readline(self._row_bytes_max + 1)
            self._quotes += piece.count(self._quote)
        return raw


def _skip_line(file: IO[bytes]) -> None:
    while (rest := file.readline(PIECE_BYTES)) and not rest.endswith(b"\n"):
        pass


def _too_long(most: int) -> str:
    return f"the row has more than {most} bytes"


def _csv_reason(error: Exception) -> str:
    text = str(error)
    if "unexpected end of data" in text:
        return "a quoted text does not end"
    if "new-line character" in text:
        return "a line ends in a carriage return alone; end lines in LF or CR LF"
    return text if isinstance(error, _TooLong) else f"it is not CSV as declared: {text}"


def _header(table: Iterator[list[str]], source: _Physical) -> list[str]:
    while True:
        source.begin()
        try:
            cells = next(table)
        except StopIteration:
            raise UnreadableFile("NO_HEADER", "the file has no header line") from None
        except (csv.Error, _TooLong) as error:
            raise UnreadableFile("BAD_HEADER", f"the header line cannot be read: {_csv_reason(error)}") from None
        if cells:
            break
    problem = _wrong_header(cells)
    if problem:
        raise UnreadableFile("BAD_HEADER", f"the header line: {problem}")
    return cells


def _wrong_header(cells: list[str]) -> str | None:
    if len(cells) > COLUMNS_MAX:
        return f"it has {len(cells)} columns, more than {COLUMNS_MAX}"
    seen: set[str] = set()
    for number, name in enumerate(cells, start=1):
        if not isinstance(name, str) or not name.strip():
            return f"column {number} has no name"
        if _surrogate(name) or "\x00" in name:
            return f"the name of column {number} is not text in the declared encoding"
        if name in seen:
            return f"columns {cells.index(name) + 1} and {number} have the same name"
        seen.add(name)
    return None


def _bad_cells(cells: list[str], header: list[str], width: int, line: int) -> BadRow | None:
    if len(cells) != width:
        return BadRow(line, None, "ROW_RAGGED", f"the row has {len(cells)} cells, the header has {width}")
    joined = "".join(cells)
    if joined.isascii() and "\x00" not in joined:
        return None
    for name, cell in zip(header, cells, strict=True):
        if "\x00" in cell:
            return BadRow(line, name, "ROW_ENCODING", "the cell holds U+0000")
        if _surrogate(cell):
            return BadRow(line, name, "ROW_ENCODING", "the cell is not text in the declared encoding")
    return None


def _surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


# --- JSON --------------------------------------------------------------------------------------------


def _json_row(raw: bytes, line: int) -> Read:
    try:
        canonical = canonical_json(raw)
    except RequestTooLarge as error:
        return BadRow(line, None, "ROW_TOO_LONG", str(error))
    if canonical is None:
        return BadRow(line, None, "ROW_MALFORMED", "it is not a JSON value in UTF-8, or repeats a member")
    return canonical
