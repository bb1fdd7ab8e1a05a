"""The MariaDB store's row operations: claim, settle and replace, a batch at a time.

A claim is one statement, which inserts a new key's record and returns the record that is there; ``decide`` rules on it.
The nonce tells who won, never a count of rows. A batch of claims is one statement as well. So is a batch of answers, if
it finds all of its records; otherwise they are written one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, cast

from semel.core.contract import another_store
from semel.core.decide import find_replay, first_grant
from semel.core.flow import Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    RECORD_FORMAT,
    STORED_ANSWERS,
    Claim,
    Effects,
    Grant,
    InProgress,
    Proceed,
    Record,
    Scope,
    Settled,
    Settlement,
    Settling,
    State,
    Verdict,
)
from semel.core.record import answer_digest, digest_answers, pack_headers
from semel.stores.mariadb.requests import OfEach, Reserve, RowValues, SettleTogether, SeveralStatements
from semel.stores.sql.dialect import MARIADB
from semel.stores.sql.statements import Argument, Execute, Query, Row, Statement, Value, compose, statements
from semel.stores.versions import Seen, Verdicts, Versions, numbers_of

SQL: Final = statements("semel.stores.mariadb", "sql/records.sql")
ASKED_AGAIN_MAX: Final = 3  # if a lock is refused this often, a longer transaction holds it
TOGETHER_BYTES_MAX: Final = 64 * 1024  # of answers that one statement writes; larger ones gain nothing by it
_NONCE: Final = Record._fields.index("nonce")
_claimed_columns = itemgetter(
    *map(Record._fields.index, ("format", "recipe", "fingerprint", "settled_at", *Grant._fields))
)
WAIT_SECONDS: Final = 1  # for a record's lock that no ATOMIC unit holds: its commit is on its way


def _where_opened(claim: Statement) -> Statement:
    """Write the claim that inserts nothing, and returns no row, if the server has another store than ``:store``.

    Not as ``INSERT … SELECT … WHERE``: that takes the table's AUTO-INC lock, which it keeps while it waits for the lock
    of a record, and every other claim waits for it. Nor as a look inside ``VALUES``, which locks the store's row.
    """
    opened = ":store = (SELECT store_id FROM semel_meta WHERE one = 1)"
    return compose("claim", f"IF {opened} THEN\n{claim.text};\nEND IF")


_CLAIM = SQL["claim"]
_HEAD, _ROW, _REST = re.split(r"(?<= VALUES )\(|\)\n(?=ON DUPLICATE KEY)", _CLAIM.text)
_EACH: Final = compose("claim", _ROW)
_CLAIM_TOGETHER: Final = compose("claim", f"{_HEAD}:rows\n{_REST}")
_CLAIM_IN, _CLAIM_TOGETHER_IN = _where_opened(_CLAIM), _where_opened(_CLAIM_TOGETHER)
_SETTLE_TOGETHER: Final = compose(
    "settle",
    SQL["settle"]
    .text.replace("UPDATE semel_record SET", "UPDATE semel_record FORCE INDEX (PRIMARY) SET", 1)
    .replace("WHERE id = :id", "WHERE id IN :ids", 1),
)


def claim_all(
    claims: Sequence[Claim], verdicts: Verdicts, *, store_id: str | None = None, in_unit: bool = False
) -> Flow[None]:
    """Claim records of different ids, and add their verdicts.

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
            told: Verdict | None
            if seen[_NONCE] == claim[1]:
                told = find_first_grant(seen, claim, now)
            else:
                told = find_replay(seen, claim[0], claim[4], claim[5], now)
            if told is None:
                yield from VERSIONS.decide(claim, now, seen, verdicts, in_unit=in_unit)
            else:  # the rule would say the same, and nothing more is written
                verdicts[claim[:2]] = told
        left = [claim for claim in left if claim[:2] not in verdicts]
        if not left:
            return
        waits = False
    for claim in left:
        verdicts[claim[:2]] = InProgress(claim.operation_id, claim.terms.lease_us, own=False)


def _reserve(claims: list[Claim], wait: int, store_id: str | None) -> Flow[dict[bytes, Row]]:
    """Return the row of each claim whose lock was free.

    Of several rows the last one counts: Galera itself retries a statement that another node's has undone
    (``wsrep_retry_autocommit``), and has sent the rows of the undone run by then.
    """
    several = len(claims) > 1
    query = _claiming(claims, wait, store_id)
    rows = yield from ask(Reserve(query, divides=several, is_compound=store_id is not None))
    if rows is not None:
        if store_id is not None and not rows:
            raise another_store(store_id)
        return {cast(bytes, row[1]): row for row in rows}
    if not several:
        return {}
    half = len(claims) // 2  # one of them is held: the others must not wait for it
    found = yield from _reserve(claims[:half], 0, store_id)
    return found | (yield from _reserve(claims[half:], 0, store_id))


