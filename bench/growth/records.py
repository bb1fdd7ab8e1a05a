"""Settled records of all ages, as the rules make them: what a store holds after a month of commands.

Every record is granted and settled by the same functions that the memory store runs, at a time of its own. The
oldest are over, then come tombstones whose answer has gone, then answers that are over, then those that are replayed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final

from semel import Answer, Command, Policy, Scope
from semel.core.command_flow import make_settlement
from semel.core.decide import first_grant
from semel.core.identity import key_hash, record_id, uuid7_bytes
from semel.core.model import AnswerKind, Claim, Record, State
from semel.core.outcomes import Refused, Succeeded
from semel.core.record import answer_digest, pack_headers
from semel.core.settle import settle_row
from semel.stores.memory.store import grant_row

OPERATION: Final = "POST /payments"
RECIPE: Final = "growth"
HOLDER: Final = "growth-loader:1"
POLICY: Final = Policy()
HANDLER_US: Final = 5_000
REFUSED_EVERY: Final = 32  # one of so many commands was refused for good
HEADERS: Final = ((b"content-type", b"application/json"), (b"content-length", b"107"))
_BODY: Final = b'{"paymentId":"pay_%012d","status":"created","currency":"EUR","amount":%010d,"note":"thank you"}'
_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


class Age(Enum):
    """What has become of a record: which part of the whole, and settled from when to when before now."""

    FORGETTABLE = (0.0, 0.1, 31 * _DAY, 30 * _DAY + 20 * _MINUTE)
    TOMBSTONE = (0.1, 0.5, 30 * _DAY - 2 * _HOUR, _DAY + 2 * _HOUR)
    ANSWER_OVER = (0.5, 0.6, _DAY + 2 * _HOUR, _DAY + 20 * _MINUTE)
    LIVE = (0.6, 1.0, 20 * _HOUR, _MINUTE)


@dataclass(frozen=True, slots=True)
class Population:
    """So many records that were settled up to ``now`` (microseconds since 1970)."""

    records: int
    now: int

    def part(self, age: Age) -> range:
        """The numbers of the records of this age."""
        begin, end, _, _ = age.value
        return range(round(begin * self.records), round(end * self.records))

    def rows(self) -> Iterator[Record]:
        """All of them, oldest first."""
        bits = random.Random(self.records)
        for age in Age:
            part = self.part(age)
            _, _, oldest, youngest = age.value
            for place, number in enumerate(part):
                settled = self.now - oldest + (oldest - youngest) * place // len(part)
                yield quickly(number, settled, bits.randbytes(26), age is Age.TOMBSTONE)


def command(number: int) -> Command:
    """The command of which this record is; also for numbers that were never loaded."""
    scope = Scope(f"tenant-{number % 97}", f"caller-{number % 9973}", OPERATION)
    return Command(scope, f"{sha256(b'key %d' % number).hexdigest()[:32]}", fingerprint(number), RECIPE, POLICY)


def fingerprint(number: int) -> bytes:
    """The digest of its request."""
    return sha256(b"request %d" % number).digest()


def answer(number: int) -> Answer:
    """Return the answer of the record."""
    return Answer(422 if number % REFUSED_EVERY == 0 else 201, HEADERS, _BODY % (number, number))


def record(number: int, settled: int, bits: bytes, *, answer_dropped: bool) -> Record:
    """The record of a command that was settled then, on its first attempt."""
    wanted = command(number)
    began = settled - HANDLER_US
    claim = Claim(
        record_id(wanted.scope, wanted.key),
        bits[:16],
        wanted.scope,
        key_hash(wanted.key),
        RECIPE,
        wanted.fingerprint,
        uuid7_bytes(began // 1000, bits[16:]),
        HOLDER,
        POLICY.terms,
    )
    grant = first_grant(claim, began)
    said = answer(number)
    outcome = Refused(said) if said.status == 422 else Succeeded(said)
    _, row = settle_row(grant_row(None, claim, grant), make_settlement(grant, outcome), settled)
    assert row is not None
    assert row.state in (State.SUCCEEDED, State.FAILED_REPLAYABLE)
    # What a purge leaves of an answer that is over.
    return row._replace(answer_kind=AnswerKind.NOT_KEPT, headers=None, body=None) if answer_dropped else row


_BASE: Final = 10**15
_SETTLED: Final = record(1, _BASE, bytes(26), answer_dropped=False)
_REFUSED: Final = record(0, _BASE, bytes(26), answer_dropped=False)
_BLOCK: Final = pack_headers(HEADERS)


def quickly(number: int, settled: int, bits: bytes, answer_dropped: bool) -> Record:
    """What ``record`` makes, a few times faster: only what differs from one record to the next is made again."""
    like = _REFUSED if number % REFUSED_EVERY == 0 else _SETTLED
    later = settled - _BASE
    tenant, caller, key = (
        f"tenant-{number % 97}",
        f"caller-{number % 9973}",
        sha256(b"key %d" % number).hexdigest()[:32],
    )
    body = _BODY % (number, number)
    began = like.created_at + later
    return Record._make(
        (
            record_id(Scope(tenant, caller, OPERATION), key),
            like.format,
            tenant,
            caller,
            OPERATION,
            key_hash(key),
            RECIPE,
            sha256(b"request %d" % number).digest(),
            like.state,
            like.effects,
            began,
            bits[:16],
            *like[12:16],  # holder, attempt, lapses, generation
            uuid7_bytes(began // 1000, bits[16:]),
            began,
            began,
            like.lease_until + later,
            like.deadline_at + later,
            like.dedup_until + later,
            *like[22:27],  # the terms
            settled,
            like[28] + later,  # type: ignore[operator]  # answer_until and forget_after: it is settled
            like[29] + later,  # type: ignore[operator]
            *like[30:35],  # nothing
            AnswerKind.NOT_KEPT if answer_dropped else AnswerKind.KEPT,
            answer_digest(like.status, _BLOCK, body),
            None,
            like.status,
            None if answer_dropped else _BLOCK,
            None,
            None if answer_dropped else body,
        )
    )
