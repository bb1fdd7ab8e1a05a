"""The PostgreSQL store's row operations: claim, settle and replace, a batch at a time.

A claim's statement inserts the records of new keys and returns the records of the rest. A record is replaced
by compare-and-set on the version that was read; where another writer was quicker, the rule is asked again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from struct import Struct
from typing import Any, Final, cast

from semel.core.contract import another_store
from semel.core.decide import decide, find_replay, first_grant, is_grant_new
from semel.core.flow import Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    STORED_ANSWERS,
    Answer,
    Claim,
    InProgress,
    Proceed,
    QuotaExceeded,
    Record,
    Scope,
    Settled,
    Settlement,
    Settling,
    Terms,
)
from semel.core.record import answer_digest, pack_headers
from semel.quota import NEW_KEYS, OPEN, OPEN_RETRY_US, refusal, unpack_counts
from semel.stores.postgres.alike import (
    CLAIMS_AND_SCOPES,
    CLAIMS_OWN,
    SETTLEMENTS_OWN,
    are_different,
    claims_alike,
    id_of,
    names_of,
    settlements_alike,
    with_shared,
)
from semel.stores.postgres.text import all_escaped, escape, record
from semel.stores.postgres.text import escape_row as texts_written
from semel.stores.sql.dialect import POSTGRES
from semel.stores.sql.statements import Argument, Query, Row, Statement, Value, compose, statements
from semel.stores.versions import Seen, Verdicts, Versions, numbers_of

SQL: Final = statements("semel.stores.postgres", "sql/records.sql")
QUOTAS: Final = statements("semel.stores.postgres", "sql/quotas.sql")
ASKED_AGAIN_MAX: Final = 3  # a claim that is in neither half this often is held by a longer transaction


# Where the row of a claim without a place has what its caller has taken; the counts are in the tenant's place.
_taken: Final = itemgetter(*[1 + Record._fields.index(name) for name in ("fence", "attempt", "lapses")])
_LOCK: Final = Struct("!q").unpack_from


def lock_of(id: bytes) -> int:
    """Return the advisory lock of a record: 64 bits of its id, as PostgreSQL's signed number."""
    lock: int = _LOCK(id)[0]
    return lock


@cache
def write_unit(name: str, digits: int, batch: str | None = None) -> Statement:
    """Write a unit's statement with a comment that changes with the number of digits in the count of units.

    A user's connection may keep a plan that scans the table, made while there were few records. The server plans a new
    text anew, so that no such plan is in use by the time there are a thousand records.

    Parameters: ``batch`` the name of the statement that does the same outside a unit.
    """
    made = compose(name, f"/* {'0' * digits} */ {SQL[name].text}")
    return made if batch is None else dataclasses.replace(made, batch=SQL[batch])


@cache
def silent_settle(settle: Statement) -> Statement | None:
    """Make a settlement that fails like this one but returns no row; None if it writes more than its record."""
    settling, found, ends = settle.text.rpartition("\nSELECT 1 / count(*)")
    if not found or ends != ", bool_and(outermost) FROM settled":
        return None
    return compose(f"{settle.name}_silently", f"{settling}\nSELECT FROM settled HAVING 1 / count(*) IS NULL")


def _taking(name: str) -> Statement:
    """Write out the part of a statement that takes places."""
    text = QUOTAS[name].text.replace("TAKEN", QUOTAS["taken"].text, 1)
    return compose(name, text, planned_once=QUOTAS[name].planned_once)


_CLAIM, _COUNTED, _TAKE_PLACE = SQL["claim"], _taking("claim_counted"), _taking("take_place")
CLAIM_ALIKE: Final = with_shared(_CLAIM, CLAIMS_OWN)
CLAIM_IN_TERMS: Final = with_shared(_CLAIM, CLAIMS_AND_SCOPES, "in_terms")
SETTLE_ALIKE: Final = with_shared(SQL["settle"], SETTLEMENTS_OWN)
_SETTLED: Final = Settled()
_row_id: Final = itemgetter(1)


