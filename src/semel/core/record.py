"""The stored form of an answer: header pairs as one block, and a digest over the whole.

The digest detects a flipped bit in an answer, and `is_sound` values in the other columns that no store would have
written: a corrupt record is refused, never replayed and never run again. Damage that leaves another plausible record,
such as one with other effects or other times, cannot be detected from the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from hashlib import sha256 as _sha256
from operator import itemgetter, or_
from struct import Struct
from types import NoneType
from typing import get_type_hints

from semel.core.model import OPEN_STATES, STORED_ANSWERS, Answer, AnswerKind, Find, Record, State
from semel.sealing.rules import MARK

DIGEST_BYTES = 16
_UUID_BYTES = 16
_REMEMBERED_BYTES_MAX = 128
_answer_columns = itemgetter(*map(Record._fields.index, ("answer_kind", "answer_digest", "status", "headers", "body")))
_NAMELESS = b"\x00\x00"  # only a sealed answer's headers begin so: with an empty name
_PAIR = Struct(">HI")  # length of the name, length of the value


def pack_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Pack header pairs in their order, each framed by the lengths of name and value."""
    try:
        return _packed_before(headers)
    except TypeError:  # a value is another kind of buffer, which is not hashable
        return _pack_headers(headers)


def _pack_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    pack = _PAIR.pack
    return b"".join([pack(len(name), len(value)) + name + value for name, value in headers])


_packed_before = lru_cache(maxsize=256)(_pack_headers)  # cached: most answers have the same few, and no credential


