"""The MariaDB store's row operations: claim, settle and replace, a batch at a time.

A claim is one statement, which inserts a new key's record and returns the record that is there; ``decide`` says
what that means. The nonce tells who won, never a count of rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

from semel.core.contract import another_store
from semel.core.decide import find_replay
from semel.core.flow import Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    STORED_ANSWERS,
    Claim,
    Effects,
    InProgress,
    Record,
    Scope,
    Settled,
    Settlement,
    Settling,
    State,
)
from semel.core.record import answer_digest, pack_headers
from semel.stores.mariadb.requests import Reserve, SeveralStatements
from semel.stores.sql.dialect import MARIADB
from semel.stores.sql.statements import Argument, Execute, Query, Row, Statement, Value, compose, statements
from semel.stores.versions import Seen, Verdicts, Versions, numbers_of

SQL: Final = statements("semel.stores.mariadb", "sql/records.sql")
ASKED_AGAIN_MAX: Final = 3  # if a lock is refused this often, a longer transaction holds it
WAIT_SECONDS: Final = 1  # for the lock of a record that no ATOMIC unit holds: a commit is on its way


def _claim_in(claim: Statement) -> Statement:
    """The claim that writes nothing, and returns no row, where the server has another store than ``:store``.

    Not for an open transaction: under REPEATABLE READ it would lock the row of the store's id to the end of that one.
    """
    head, given, rest = re.split(r" VALUES \(|\)\n(?=ON DUPLICATE KEY)", claim.text)
    opened = ":store = (SELECT store_id FROM semel_meta WHERE one = 1)"
    return compose("claim", f"{head} SELECT{given}FROM DUAL WHERE {opened}\n{rest}")


_CLAIM, _CLAIM_IN = SQL["claim"], _claim_in(SQL["claim"])


def claim_all(
    claims: Sequence[Claim], verdicts: Verdicts, *, store_id: str | None = None, in_unit: bool = False
) -> Flow[None]:
    """Claims of different ids. Adds their verdicts.

    Parameters: ``store_id`` of the store that this process has opened, None where it may be any; ``in_unit`` in a
    transaction that is open already.

    Raises IdentityMismatch: the server has another store than ``store_id`` by now; nothing was written.
    """
    left = sorted(claims, key=_by_id)
    waits = not in_unit and not any(claim.terms.effects == Effects.ATOMIC for claim in left)
    for _ in range(ASKED_AGAIN_MAX):
        rows = yield from _reserve(left, WAIT_SECONDS if waits else 0, store_id)
        for claim in left:
            row = rows.get(claim.id)
            if row is None:
                continue
            now, seen = cast(int, row[0]), record(row)
            kept = find_replay(seen, claim.id, claim.recipe, claim.fingerprint, now)
            if kept is None:
                yield from VERSIONS.decide(claim, now, seen, verdicts, in_unit=in_unit)
            else:  # what the rule says of it, too: nothing is written for it
                verdicts[claim[:2]] = kept
        left = [claim for claim in left if claim[:2] not in verdicts]
        if not left:
            return
        waits = False
    for claim in left:
        verdicts[claim[:2]] = InProgress(claim.operation_id, claim.terms.lease_us, own=False)


def _reserve(claims: list[Claim], wait: int, store_id: str | None) -> Flow[dict[bytes, Row]]:
    """The row of each claim whose lock was to be had.

    The last one that was answered: Galera says a statement of its own again that another node's has undone
    (``wsrep_retry_autocommit``), and the rows of the run that was undone have left by then.
    """
    statement = _CLAIM if store_id is None else _CLAIM_IN
    replies = yield from ask(Reserve([Query(statement, _claim_params(claim, wait, store_id)) for claim in claims]))
    if replies is not None:
        if store_id is not None and not all(replies):
            raise another_store(store_id)
        return {claim.id: rows[-1] for claim, rows in zip(claims, replies, strict=True)}
    if len(claims) == 1:
        return {}
    half = len(claims) // 2  # one of them is held: the others must not wait for it
    found = yield from _reserve(claims[:half], 0, store_id)
    return found | (yield from _reserve(claims[half:], 0, store_id))


def record(row: Row) -> Record:
    """The record of a row that begins with the time."""
    seen: Record = tuple.__new__(Record, row[1:])
    return seen


def _by_id(request: Claim | Settlement) -> bytes:
    return request.id


def _claim_params(claim: Claim, wait: int, store_id: str | None) -> Mapping[str, Argument]:
    id, nonce, scope, key_hash, recipe, fingerprint, operation_id, holder, terms, *_ = claim
    return {
        **_names_of(scope),
        **numbers_of(terms),
        "wait": wait,
        "store": store_id,
        "id": id,
        "key_hash": key_hash,
        "recipe": recipe,
        "fingerprint": fingerprint,
        "nonce": nonce,
        "holder": holder,
        "operation_id": operation_id,
    }


@lru_cache(maxsize=1024)
def _names_of(scope: Scope) -> dict[str, Value]:
    """A caller's names, which come again with each command."""
    return dict(scope._asdict())


