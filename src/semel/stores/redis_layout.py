"""How a record lies in a Redis string: a head that the scripts read and write, then what only Python reads.

The head is fixed-width text, so that a script finds a field by its place: ``S1``, the state, the answer's kind,
then numbers of 16 digits (blank where there is none) and hexadecimal ids. After it come two blocks of framed
fields, written once at a claim and once at a settlement; the body is last, so that a list need not read it.
"""

from __future__ import annotations

from typing import Final

from semel.model import RECORD_FORMAT, Record
from semel.stores.statements import Value

MAGIC: Final = b"S1"
DIGITS: Final = 16
BLANK: Final = b" " * DIGITS

# The head's fields after the magic, with their widths. ``seen`` is the part that a compare-and-set compares.
HEAD: Final = (
    *(("state", 2), ("answer_kind", 1), ("fence", 16), ("lease_until", 16), ("nonce", 32), ("operation_id", 32)),
    *(("created_at", 16), ("first_started_at", 16), ("deadline_at", 16), ("dedup_until", 16)),
    *(("settled_at", 16), ("answer_until", 16), ("forget_after", 16)),
    *(("lease_us", 16), ("answer_us", 16), ("tombstone_us", 16), ("claimed", 8), ("small", 8)),
)
SEEN_FIELDS: Final = 5


def _places() -> dict[str, tuple[int, int]]:
    found, at = {}, len(MAGIC)
    for name, width in HEAD:
        found[name] = (at, at + width)
        at += width
    return found


PLACES: Final = _places()
HEAD_BYTES: Final = PLACES["small"][1]
SEEN_BYTES: Final = PLACES[HEAD[SEEN_FIELDS - 1][0]][1]
SMALL_READ: Final = 4096  # what a list reads of each record: more than the head, less than most bodies

# Written at a claim. Numbers are framed as decimal text.
CLAIMED: Final = (
    *("id", "tenant", "caller", "operation", "key_hash", "recipe", "fingerprint", "effects", "holder", "attempt"),
    *("lapses", "generation", "attempts_max", "after_expiry"),
)
# Written at a settlement; the last three are those that a list leaves out.
SETTLED: Final = (
    *("doubt", "business_ref", "resource_type", "resource_id", "error_code", "answer_digest", "sealing_key_id"),
    *("status", "headers", "request", "body"),
)
_LARGE: Final = 3
_TEXTS: Final = frozenset(
    (
        *("tenant", "caller", "operation", "recipe", "holder", "doubt", "business_ref", "resource_type"),
        *("resource_id", "error_code", "sealing_key_id"),
    )
)
_NUMBERS: Final = frozenset(("effects", "attempt", "lapses", "generation", "attempts_max", "after_expiry", "status"))
_CLAIMED_PLACES: Final = tuple(Record._fields.index(name) for name in CLAIMED)
_SETTLED_PLACES: Final = tuple(Record._fields.index(name) for name in SETTLED)