def unpack_headers(block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    """Return the header pairs, or None if the block is corrupt."""
    pairs, at, end = [], 0, len(block)
    while at < end:
        if at + _PAIR.size > end:
            return None
        name_length, value_length = _PAIR.unpack_from(block, at)
        at += _PAIR.size
        stop = at + name_length + value_length
        if stop > end:
            return None
        pairs.append((block[at : at + name_length], block[at + name_length : stop]))
        at = stop
    return tuple(pairs)


_unpacked_before = lru_cache(maxsize=256)(unpack_headers)


def is_whole(answer: Answer) -> bool:
    """Return whether an answer can be stored as it is: none of its parts is mutable or of another type.

    >>> is_whole(Answer(200, ((b"etag", b"x"),), b"")), is_whole(Answer(200, (), bytearray(b"x")))
    (True, False)
    """
    if type(answer.status) is not int or type(answer.body) is not bytes:
        return False
    try:
        _packed_before(answer.headers)  # immutable values are hashable
    except Exception:  # noqa: BLE001 - what is wrong with them, the settlement by the rules says
        return False
    return True


def check_answer(answer: Answer) -> None:
    """Raise TypeError, naming the field, if no store could keep this answer."""
    if answer.status is not None and not isinstance(answer.status, int):
        raise TypeError(f"Answer.status must be a number such as 201, or None, not {type(answer.status).__name__}")
    if not isinstance(answer.body, (bytes, bytearray, memoryview)):
        raise TypeError(f"Answer.body must be bytes, such as b'...' or text.encode(), not {type(answer.body).__name__}")
    try:
        pack_headers(answer.headers)
    except Exception as error:
        raise TypeError("Answer.headers must be pairs of bytes, such as ((b'location', b'/orders/1'),)") from error


def answer_digest(status: int | None, header_block: bytes, body: bytes) -> bytes:
    """16 bytes of SHA-256 over the stored answer."""
    head = b"semel.answer.1:%d:%d:%b" % (-1 if status is None else status, len(header_block), header_block)
    return _sha256(head + body).digest()[:DIGEST_BYTES]


def digest_answers(status: int | None, header_block: bytes, bodies: Iterable[bytes]) -> list[bytes]:
    """Return the digests of answers that differ in their bodies alone, as :func:`answer_digest`.

    >>> digest_answers(201, b"", [b"ordered"]) == [answer_digest(201, b"", b"ordered")]
    True
    """
    head = b"semel.answer.1:%d:%d:%b" % (-1 if status is None else status, len(header_block), header_block)
    return [_sha256(head + body).digest()[:DIGEST_BYTES] for body in bodies]


def answer_of(row: Record) -> Answer | None:
    """Return the answer as it is stored: a sealed one stays sealed. None if there is none, or it is corrupt."""
    return stored_answer(*_answer_columns(row))


def stored_answer(kind: int, digest: bytes | None, status: int | None, block: object, body: object) -> Answer | None:
    """As :func:`answer_of`, from these columns: the kind, the digest, the status, the header block and the body."""
    # SQLite keeps a value of any type in any column: a statement by hand may have left text.
    if kind not in STORED_ANSWERS or not isinstance(block, bytes) or not isinstance(body, bytes):
        return None
    try:
        return checked_answer(kind, digest, status, block, body)
    except TypeError:
        return None  # the status is no number


def checked_answer(kind: int, digest: bytes | None, status: int | None, block: bytes, body: bytes) -> Answer | None:
    """As :func:`stored_answer`, for a kind that has an answer, and columns that have their types."""
    head = b"semel.answer.1:%d:%d:%b" % (-1 if status is None else status, len(block), block)  # as ``answer_digest``
    if _sha256(head + body).digest()[:DIGEST_BYTES] != digest:
        return None
    if body.startswith(MARK) and kind == AnswerKind.KEPT and block.startswith(_NAMELESS):
        return None  # a sealed answer whose kind was changed: never show sealed content
    # Most answers have the same few headers; the bound keeps what others are kept for it small.
    headers = _unpacked_before(block) if len(block) <= _REMEMBERED_BYTES_MAX else unpack_headers(block)
    return None if headers is None else tuple.__new__(Answer, (status, headers, body))


# What each column may hold, from the record's own annotations; in memory, numbers and texts are often enumerations.
_HOLDS = tuple(getattr(kind, "__args__", (kind,)) for kind in get_type_hints(Record).values())
_TIMES = [
    Record._fields.index(name)
    for name in (
        *("fence", "created_at", "first_started_at", "lease_until"),
        *("deadline_at", "dedup_until", "settled_at", "answer_until"),
    )
]
_TIME_BITS = 57  # microseconds until the year 6536: no clock goes beyond


def is_sound(row: Record) -> bool:
    """Return whether every column has a value that a store could have written: the right type, and valid times.

    SQLite keeps a value of any type in any column, so a flipped bit or a statement by hand may leave text for a time.

    >>> from semel.testing.attempts import attempt
    >>> from semel.core.decide import first_grant
    >>> from semel.stores.memory.store import grant_row
    >>> row = grant_row(None, attempt(), first_grant(attempt(), 1_000))
    >>> is_sound(row), is_sound(row._replace(lease_until="soon")), is_sound(row._replace(settled_at=-1))
    (True, False, False)
    """
    times = _times_of(tuple(map(type, row)))
    return times is not None and not reduce(or_, times(row)) >> _TIME_BITS  # a negative one leaves -1


@lru_cache(maxsize=256)
def _times_of(kinds: tuple[type, ...]) -> Callable[[Record], tuple[int, ...]] | None:
    """Return a getter of the times in a row with these column types; None if a column may not hold its type.

    A subclass, such as an enumeration of texts, is allowed too. Rows come in a handful of combinations.
    """
    if not all(issubclass(kind, held) for kind, held in zip(kinds, _HOLDS, strict=True)):
        return None
    return itemgetter(*(at for at in _TIMES if not issubclass(kinds[at], NoneType)))


def uuid_of(row: Record) -> bytes:
    """Return the operation's id to show to people: 16 zero bytes if a damaged record holds none."""
    known = type(row.operation_id) is bytes and len(row.operation_id) == _UUID_BYTES
    return row.operation_id if known else bytes(_UUID_BYTES)


def state_of(row: Record) -> State | None:
    """Return the state of the record; None if the stored value is not a state."""
    try:
        return State(row.state)
    except ValueError:
        return None


def matches(row: Record, query: Find, now: int) -> bool:
    """Return whether a record belongs on an operator's page."""
    return (
        (not query.states or row.state in query.states)
        and (query.tenant is None or row.tenant == query.tenant)
        and (query.caller is None or row.caller == query.caller)
        and (query.operation is None or row.operation == query.operation)
        and (not query.lapsed or (row.state in OPEN_STATES and is_sound(row) and row.lease_until <= now))
    )
