"""Text forms of values that JSON has no form for: exact, readable, and read back as the same type.

Values that a text cannot carry are refused: a nameless time zone whose offset depends on the date, a subclass that
would come back as its base. A zone of one offset, of any class (dateutil's, pydantic's), comes back as a
``datetime.timezone``: the values are equal.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MICROSECOND: Final = timedelta(microseconds=1)
_SUBSECOND_OFFSET: Final = re.compile(r"([+-])00:00:00\.(\d{6})\Z")


class Unserialisable(Exception):
    """A value that has no exact form: ``where`` it is (``result.lines[0].sku``), ``why``, and the ``remedy``."""

    def __init__(self, where: str, why: str, remedy: str = "") -> None:
        super().__init__(where, why, remedy)
        self.where = where
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.where} {self.why}" + (f"; {self.remedy}" if self.remedy else "")


class Mismatch(Exception):
    """A stored form is not one of the declared type."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One such type: ``text`` makes a value's text (raises ValueError if it has none); :meth:`read` reads it back."""

    tag: str
    text: Callable[[Any], str]
    parse: Callable[[str], Any]

    def read(self, form: object) -> Any:
        """Read the value of a stored text. Raises Mismatch."""
        if type(form) is not str:
            raise Mismatch(f"a text of a {self.tag} was expected")
        try:
            return self.parse(form)
        except (ValueError, InvalidOperation, ZoneInfoNotFoundError, OverflowError):
            raise Mismatch(f"not a {self.tag}") from None


def _moment_text(value: datetime) -> str:
    zone = value.tzinfo
    if zone is None or type(zone) is timezone:
        return value.isoformat()
    if type(zone) is ZoneInfo and zone.key is not None:
        return f"{value.isoformat()}[{zone.key}]"  # RFC 9557
    if zone.utcoffset(None) is not None:
        return value.isoformat()
    raise ValueError(
        f"has a time zone of type {type(zone).__name__}, whose offset depends on the date; use zoneinfo.ZoneInfo(name) "
        "or datetime.timezone"
    )


def _moment(text: str) -> datetime:
    plain, bracket, key = text.partition("[")
    value = datetime.fromisoformat(plain)
    if not bracket:
        return value.replace(tzinfo=_zone(value.tzinfo, plain))
    offset = value.utcoffset()
    zoned = value.replace(tzinfo=ZoneInfo(key.removesuffix("]")))
    for known in (zoned, zoned.replace(fold=1)):  # the offset distinguishes two equal wall-clock times
        if known.utcoffset() == offset:
            return known
    return value.astimezone(zoned.tzinfo)  # the zone's rules have changed since: keep the instant


def _zone(found: tzinfo | None, text: str) -> tzinfo | None:
    """Return the zone of a parsed text, because CPython's ``fromisoformat`` reads an offset below a second as UTC."""
    offset = _SUBSECOND_OFFSET.search(text)
    if offset is None:
        return found
    return timezone(int(offset[1] + offset[2]) * MICROSECOND)


def _time(text: str) -> time:
    value = time.fromisoformat(text)
    return value.replace(tzinfo=_zone(value.tzinfo, text))


def _time_text(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise ValueError(
            f"has a time zone of type {type(value.tzinfo).__name__}, whose offset depends on the date; use "
            "datetime.timezone"
        )
    return value.isoformat()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


SCALARS: Final[Mapping[type, Scalar]] = {
    Decimal: Scalar("decimal", str, Decimal),
    UUID: Scalar("uuid", str, UUID),
    datetime: Scalar("datetime", _moment_text, _moment),
    date: Scalar("date", date.isoformat, date.fromisoformat),
    time: Scalar("time", _time_text, _time),
    timedelta: Scalar("timedelta", lambda value: str(value // MICROSECOND), lambda text: int(text) * MICROSECOND),
    bytes: Scalar("bytes", lambda value: base64.b64encode(value).decode("ascii"), _bytes),
}
BY_TAG: Final[Mapping[str, Scalar]] = {scalar.tag: scalar for scalar in SCALARS.values()}


def scalar_text(value: object, where: str) -> str | None:
    """Return the text of a value of exactly one of these types; None for any other. Raises Unserialisable."""
    scalar = SCALARS.get(type(value))
    if scalar is None:
        return None
    try:
        return scalar.text(value)
    except ValueError as error:
        raise Unserialisable(where, str(error)) from None


def kind_name(kind: type) -> str:
    """Return a type's name for people."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
