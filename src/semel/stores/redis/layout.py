"""The form of a record in a Redis string: a head that the scripts read and write, then the part for Python alone.

The head is fixed-width text, so that a script finds a field by its place: ``S1``, the state, the answer's kind,
then numbers of 16 digits (blank where there is none) and hexadecimal ids. After it come two blocks of framed
fields, written once at a claim and once at a settlement; the body is last, so that a list need not read it.
"""

from __future__ import annotations

import re
import struct
from binascii import unhexlify
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from semel.core.identity import ID_BYTES, KEY_HASH_BYTES
from semel.core.model import ANSWERED_STATES, RECORD_FORMAT, AnswerKind, Record, Replay
from semel.core.record import DIGEST_BYTES, checked_answer
from semel.stores.sql.statements import Value

MAGIC: Final = b"S1"
DIGITS: Final = 16
BLANK: Final = b" " * DIGITS
BLANKS: Final = BLANK * 3  # an open record: no time of settlement, answer's end or forgetting
_NONE: Final = b"-1:"

# The head's fields after the magic, with their widths. ``seen`` is the part that a compare-and-set compares.
HEAD: Final = (
    *(("state", 2), ("answer_kind", 1), ("fence", 16), ("lease_until", 16), ("nonce", 32), ("operation_id", 32)),
    *(("created_at", 16), ("first_started_at", 16), ("deadline_at", 16), ("dedup_until", 16)),
    *(("settled_at", 16), ("answer_until", 16), ("forget_after", 16)),
    *(("lease_us", 16), ("answer_us", 16), ("tombstone_us", 16), ("claimed", 8), ("small", 8)),
)


def _places() -> dict[str, tuple[int, int]]:
    found, at = {}, len(MAGIC)
    for name, width in HEAD:
        found[name] = (at, at + width)
        at += width
    return found


PLACES: Final = _places()
HEAD_BYTES: Final = PLACES["small"][1]
SMALL_READ: Final = 4096  # bytes that a list reads of each record: more than the head, less than most bodies

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
_KINDS: Final = {name: str if name in _TEXTS else int if name in _NUMBERS else bytes for name in (*CLAIMED, *SETTLED)}
_NAMES: Final = 7  # the fields that name a claim: up to the fingerprint
_NAMED_KINDS: Final = tuple(_KINDS[name] for name in CLAIMED[:_NAMES])
_GRANTED_KINDS: Final = tuple(_KINDS[name] for name in CLAIMED[_NAMES:])
_SMALL_KINDS: Final = tuple(_KINDS[name] for name in SETTLED[:-_LARGE])
_LARGE_KINDS: Final = tuple(_KINDS[name] for name in SETTLED[-_LARGE:])
_DIGEST_PLACE: Final = SETTLED.index("answer_digest")
_STATUS_KINDS: Final = tuple(_KINDS[name] for name in SETTLED[_DIGEST_PLACE + 1 : -_LARGE])
_PLAIN_FIELDS: Final = (None,) * _DIGEST_PLACE
_PLAIN: Final = _NONE * _DIGEST_PLACE + b"%d:" % DIGEST_BYTES
_PLAIN_BYTES: Final = len(_PLAIN) + DIGEST_BYTES
_HEAD: Final = struct.Struct(f"{len(MAGIC)}s" + "".join(f"{width}s" for _, width in HEAD))
_CLAIMED_PLACES: Final = tuple(Record._fields.index(name) for name in CLAIMED)
_SETTLED_PLACES: Final = tuple(Record._fields.index(name) for name in SETTLED)


