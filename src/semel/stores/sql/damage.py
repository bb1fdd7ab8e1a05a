"""The valid columns of rows beside records (events, items, messages, operations), and the names of damaged rows.

SQLite keeps a value of any type in any column, and a flipped bit or a statement by hand may leave what no store writes.
A damaged row must be named and set aside, so that the rows beside it go on. Records have ``core/record.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from semel.bulk.rules import ItemState
from semel.core.model import State
from semel.outbox.rules import unpack_headers

_TIME_BITS: Final = 57  # as of records
_TEXT: Final = (str,)
_BYTES: Final = (bytes,)
_NUMBER: Final = (int,)
_TEXT_OR_NONE: Final = (str, type(None))
_BYTES_OR_NONE: Final = (bytes, type(None))
_NUMBER_OR_NONE: Final = (int, type(None))

COLUMNS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "operations": {
        **dict.fromkeys(("operation_id", "record_id"), _BYTES),
        **dict.fromkeys(("tenant", "caller", "operation"), _TEXT),
        **dict.fromkeys(("business_ref", "resource_type", "resource_id", "error_code"), _TEXT_OR_NONE),
        **dict.fromkeys(("state", "keep_us", "created_at"), _NUMBER),
        **dict.fromkeys(("settled_at", "forget_after"), _NUMBER_OR_NONE),
    },
    "bulks": {
        "operation_id": _BYTES,
        **dict.fromkeys(("total", "done", "succeeded", "failed", "retryable", "unknown"), _NUMBER),
        **dict.fromkeys(("created_at", "touched_at"), _NUMBER),
    },
    "items": {
        "operation_id": _BYTES,
        **dict.fromkeys(("place", "state"), _NUMBER),
        "item_id": _TEXT,
        **dict.fromkeys(("target_id", "result_id", "error_code"), _TEXT_OR_NONE),
        "retryable": (int, bool),
        "detail": _BYTES_OR_NONE,
        "settled_at": _NUMBER_OR_NONE,
    },
    "events": {
        **dict.fromkeys(("id", "topic", "type", "aggregatetype", "aggregateid", "tenant"), _TEXT),
        **dict.fromkeys(("payload", "headers"), _BYTES),
        "operation_id": _BYTES_OR_NONE,
        **dict.fromkeys(("created_at", "tries", "next_at"), _NUMBER),
        **dict.fromkeys(("parked_at", "published_at"), _NUMBER_OR_NONE),
        "reason": _TEXT_OR_NONE,
    },
    "messages": {
        **dict.fromkeys(("consumer", "message_id"), _TEXT),
        **dict.fromkeys(("handled_at", "parked_at"), _NUMBER_OR_NONE),
        "tries": _NUMBER,
        "reason": _TEXT_OR_NONE,
        "forget_after": _NUMBER_OR_NONE,
    },
    "imports": {
        **dict.fromkeys(("id", "sha256"), _BYTES),
        **dict.fromkeys(("tenant", "operation", "supplier", "idempotency_key", "media_type", "recipe"), _TEXT),
        **dict.fromkeys(("generation", "bytes", "state", "attempts", "next_at", "skipped", "submissions"), _NUMBER),
        **dict.fromkeys(("error_code", "reason", "content_ref"), _TEXT_OR_NONE),
        **dict.fromkeys(("row_count", "booked", "failed", "unknown", "content_until"), _NUMBER_OR_NONE),
        "bulk_id": _BYTES_OR_NONE,
        **dict.fromkeys(("keep_content_us", "keep_us", "created_at", "last_seen_at"), _NUMBER),
        **dict.fromkeys(("started_at", "ended_at", "forget_after"), _NUMBER_OR_NONE),
    },
}
_STATES: Final = {"operations": frozenset(map(int, State)), "items": frozenset(map(int, ItemState))}
_IDS: Final = frozenset({"operation_id", "record_id", "bulk_id"})


def damage_of(noun: str, values: Mapping[str, Any]) -> str | None:
    """Describe a row's damage, naming its column; None if it is sound. Checks only the given columns.

    >>> damage_of("messages", {"consumer": "billing", "message_id": "m-1", "tries": 3}) is None
    True
    >>> damage_of("messages", {"consumer": "billing", "message_id": "m-1", "tries": "three"})
    'damaged: tries holds str'
    >>> damage_of("events", {"headers": b"{"})
    'damaged: headers is not a JSON object of texts'
    """
    for column, kinds in COLUMNS[noun].items():
        if column not in values:
            continue
        value = values[column]
        if type(value) not in kinds:
            return f"damaged: {column} holds {'nothing' if value is None else type(value).__name__}"
        if isinstance(value, int) and not 0 <= value < 1 << _TIME_BITS:
            return f"damaged: {column} is {value}"
        if _is_id(noun, column) and value is not None and len(value) != 16:
            return f"damaged: {column} has {len(value)} bytes"
    if noun in _STATES and "state" in values and values["state"] not in _STATES[noun]:
        return f"damaged: state is {values['state']}"
    if noun == "events" and "headers" in values:
        try:
            headers = unpack_headers(values["headers"])
        except (ValueError, AttributeError, TypeError, RecursionError):
            return "damaged: headers is not a JSON object of texts"
        if any(type(value) is not str for _, value in headers):
            return "damaged: headers is not a JSON object of texts"
    return None


def _is_id(noun: str, column: str) -> bool:
    """Whether a column has an id of 16 bytes."""
    return column in _IDS or (noun, column) == ("imports", "id")


def repair(noun: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with a value of the right type in every given column, so that it can be shown.

    >>> repair("messages", {"consumer": b"x", "message_id": "m-1", "tries": "three"})
    {'consumer': "b'x'", 'message_id': 'm-1', 'tries': 0}
    """
    return {name: _fitting(noun, name, value) for name, value in values.items()}


def _fitting(noun: str, name: str, value: Any) -> Any:
    kinds = COLUMNS[noun].get(name)
    if kinds is None:
        return value
    if name == "headers":
        return value if damage_of(noun, {name: value}) is None else b"{}"
    if damage_of(noun, {name: value}) is None:
        return value
    if _is_id(noun, name):
        return bytes(16) if type(None) not in kinds else None
    if type(None) in kinds:
        return None
    if int in kinds:
        return value if name == "state" and type(value) is int else 0
    return b"" if bytes in kinds else str(value)
