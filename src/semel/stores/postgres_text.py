"""Text that PostgreSQL cannot hold as it is: U+0000 is written as ``\\0``, and so the backslash as ``\\\\``.

>>> escaped("a\\x00b"), unescaped(escaped("a\\x00b")) == "a\\x00b"
('a\\\\0b', True)
"""

from __future__ import annotations

import re
from typing import Final

from semel.model import Record
from semel.stores.statements import Row

_ESCAPE: Final = re.compile(r"\\(.)")
_TEXTS: Final = tuple(
    Record._fields.index(name)
    for name in ("tenant", "caller", "operation", "doubt", "business_ref", "resource_type", "resource_id", "error_code")
)


def escaped(text: str | None) -> str | None:
    """As it is written. None stays None."""
    if text is None or ("\x00" not in text and "\\" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\x00", "\\0")


def unescaped(text: str) -> str:
    """As it was."""
    return _ESCAPE.sub(lambda match: "\x00" if match[1] == "0" else match[1], text)


def record(row: Row) -> Record:
    """The record of a row, in the order of the record's fields."""
    for place in _TEXTS:
        text = row[place]
        if text is not None and "\\" in text:  # type: ignore[operator]  # these columns are text
            values = list(row)
            for each in _TEXTS:
                if values[each] is not None:
                    values[each] = unescaped(values[each])  # type: ignore[arg-type]
            return Record._make(values)
    return Record._make(row)


def written(row: Record) -> Record:
    """A record with its texts as they are written."""
    return row._replace(
        doubt=escaped(row.doubt),
        business_ref=escaped(row.business_ref),
        resource_type=escaped(row.resource_type),
        resource_id=escaped(row.resource_id),
        error_code=escaped(row.error_code),
    )