_DAMAGED: Final = Record(
    *(b"", 0, "", "", "", b"", "", b"", 0, 0, 0, b"", "", 0, 0, 0, bytes(16)),
    *(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
)


class Damaged(ValueError):
    """Bytes that are no record of this layout."""


def constants() -> str:
    """What the scripts must know of the layout, as Lua."""
    places = ", ".join(f"{name} = {{{begin + 1}, {end}}}" for name, (begin, end) in PLACES.items())
    return f"local AT = {{{places}}}\nlocal HEAD = {HEAD_BYTES}\nlocal BLANK = '{BLANK.decode()}'\n"


def number(value: int | None) -> bytes:
    """A number of the head."""
    return BLANK if value is None else b"%016d" % value


def frames(values: tuple[Value, ...]) -> bytes:
    """Fields one after the other, each with its length; -1 for None."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(b"-1:")
            continue
        data = value if type(value) is bytes else str(value).encode()
        parts.append(b"%d:" % len(data))
        parts.append(data)
    return b"".join(parts)


def encode(row: Record) -> bytes:
    """The string of a record."""
    claimed = frames(tuple([row[place] for place in _CLAIMED_PLACES]))
    small = frames(tuple([row[place] for place in _SETTLED_PLACES[:-_LARGE]]))
    large = frames(tuple([row[place] for place in _SETTLED_PLACES[-_LARGE:]]))
    head = (
        MAGIC,
        b"%02d%d" % (row.state, row.answer_kind),
        number(row.fence),
        number(row.lease_until),
        row.nonce.hex().encode(),
        row.operation_id.hex().encode(),
        number(row.created_at),
        number(row.first_started_at),
        number(row.deadline_at),
        number(row.dedup_until),
        number(row.settled_at),
        number(row.answer_until),
        number(row.forget_after),
        number(row.lease_us),
        number(row.answer_us),
        number(row.tombstone_us),
        b"%08d%08d" % (len(claimed), len(small)),
    )
    return b"".join((*head, claimed, small, large))


def seen(row: Record) -> bytes:
    """The beginning of this record's string: equal as long as nobody has written."""
    return b"%s%02d%d%016d%016d%s" % (
        MAGIC,
        row.state,
        row.answer_kind,
        row.fence,
        row.lease_until,
        row.nonce.hex().encode(),
    )


def small_bytes(data: bytes) -> int:
    """How much of a record's string a list must have read; 0 where that cannot be told."""
    claimed, small = _field(data, "claimed"), _field(data, "small")
    return HEAD_BYTES + int(claimed) + int(small) if claimed.isdigit() and small.isdigit() else 0


def decode(data: bytes, *, small: bool = False) -> Record:
    """The record of a string. ``small``: its beginning is enough; headers, request and body are left out.

    Raises Damaged.
    """
    try:
        if data[:2] != MAGIC:
            return _unreadable(data)
        claimed_end = HEAD_BYTES + int(_field(data, "claimed"))
        small_end = claimed_end + int(_field(data, "small"))
        claimed = _unframed(data[HEAD_BYTES:claimed_end], CLAIMED)
        settled = _unframed(data[claimed_end:small_end], SETTLED[:-_LARGE])
        settled |= dict.fromkeys(SETTLED[-_LARGE:]) if small else _unframed(data[small_end:], SETTLED[-_LARGE:])
        return Record(
            format=RECORD_FORMAT,
            state=int(_field(data, "state")),
            answer_kind=int(_field(data, "answer_kind")),
            fence=int(_field(data, "fence")),
            lease_until=int(_field(data, "lease_until")),
            nonce=bytes.fromhex(_field(data, "nonce").decode()),
            operation_id=bytes.fromhex(_field(data, "operation_id").decode()),
            created_at=int(_field(data, "created_at")),
            first_started_at=int(_field(data, "first_started_at")),
            deadline_at=int(_field(data, "deadline_at")),
            dedup_until=int(_field(data, "dedup_until")),
            settled_at=_maybe(_field(data, "settled_at")),
            answer_until=_maybe(_field(data, "answer_until")),
            forget_after=_maybe(_field(data, "forget_after")),
            lease_us=int(_field(data, "lease_us")),
            answer_us=int(_field(data, "answer_us")),
            tombstone_us=int(_field(data, "tombstone_us")),
            **claimed,  # type: ignore[arg-type]  # by CLAIMED and SETTLED, all of the other columns
            **settled,  # type: ignore[arg-type]
        )
    except (ValueError, TypeError) as error:
        raise Damaged("a record's string does not have this layout") from error


def decode_any(data: bytes, id: bytes, *, small: bool = False) -> Record:
    """The record of a string, or one of that id that every rule takes for unreadable."""
    try:
        return decode(data, small=small)
    except Damaged:
        return _DAMAGED._replace(id=id)


def _unreadable(data: bytes) -> Record:
    raise Damaged(f"a record's string begins with {data[:2]!r}, not with {MAGIC!r}")


def _field(data: bytes, name: str) -> bytes:
    begin, end = PLACES[name]
    return data[begin:end]


def _maybe(digits: bytes) -> int | None:
    return None if digits == BLANK else int(digits)


def _unframed(data: bytes, names: tuple[str, ...]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    at = 0
    for name in names:
        colon = data.index(b":", at)
        length = int(data[at:colon])
        at = colon + 1
        if length < 0:
            found[name] = None
            continue
        part = data[at : at + length]
        if len(part) != length:
            raise ValueError("cut short")
        at += length
        found[name] = int(part) if name in _NUMBERS else part.decode() if name in _TEXTS else part
    return found
