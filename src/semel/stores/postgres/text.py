"""Text that PostgreSQL cannot hold as it is: U+0000 is written as ``\\0``, and so the backslash as ``\\\\``.

>>> escape("a\\x00b"), unescape(escape("a\\x00b")) == "a\\x00b"
('a\\\\0b', True)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from semel.core.model import Record
from semel.stores.sql.statements import Row

_ESCAPE: Final = re.compile(r"\\(.)")
_TEXTS: Final = tuple(
    Record._fields.index(name)
    for name in ("tenant", "caller", "operation", "doubt", "business_ref", "resource_type", "resource_id", "error_code")
)
_texts: Final[Callable[[Row], tuple[Any, ...]]] = itemgetter(*_TEXTS)


def escape(text: str | None) -> str | None:
    """Escape a text for the database. None stays None."""
    if text is None or ("\x00" not in text and "\\" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\x00", "\\0")


def all_escaped(texts: Sequence[str | None]) -> list[str | None]:
    """Escape a column of texts, most of which need no escaping."""
    whole = "".join(filter(None, texts))
    return list(texts) if "\x00" not in whole and "\\" not in whole else list(map(escape, texts))


def unescape(text: str) -> str:
    """Return the original of an escaped text."""
    return _ESCAPE.sub(lambda match: "\x00" if match[1] == "0" else match[1], text)


def record(row: Row) -> Record:
    """Make the record of a row, in the order of the record's fields."""
    if "\\" not in "".join(filter(None, _texts(row))):
        return Record._make(row)
    values: list[Any] = list(row)
    for place in _TEXTS:
        if values[place] is not None:
            values[place] = unescape(values[place])
    return Record._make(values)


def escape_row(row: Record) -> Record:
    """Return a record with its texts escaped for the database."""
    return row._replace(
        doubt=escape(row.doubt),
        business_ref=escape(row.business_ref),
        resource_type=escape(row.resource_type),
        resource_id=escape(row.resource_id),
        error_code=escape(row.error_code),
    )
