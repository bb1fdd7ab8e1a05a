"""Make damaged records readable for operators: replace values that no store wrote.

For display only. The rules decide an attempt on the record as it is stored, where a damaged one is Unreadable.
"""

from __future__ import annotations

from typing import Any, Final, get_type_hints

from semel.core.model import Record, State
from semel.core.record import is_sound, state_of, uuid_of

DAMAGED_STATE: Final = -1
_LATEST: Final = 1 << 57
_KINDS: Final = {name: getattr(kind, "__args__", (kind,)) for name, kind in get_type_hints(Record).items()}


def is_damaged(record: Record) -> bool:
    """Return whether the record holds a value that Semel never writes."""
    return not is_sound(record) or state_of(record) is None


def repair(record: Record) -> Record:
    """Return the record with a value of the right type in every column; an undamaged record is returned unchanged.

    A state that Semel never writes is kept; damage in another column shows in the state.
    """
    if is_sound(record):
        return record
    values = {name: _fitting(name, value) for name, value in record._asdict().items()}
    values["operation_id"] = uuid_of(record)
    row = Record(**values)
    return row if state_of(row) is None else row._replace(state=DAMAGED_STATE)


def _fitting(name: str, value: Any) -> Any:
    kinds = _KINDS[name]
    if isinstance(value, kinds) or (int in kinds and isinstance(value, State)):
        return value if not isinstance(value, int) or 0 <= value < _LATEST else 0
    if type(None) in kinds:
        return None
    return 0 if int in kinds else b"" if bytes in kinds else str(value)