_DAMAGED: Final = Record(
    *(b"", 0, "", "", "", b"", "", b"", 0, 0, 0, b"", "", 0, 0, 0, bytes(16)),
    *(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
)


class Damaged(ValueError):
    """Bytes that are no record of this layout."""


_PLACE: Final = re.compile(r"field\(record, '(\w+)'\)|AT\.(\w+)\[([12])\]|\b(HEAD|BLANKS)\b")


def write_places(script: str) -> str:
    """Replace a script's names of fields by their places, counted as Lua does.

    >>> write_places("if field(record, 'state') == BLANKS then return AT.fence[1] + HEAD end").replace(
    ...     BLANKS.decode(), "~"
    ... )
    "if sub(record, 3, 4) == '~' then return 6 + 277 end"
    """

    def write_place(found: re.Match[str]) -> str:
        field, name, end, word = found.groups()
        if word:
            return str(HEAD_BYTES) if word == "HEAD" else f"'{BLANKS.decode()}'"
        place = PLACES[field or name]
        return f"sub(record, {place[0] + 1}, {place[1]})" if field else str(place[0] + 1 if end == "1" else place[1])

    return _PLACE.sub(write_place, script)


def number(value: int | None) -> bytes:
    """Write a number of the head."""
    return BLANK if value is None else b"%016d" % value


def frames(values: tuple[Value, ...]) -> bytes:
    """Write fields one after the other, each with its length; -1 for None."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(_NONE)
            continue
        data = value if type(value) is bytes else str(value).encode()
        parts.append(b"%d:" % len(data))
        parts.append(data)
    return b"".join(parts)


def encode(row: Record) -> bytes:
    """Encode a record as a string."""
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


def record_prefix(row: Record) -> bytes:
    """Return the beginning of this record's string, which changes with every write of the record."""
    return b"%s%02d%d%016d%016d%s" % (
        MAGIC,
        row.state,
        row.answer_kind,
        row.fence,
        row.lease_until,
        row.nonce.hex().encode(),
    )


def small_bytes(data: bytes) -> int:
    """Read how many bytes of a record's string a list must read; 0 where that is unknown."""
    claimed, small = _field(data, "claimed"), _field(data, "small")
    return HEAD_BYTES + int(claimed) + int(small) if claimed.isdigit() and small.isdigit() else 0


def decode(data: bytes, *, small: bool = False) -> Record:
    """Decode a record's string. ``small``: its beginning is enough; headers, request and body are left out.

    Raises Damaged.
    """
    try:
        head = _HEAD.unpack_from(data)
        if head[0] != MAGIC:
            return _unreadable(data)
        created, started, deadline, dedup = map(int, head[7:11])
        ends = map(_maybe if BLANK in head else int, head[11:14])
        lease_us, answer_us, tombstone_us, claimed_bytes, small_bytes = map(int, head[14:])
        claimed_end = HEAD_BYTES + claimed_bytes
        small_end = claimed_end + small_bytes
        (id, *named), at = _unframe(data, HEAD_BYTES, _NAMED_KINDS)
        effects, holder, attempt, lapses, generation, attempts_max, after_expiry = _parse_grant(data[at:claimed_end])
        settled = _parse_settlement(data[claimed_end:small_end])
        if len(data) < small_end:
            raise ValueError("cut short")
        large = (None,) * _LARGE if small else _answer(data, small_end)
        # In the order of Record's fields.
        row = Record._make(
            (
                *(id, RECORD_FORMAT, *named, int(head[1]), effects, int(head[3])),
                *(bytes.fromhex(head[5].decode()), holder, attempt, lapses, generation),
                *(bytes.fromhex(head[6].decode()), created, started, int(head[4]), deadline, dedup),
                *(lease_us, attempts_max, answer_us, tombstone_us, after_expiry, *ends),
                *(*settled[:_DIGEST_PLACE], int(head[2]), *settled[_DIGEST_PLACE:], *large),
            )
        )
        if not data.startswith(record_prefix(row)):  # a compare-and-set would never match it
            raise ValueError("written in another way")
        return row
    except (ValueError, TypeError, struct.error) as error:
        raise Damaged("a record's string does not have this layout") from error


_KEPT: Final = AnswerKind.KEPT
_new: Final[Any] = tuple.__new__  # every replay pays for one
_BY_STATE: Final = {b"%02d" % state: state for state in ANSWERED_STATES}
# The head of a kept answer, all of it, with what a replay takes from it: the state, the operation, and four numbers.
_ANSWERED_HEAD: Final = re.compile(
    b"%b(%b)%d[0-9]{32}[0-9a-f]{32}([0-9a-f]{32})[0-9]{80}([0-9]{16})[0-9]{64}([0-9]{8})([0-9]{8})"
    % (MAGIC, b"|".join(_BY_STATE), _KEPT)
).match
# The part behind the claim's fields: only the digest, the status and the headers' length.
_ANSWERED_REST: Final = re.compile(
    b"%b(.{%d})%b3:([0-9]{3})([0-9]{1,9}):" % (_PLAIN, DIGEST_BYTES, _NONE), re.DOTALL
).match
_ANSWERED_BODY: Final = re.compile(b"%b([0-9]{1,9}):" % _NONE).match


def kept_answer(data: bytes, framed: bytes, now: int) -> Replay | None:
    """Return the replay that a string gives a claim of these names, by its bytes; None if only the rules can tell.

    It equals :func:`~semel.core.decide.kept_answer` on the record that :func:`decode` returns, or is None.
    ``framed``: id, scope, key's hash, recipe and fingerprint. A head that is not all digits is left to the rules.
    """
    head = _ANSWERED_HEAD(data)
    if head is None or not data.startswith(framed, HEAD_BYTES):
        return None
    state, operation, until, claimed, small = head.groups()
    end = HEAD_BYTES + int(claimed)
    rest = _ANSWERED_REST(data, end)
    if rest is None or now >= int(until) or not _is_granted(data[HEAD_BYTES + len(framed) : end]):
        return None
    digest, status, length = rest.groups()
    begin = rest.end()
    block_end = begin + int(length)
    body = _ANSWERED_BODY(data, block_end)
    if body is None or end + int(small) != rest.end(2):
        return None
    kept = data[body.end() :]
    if len(kept) != int(body[1]):
        return None
    answer = checked_answer(_KEPT, digest, int(status), data[begin:block_end], kept)
    return None if answer is None else _new(Replay, (answer, unhexlify(operation), _BY_STATE[state]))


def names_of_kept(data: bytes, id: bytes, recipe: str, fingerprint: bytes) -> bytes | None:
    """Return the names in a string (id, scope, key's hash, recipe, fingerprint) if they are this request's, or None.

    The scope and the key's hash, which the id is made of, need only be there in the form of their kinds.
    """
    meant = b"%b%d:%b" % (_frame(recipe), len(fingerprint), fingerprint)
    at = data.find(meant, HEAD_BYTES)
    if (
        at < 0
        or not data.startswith(_ID_LENGTH + id, HEAD_BYTES)
        or not _is_scope(data[_SCOPE_AT : at - KEY_HASH_BYTES])
    ):
        return None
    return data[HEAD_BYTES : at + len(meant)]


_ID_LENGTH: Final = b"%d:" % ID_BYTES
_KEY_LENGTH: Final = b"%d:" % KEY_HASH_BYTES
_SCOPE_AT: Final = HEAD_BYTES + len(_ID_LENGTH) + ID_BYTES
_SCOPE_KINDS: Final = (str, str, str)


@lru_cache(maxsize=1024)
def _frame(text: str) -> bytes:
    return frames((text,))


@lru_cache(maxsize=1024)
def _is_scope(data: bytes) -> bool:
    """Whether these are the names of a scope, followed by the length of a key's hash."""
    try:
        return frames(tuple(_whole(data, 0, _SCOPE_KINDS))) + _KEY_LENGTH == data
    except ValueError:
        return False


def decode_any(data: bytes, id: bytes, *, small: bool = False) -> Record:
    """Decode a record's string, or make a record of that id that every rule treats as unreadable."""
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


def _unframe(data: bytes, at: int, kinds: tuple[type, ...]) -> tuple[list[Any], int]:
    """Read one field of each kind from a place on; also return the place behind them."""
    found: list[Any] = []
    for kind in kinds:
        colon = data.index(b":", at)
        length = int(data[at:colon])
        at = colon + 1
        if length < 0:
            found.append(None)
            continue
        part = data[at : at + length]
        at += length
        found.append(part if kind is bytes else part.decode() if kind is str else int(part))
    if at > len(data):
        raise ValueError("cut short")
    return found, at


def _whole(data: bytes, at: int, kinds: tuple[type, ...]) -> list[Any]:
    """Read the fields up to the end."""
    return _unframe(data, at, kinds)[0]


def _answer(data: bytes, at: int) -> Sequence[Any]:
    """Read headers, request and body, up to the end. A replayed record seldom still has its request."""
    colon = data.index(b":", at)
    end = colon + 1 + int(data[at:colon])
    if end > colon and data.startswith(_NONE, end):
        after = end + len(_NONE)
        begin = data.index(b":", after) + 1
        if int(data[after : begin - 1]) == len(data) - begin:
            return data[colon + 1 : end], None, data[begin:]
    return _whole(data, at, _LARGE_KINDS)


@lru_cache(maxsize=1024)
def _parse_grant(data: bytes) -> tuple[Any, ...]:
    """Read the fields of a claim beside its names: few combinations, one for each holder and policy."""
    return tuple(_whole(data, 0, _GRANTED_KINDS))


@lru_cache(maxsize=1024)
def _is_granted(data: bytes) -> bool:
    """Whether each of these fields is there, in the form of its kind."""
    try:
        return tuple(map(type, _parse_grant(data))) == _GRANTED_KINDS
    except ValueError:
        return False


def _parse_settlement(data: bytes) -> list[Any]:
    """Read the fields of a settlement beside its answer. Most have only the answer's digest and status."""
    if data.startswith(_PLAIN) and len(data) > _PLAIN_BYTES:
        return [*_PLAIN_FIELDS, data[len(_PLAIN) : _PLAIN_BYTES], *_status(data[_PLAIN_BYTES:])]
    return _whole(data, 0, _SMALL_KINDS)


@lru_cache(maxsize=1024)
def _status(data: bytes) -> tuple[Any, ...]:
    return tuple(_whole(data, 0, _STATUS_KINDS))