def take_place(claim: Claim) -> Flow[QuotaExceeded | None]:
    """Take a place for one claim that is not on record, in a separate statement; return the reason if there is none."""
    allowance = claim.quota
    assert allowance is not None
    params = {**dict(zip(_ALLOWANCE, allowance, strict=True)), "id": claim.id, "lock": lock_of(claim.id)}
    rows = yield from ask(Query(_TAKE_PLACE, params))
    return _quota_refusal(claim, rows[0]) if rows else None


def _quota_refusal(claim: Claim, taken: Sequence[Any]) -> QuotaExceeded:
    """Say why a claim got no place. Parameters: ``taken`` the time, and the counts, slice, open and unknown ones."""
    now, counts, newest, opens, unknowns = taken
    assert claim.quota is not None
    why = refusal(newest, unpack_counts(counts), claim.quota, opens, unknowns, now)
    # Of a batch that asked for several, the last ones got none although there was room for one.
    return QuotaExceeded(NEW_KEYS if claim.quota.open_max is None else OPEN, OPEN_RETRY_US) if why is None else why


def claim_all(
    claims: Iterable[Claim], verdicts: Verdicts, store_id: str | None, unit: Statement | None = None
) -> Flow[None]:
    """Claim records of different ids, or one for an ATOMIC ``unit`` by its own statement. Adds their verdicts.

    Raises IdentityMismatch: the server has another store than ``store_id`` by now; nothing was written.
    """
    if not claims:
        return
    left = sorted(claims, key=id_of)
    whole = len(verdicts) + len(left)
    for _ in range(ASKED_AGAIN_MAX):
        rows: list[Any] = yield _claiming(left, unit, store_id)
        found = dict(zip(map(_row_id, rows), rows, strict=True))
        for claim in left:
            row = found.get(claim[0])
            if row is None:
                continue
            now = row[0]
            if row[2] is None:
                if row[3] is None:
                    verdicts[claim[:2]] = tuple.__new__(Proceed, (first_grant(claim, now),))
                else:
                    verdicts[claim[:2]] = _quota_refusal(claim, (now, row[3], *_taken(row)))
                continue
            # A replay has none of the columns whose texts may be escaped.
            seen = tuple.__new__(Record, row[1:])
            kept = find_replay(seen, claim[0], claim[4], claim[5], now)
            if kept is not None:  # what the rule says of it, too: nothing is written for it, and nothing else looked at
                verdicts[claim[:2]] = kept
                continue
            seen = record(row[1:])
            if unit is None or (yield from _is_free(claim, now, seen)):
                yield from VERSIONS.decide(claim, now, seen, verdicts, in_unit=unit is not None)
        if len(verdicts) == whole:
            return
        left = [claim for claim in left if claim[:2] not in verdicts]
        if store_id is not None and None in found:
            raise another_store(store_id)
    for claim in left:
        verdicts[claim[:2]] = InProgress(claim.operation_id, claim.terms.lease_us, own=False)


def _is_free(claim: Claim, now: int, seen: Record) -> Flow[bool]:
    """Whether no other ATOMIC unit is writing this record: its row lock would last until that unit ends."""
    verdict = decide(seen, claim, now, begun=False)  # as if its steps allowed it: then the lock is taken in any case
    if type(verdict) is not Proceed or not is_grant_new(seen, verdict.grant):
        return True
    [(mine,)] = yield from ask(Query(SQL["lock_in_unit"], {"lock": lock_of(claim.id)}))
    return mine == 1


def _claiming(claims: list[Claim], unit: Statement | None, store_id: str | None) -> Query:
    if unit is not None:
        return Query(unit, {**unit_values(claims[0]), "store": store_id})
    alike = claims_alike(claims, store_id)
    if alike is not None:
        one_scope, params = alike
        return Query(CLAIM_ALIKE if one_scope else CLAIM_IN_TERMS, params)
    wanted: dict[str, Argument] = {**_claim_columns(claims), "store": store_id}
    if all(claim.quota is None for claim in claims):
        return Query(_CLAIM, wanted)
    return Query(_COUNTED, {**wanted, **_allowances(claims)})