def look(ids: Sequence[bytes]) -> Flow[dict[bytes, Seen]]:
    """The records of these ids, each with the time to decide by."""
    if not ids:
        return {}
    rows = yield from ask(Query(SQL["look"], {"ids": list(ids), "store": None}))
    return {cast(bytes, row[1]): (cast(int, row[0]), record(row)) for row in rows}


def replace(seen: Record, written: Record, steps: bytes | None = None) -> Flow[bool]:
    """Write over the version that was seen; False where it is not there any more.

    Parameters: ``steps`` the list that it must still have.
    """
    write = Execute(SQL["write_record"], replacing(seen, written, steps))
    if written.state != State.UNKNOWN:
        return (yield from ask(write)) == 1
    count, _ = yield from ask(SeveralStatements([write, Execute(SQL["raise_attention"], {"id": written.id})]))
    return bool(count == 1)


def replacing(seen: Record, written: Record, steps: bytes | None = None) -> Mapping[str, Argument]:
    """The parameters of ``write_record``."""
    params: dict[str, Argument] = written._asdict()
    params["seen_fence"] = seen.fence
    params["seen_nonce"] = seen.nonce
    params["seen_state"] = seen.state
    params["seen_lease_until"] = seen.lease_until
    params["seen_answer_kind"] = seen.answer_kind
    params["seen_doubt"] = seen.doubt
    params["seen_steps"] = steps
    return params


VERSIONS: Final = Versions(look, replace, MARIADB)


def settle_all(settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
    """Settlements in their order: answers in one round trip, everything else by the rule."""
    # Only an answer ends a record whatever was before it; the rules say what else may become of it.
    ends = [settlement for settlement in settlements if settlement.state in ANSWERED_STATES]
    firsts = sorted({settlement.id: settlement for settlement in reversed(ends)}.values(), key=_by_id)
    settled: set[int] = set()
    if firsts:
        counts = yield from ask(SeveralStatements([settle_one(settlement) for settlement in firsts]))
        settled = {id(settlement) for settlement, count in zip(firsts, counts, strict=True) if count == 1}
    replies: list[Settling] = []
    for settlement in settlements:
        replies.append(Settled() if id(settlement) in settled else (yield from VERSIONS.settle(settlement)))
    return replies


def settle_one(settlement: Settlement) -> Execute:
    """The statement that writes a holder's answer."""
    answer = settlement.answer
    block = None if answer is None else pack_headers(answer.headers)
    kept = settlement.answer_kind in STORED_ANSWERS
    return Execute(
        SQL["settle"],
        {
            "id": settlement.id,
            "fence": settlement.fence,
            "nonce": settlement.nonce,
            "state": settlement.state,
            "doubt": settlement.doubt,
            "error_code": settlement.error_code,
            "business_ref": settlement.business_ref,
            "resource_type": settlement.resource_type,
            "resource_id": settlement.resource_id,
            "answer_kind": settlement.answer_kind,
            "answer_digest": None
            if answer is None or block is None
            else answer_digest(answer.status, block, answer.body),
            "status": None if answer is None else answer.status,
            "headers": block if kept else None,
            "body": answer.body if answer and kept else None,
        },
    )