def _claiming(claims: Sequence[Claim], wait: int, store_id: str | None) -> Query:
    if len(claims) == 1:
        return Query(_CLAIM if store_id is None else _CLAIM_IN, _claim_params(claims[0], wait, store_id))
    ids, nonces, scopes, hashes, recipes, fingerprints, operation_ids, holders, terms, *_ = zip(*claims, strict=True)
    each: dict[str, Sequence[Any]] = {
        "id": ids,
        "key_hash": hashes,
        "fingerprint": fingerprints,
        "nonce": nonces,
        "operation_id": operation_ids,
    }
    shared: dict[str, Any] = {"wait": wait, "store": store_id}
    for name, values in (("recipe", recipes), ("holder", holders)):
        if _are_alike(values):
            shared[name] = values[0]
        else:
            each[name] = values
    for parts, columns_of in ((scopes, _names_of), (terms, numbers_of)):
        if _are_alike(parts):
            shared |= columns_of(parts[0])
        else:
            many = list(map(columns_of, parts))
            each |= {name: [one[name] for one in many] for name in many[0]}
    shared["rows"] = RowValues(_EACH, tuple(each), list(zip(*each.values(), strict=True)))
    return Query(_CLAIM_TOGETHER if store_id is None else _CLAIM_TOGETHER_IN, shared)


def _are_alike(values: Sequence[Any]) -> bool:
    return values.count(values[0]) == len(values)


def record(row: Row) -> Record:
    """Make the record of a row that begins with the time."""
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
    """Return a caller's names, which recur with each command."""
    return dict(scope._asdict())


def look(ids: Sequence[bytes]) -> Flow[dict[bytes, Seen]]:
    """Read the records of these ids, each with the time to decide by."""
    if not ids:
        return {}
    rows = yield from ask(Query(SQL["look"], {"ids": list(ids)}))
    return {cast(bytes, row[1]): (cast(int, row[0]), record(row)) for row in rows}


def replace(seen: Record, written: Record, steps: bytes | None = None) -> Flow[bool]:
    """Overwrite the version that was seen; return False if it has changed since.

    Parameters: ``steps`` the list that it must still have.
    """
    write = Execute(SQL["write_record"], replacing(seen, written, steps))
    if written.state != State.UNKNOWN:
        return (yield from ask(write)) == 1
    count, _ = yield from ask(SeveralStatements([write, Execute(SQL["raise_attention"], {"id": written.id})]))
    return bool(count == 1)


def replacing(seen: Record, written: Record, steps: bytes | None = None) -> Mapping[str, Argument]:
    """Return the parameters of ``write_record``."""
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
    """Settle in order: answers in one round trip, everything else by the rule."""
    # Only an answer ends a record in any state; the rules decide about every other settlement.
    ends = [settlement for settlement in settlements if settlement.state in ANSWERED_STATES]
    firsts = sorted({settlement.id: settlement for settlement in reversed(ends)}.values(), key=_by_id)
    settled: set[int] = set()
    if len(firsts) > 1 and (yield from _settle_together(firsts)):
        settled = set(map(id, firsts))
    elif firsts:
        counts = yield from ask(SeveralStatements([settle_one(settlement) for settlement in firsts]))
        settled = {id(settlement) for settlement, count in zip(firsts, counts, strict=True) if count == 1}
    replies: list[Settling] = []
    for settlement in settlements:
        replies.append(Settled() if id(settlement) in settled else (yield from VERSIONS.settle(settlement)))
    return replies


def _settle_together(settlements: Sequence[Settlement]) -> Flow[bool]:
    """Write answers of different records by one statement; False if it wrote none of them."""
    ids, fences, nonces, states, answers, kinds, doubts, codes, refs, types, names, _, _ = zip(
        *settlements, strict=True
    )
    if None in answers or not set(kinds).issubset(STORED_ANSWERS):
        return False
    statuses, headers, bodies = zip(*answers, strict=True)
    if sum(map(len, bodies)) > TOGETHER_BYTES_MAX:
        return False
    if _are_alike(headers) and _are_alike(statuses):
        block = pack_headers(headers[0])
        blocks, digests = [block] * len(ids), digest_answers(statuses[0], block, bodies)
    else:
        blocks = list(map(pack_headers, headers))
        digests = list(map(answer_digest, statuses, blocks, bodies))
    each: dict[str, Sequence[Any]] = {
        "fence": fences,
        "nonce": nonces,
        "state": states,
        "doubt": doubts,
        "error_code": codes,
        "business_ref": refs,
        "resource_type": types,
        "resource_id": names,
        "answer_kind": kinds,
        "answer_digest": digests,
        "status": statuses,
        "headers": blocks,
        "body": bodies,
    }
    params: dict[str, Any] = {
        name: values[0] if _are_alike(values) else OfEach(zip(ids, values, strict=True))
        for name, values in each.items()
    }
    params["ids"] = list(ids)
    return (yield from ask(SettleTogether(_SETTLE_TOGETHER, params, len(ids))))


def settle_one(settlement: Settlement) -> Execute:
    """Return the statement that writes a holder's answer."""
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


def find_first_grant(row: Record, claim: Claim, now: int) -> Proceed | None:
    """Return the grant of a record that this attempt has just written; None if only the rules can tell.

    As :func:`~semel.core.decide.decide` for a claim read back, where the whole grant is that of a new key.
    """
    grant = first_grant(claim, now)
    if _claimed_columns(row) != (RECORD_FORMAT, claim[4], claim[5], None, *grant) or now >= grant.lease_until:
        return None
    return tuple.__new__(Proceed, (grant,))
