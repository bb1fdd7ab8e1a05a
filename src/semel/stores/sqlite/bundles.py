"""Performs many usual requests of one verb by one statement.

An unusual request joins no bundle. A bundle that meets a record in an unusual state ends with None. The driver then
rolls it back and runs each request's own flow, which alone decides what that state means.

Python's ``sqlite3`` looks for an adapter of each value except exact numbers, texts and bytearrays, which takes longer
than binding it. So enumerations and bytes are passed as those types, and a constant NULL is written into the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from semel.core.decide import first_grant
from semel.core.flow import Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    RECORD_FORMAT,
    STORED_ANSWERS,
    Claim,
    Grant,
    Proceed,
    Settled,
    Settlement,
    Settling,
    Terms,
    Verdict,
)
from semel.core.record import answer_digest, pack_headers
from semel.stores.sql.statements import NOW_LOCKED, Bound, ExecuteMany, by_number
from semel.stores.sqlite.store import SQL, SqliteStore

_INSERT: Final = SQL["insert_claim"]
SETTLE: Final = by_number(SQL["settle_answered"])
_SETTLED: Final = Settled()
_ELSE: Final[Any] = slice(Settlement._fields.index("doubt"), None)
_NOTHING_ELSE: Final[tuple[object, ...]] = (None, None, None, None, None, False, ())  # from the doubt to the events
_TIMES: Final = slice(Grant._fields.index("created_at"), Grant._fields.index("dedup_until") + 1)
_SPANS: Final = slice(Terms._fields.index("attempts_max"), Terms._fields.index("tombstone_us") + 1)

if SETTLE.names != (
    *("state", "now", "answer_kind", "answer_digest", "status", "headers", "body", "id", "fence", "nonce"),
):
    raise AssertionError("records.sql and stores/sqlite/bundles.py disagree on the order of a statement's parameters")
if _INSERT.names[17:26] != (*Grant._fields[_TIMES], "lease_us", *Terms._fields[_SPANS]):
    raise AssertionError("core/model.py and stores/sqlite/bundles.py disagree on the order of a record's columns")


class Bundle(NamedTuple):
    """The shared statement of many requests of a verb.

    Parameters: ``fits`` whether a request is usual; ``write`` performs usual requests, no two of one record, and
    returns their replies, or None if one meets an unusual record: the caller rolls back.
    """

    fits: Callable[[Any], bool]
    write: Callable[[Sequence[Any]], Flow[Sequence[Any] | None]]


def _counts_nothing(claim: Claim) -> bool:
    return claim.quota is None


def _claim_unseen(claims: Sequence[Claim]) -> Flow[Sequence[Verdict] | None]:
    """Insert the first grants of keys; None if one of the keys is known."""
    now = yield from ask(NOW_LOCKED)
    grants = [first_grant(claim, now) for claim in claims]
    rows = list(map(_claim_values, claims, grants))
    if (yield from ask(ExecuteMany(_INSERT, rows))) != len(rows):
        return None
    return [Proceed(grant) for grant in grants]


def _claim_values(claim: Claim, grant: Grant) -> Bound:
    """Return the values of ``insert_claim``, in its order."""
    terms = claim.terms
    granted: tuple[Any, ...] = grant
    spans: tuple[Any, ...] = terms
    return (
        bytearray(claim.id),
        RECORD_FORMAT,
        *claim.scope,
        bytearray(claim.key_hash),
        claim.recipe,
        bytearray(claim.fingerprint),
        int(grant.state),
        int(terms.effects),
        grant.fence,
        bytearray(grant.nonce),
        claim.holder,
        grant.attempt,
        grant.lapses,
        grant.generation,
        bytearray(grant.operation_id),
        *granted[_TIMES],
        terms.lease_us,
        *spans[_SPANS],
        int(terms.after_expiry),
        0,  # no answer
    )


def _says_an_answer(settlement: Settlement) -> bool:
    return (
        settlement.state in ANSWERED_STATES
        and settlement.answer_kind in STORED_ANSWERS
        and settlement[_ELSE] == _NOTHING_ELSE
    )


def _settle(settlements: Sequence[Settlement]) -> Flow[Sequence[Settling] | None]:
    """Write answers; None where one of the records is no longer open under that fence and nonce."""
    now = yield from ask(NOW_LOCKED)
    rows = [_settle_values(settlement, now) for settlement in settlements]
    if (yield from ask(ExecuteMany(SETTLE, rows))) != len(rows):
        return None
    return [_SETTLED] * len(rows)


def _settle_values(settlement: Settlement, now: int) -> Bound:
    """Return the values of ``settle_answered``, in its order."""
    id, fence, nonce, state, answer, kind, *_ = settlement
    assert answer is not None
    status, headers, body = answer
    block = pack_headers(headers)
    digest = answer_digest(status, block, body)
    return (
        int(state),
        now,
        int(kind),
        bytearray(digest),
        status,
        bytearray(block),
        body,  # it may be long: not copied
        bytearray(id),
        fence,
        bytearray(nonce),
    )


BUNDLES: Final[Mapping[Any, Bundle]] = {  # by the verb
    SqliteStore.claim_unseen: Bundle(_counts_nothing, _claim_unseen),
    SqliteStore.settle: Bundle(_says_an_answer, _settle),
}
