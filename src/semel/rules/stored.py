"""How an answer lies in the store: header pairs as one block, and a digest over the whole.

The digest makes a flipped bit visible: a corrupt record is refused, never replayed and never run again.
"""

from __future__ import annotations

import hashlib
from struct import Struct

from semel.model import OPEN_STATES, Answer, AnswerKind, Find, Record, State

DIGEST_BYTES = 16
_PAIR = Struct(">HI")  # length of the name, length of the value


def pack_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Header pairs in their order, each framed by the lengths of name and value."""
    return b"".join([_PAIR.pack(len(name), len(value)) + name + value for name, value in headers])


def unpack_headers(block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    """The pairs, or None where the block is corrupt."""
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


def answer_digest(status: int | None, header_block: bytes, body: bytes) -> bytes:
    """16 bytes of SHA-256 over the stored answer."""
    hashing = hashlib.sha256(b"semel.answer.1:%d:%d:" % (-1 if status is None else status, len(header_block)))
    hashing.update(header_block)
    hashing.update(body)
    return hashing.digest()[:DIGEST_BYTES]


def answer_of(row: Record) -> Answer | None:
    """The stored answer, or None where it is corrupt."""
    # SQLite keeps a value of any type in any column: a statement by hand may have left text.
    if row.answer_kind != AnswerKind.KEPT or not isinstance(row.headers, bytes) or not isinstance(row.body, bytes):
        return None
    try:
        if answer_digest(row.status, row.headers, row.body) != row.answer_digest:
            return None
    except TypeError:
        return None  # the status is no number
    headers = unpack_headers(row.headers)
    return None if headers is None else Answer(row.status, headers, row.body)


def state_of(row: Record) -> State | None:
    """Where the record stands; None where what is stored is no state at all."""
    try:
        return State(row.state)
    except ValueError:
        return None


def matches(row: Record, query: Find, now: int) -> bool:
    """Whether a record belongs on an operator's page."""
    return (
        (not query.states or row.state in query.states)
        and (query.tenant is None or row.tenant == query.tenant)
        and (query.caller is None or row.caller == query.caller)
        and (query.operation is None or row.operation == query.operation)
        and (not query.lapsed or (row.state in OPEN_STATES and row.lease_until <= now))
    )