def _claim_columns(claims: list[Claim]) -> dict[str, Argument]:
    """Return the columns of a batch of claims."""
    given = columns(Claim._fields, claims)
    scopes = columns(Scope._fields, given["scope"])
    terms = columns(Terms._fields, given["terms"])
    return {
        "id": given["id"],
        "tenant": all_escaped(scopes["tenant"]),
        "caller": all_escaped(scopes["caller"]),
        "operation": all_escaped(scopes["operation"]),
        "key_hash": given["key_hash"],
        "recipe": given["recipe"],
        "fingerprint": given["fingerprint"],
        "state": list(map(int, terms["starts"])),
        "effects": list(map(int, terms["effects"])),
        "nonce": given["nonce"],
        "holder": given["holder"],
        "operation_id": given["operation_id"],
        "lease_us": terms["lease_us"],
        "deadline_us": terms["deadline_us"],
        "dedup_us": terms["dedup_us"],
        "attempts_max": terms["attempts_max"],
        "answer_us": terms["answer_us"],
        "tombstone_us": terms["tombstone_us"],
        "after_expiry": list(map(int, terms["after_expiry"])),
        "lock": [lock for (lock,) in map(_LOCK, given["id"])],
    }


_ALLOWANCE: Final = ("quota", "new_keys", "slice_us", "open_max", "unknown_max")
_UNCOUNTED: Final = (None,) * len(_ALLOWANCE)


def _allowances(claims: list[Claim]) -> Mapping[str, Sequence[Value]]:
    """Return the columns of a batch's quotas."""
    return columns(_ALLOWANCE, [_UNCOUNTED if claim.quota is None else claim.quota for claim in claims])


def columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Transpose rows into columns.

    >>> columns(("a", "b"), [(1, 2), (3, 4)])
    {'a': [1, 3], 'b': [2, 4]}
    """
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def unit_values(claim: Claim) -> dict[str, Argument]:
    """Return the values that one claim writes, as the statements of ATOMIC units take them.

    A caller's names and a policy's terms recur with each command, so they are written once.
    """
    id, nonce, scope, key_hash, recipe, fingerprint, operation_id, holder, terms, *_ = claim
    return {
        **names_of(scope),
        **numbers_of(terms),
        "id": id,
        "key_hash": key_hash,
        "recipe": recipe,
        "fingerprint": fingerprint,
        "nonce": nonce,
        "holder": holder,
        "operation_id": operation_id,
        "lock": _LOCK(id)[0],
    }


def look(ids: Sequence[bytes]) -> Flow[dict[bytes, Seen]]:
    """Read the records of these ids, each with the time to decide by."""
    rows = yield from ask(Query(SQL["look"], {"ids": list(ids), "store": None}))
    return {cast(bytes, row[1]): (cast(int, row[0]), record(row[1:])) for row in rows}


def replace(
    seen: Record, written: Record, audit: Mapping[str, Argument] | None = None, steps: bytes | None = None
) -> Flow[bool]:
    """Overwrite the version that was seen; return False if it has changed since.

    Parameters: ``audit`` a line of the audit trail; ``steps`` the list that it must still have.
    """
    params: dict[str, Argument] = texts_written(written)._asdict()
    params["seen_fence"] = seen.fence
    params["seen_nonce"] = seen.nonce
    params["seen_state"] = seen.state
    params["seen_lease_until"] = seen.lease_until
    params["seen_answer_kind"] = seen.answer_kind
    params["seen_doubt"] = escape(seen.doubt)
    params["seen_steps"] = steps
    if audit is not None:
        params.update(audit)
    rows = yield from ask(Query(SQL["write_record" if audit is None else "resolve_record"], params))
    return rows[0][0] == 1


VERSIONS: Final = Versions(look, replace, POSTGRES)


def settle_all(settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
    """Settle in order: answers in one statement, everything else by the rule."""
    alike = settlements_alike(sorted(settlements, key=id_of)) if settlements and are_different(settlements) else None
    if alike is not None:
        rows: list[Row] = yield Query(SETTLE_ALIKE, alike)
        if len(rows) == len(settlements):
            return [_SETTLED] * len(rows)
        return (yield from _settle_left(settlements, settlements, rows))
    # Only an answer ends a record in any state; the rules decide about every other settlement.
    ends = sorted((settlement for settlement in settlements if settlement.state in ANSWERED_STATES), key=id_of)
    unique = list({settlement.id: settlement for settlement in reversed(ends)}.values())[::-1]
    rows = (yield from ask(Query(SQL["settle"], settlement_columns(unique)))) if unique else []
    return (yield from _settle_left(settlements, unique, rows))


def _settle_left(
    settlements: Sequence[Settlement], written: Sequence[Settlement], rows: Sequence[Row]
) -> Flow[list[Settling]]:
    """Settle by the rule those of ``written`` that their statement left open: it returned ``rows``."""
    settled = {cast(bytes, row[0]) for row in rows}
    firsts = {id(settlement) for settlement in written}
    replies: list[Settling] = []
    for settlement in settlements:
        if settlement.id in settled and id(settlement) in firsts:
            replies.append(_SETTLED)
        else:
            replies.append((yield from VERSIONS.settle(settlement)))
    return replies


def settlement_params(settlement: Settlement) -> Mapping[str, Value]:
    """Return one settlement as the statements of ATOMIC units take it."""
    answer, kind = settlement.answer, settlement.answer_kind
    block = None if answer is None else pack_headers(answer.headers)
    kept = kind in STORED_ANSWERS
    return {
        "id": settlement.id,
        "fence": settlement.fence,
        "nonce": settlement.nonce,
        "state": int(settlement.state),
        "doubt": escape(settlement.doubt),
        "error_code": escape(settlement.error_code),
        "business_ref": escape(settlement.business_ref),
        "resource_type": escape(settlement.resource_type),
        "resource_id": escape(settlement.resource_id),
        "answer_kind": int(kind),
        "answer_digest": None if answer is None or block is None else answer_digest(answer.status, block, answer.body),
        "status": None if answer is None else answer.status,
        "headers": block if kept else None,
        "body": answer.body if answer is not None and kept else None,
    }


def settlement_columns(settlements: list[Settlement]) -> Mapping[str, Sequence[Value]]:
    """Return the columns of a batch of settlements."""
    given = columns(Settlement._fields, settlements)
    answers: list[Answer | None] = given["answer"]
    blocks = [None if answer is None else pack_headers(answer.headers) for answer in answers]
    kept = [kind in STORED_ANSWERS for kind in given["answer_kind"]]
    return {
        "id": given["id"],
        "fence": given["fence"],
        "nonce": given["nonce"],
        "state": list(map(int, given["state"])),
        "doubt": all_escaped(given["doubt"]),
        "error_code": all_escaped(given["error_code"]),
        "business_ref": all_escaped(given["business_ref"]),
        "resource_type": all_escaped(given["resource_type"]),
        "resource_id": all_escaped(given["resource_id"]),
        "answer_kind": list(map(int, given["answer_kind"])),
        "answer_digest": [
            None if answer is None or block is None else answer_digest(answer.status, block, answer.body)
            for answer, block in zip(answers, blocks, strict=True)
        ],
        "status": [None if answer is None else answer.status for answer in answers],
        "headers": [block if keep else None for block, keep in zip(blocks, kept, strict=True)],
        "body": [answer.body if answer and keep else None for answer, keep in zip(answers, kept, strict=True)],
    }
