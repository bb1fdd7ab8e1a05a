"""Batches whose rows share most columns: a value that all rows share travels once, as a plain value.

Commands of one operation and caller have their names, terms and holder in common, commands of one policy their terms
and holder, and most answers their status and headers. Then a claim has six or nine arrays instead of twenty, and a
settlement five instead of fourteen. Any other batch takes the statement as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from semel.core.model import ANSWERED_STATES, STORED_ANSWERS, Claim, Scope, Settlement
from semel.core.record import digest_answers, pack_headers
from semel.stores.postgres.text import all_escaped, escape
from semel.stores.sql.statements import Argument, Statement, Value, compose
from semel.stores.versions import numbers_of

_ROWS: Final = re.compile(r"unnest\((?P<arrays>[^()]*)\) AS (?P<row>\w+) \([^()]*\)")
_ARRAY: Final = re.compile(r":(\w+)::(\w+)\[\]")
_LOCK: Final = Struct("!q").unpack_from
id_of: Final = itemgetter(0)  # of a claim or a settlement


def with_shared(statement: Statement, own: Sequence[str], name: str = "alike") -> Statement:
    """Write a statement over rows of arrays with plain values for all columns but a row's ``own``.

    Parameters: ``name`` is appended to the name of the statement.

    >>> text = "SELECT w.id, w.holder FROM unnest(:id::bytea[], :holder::text[]) AS w (id, holder)"
    >>> with_shared(compose("seen", text), ["id"]).text
    'SELECT w.id, :holder::text FROM unnest(:id::bytea[]) AS w (id)'
    """
    found = _ROWS.search(statement.text)
    assert found is not None
    row, kinds = found["row"], dict(_ARRAY.findall(found["arrays"]))
    arrays = ", ".join(f":{column}::{kind}[]" for column, kind in kinds.items() if column in own)
    columns = ", ".join(column for column in kinds if column in own)
    text = statement.text.replace(found[0], f"unnest({arrays}) AS {row} ({columns})", 1)
    for column, kind in kinds.items():
        if column not in own:
            text = re.sub(rf"\b{row}\.{column}\b", f":{column}::{kind}", text)
    return compose(f"{statement.name}_{name}", text, planned_once=statement.planned_once)


CLAIMS_OWN: Final = ("id", "key_hash", "fingerprint", "nonce", "operation_id", "lock")
CLAIMS_AND_SCOPES: Final = (*CLAIMS_OWN, *Scope._fields)
SETTLEMENTS_OWN: Final = ("id", "fence", "nonce", "answer_digest", "body")


def claims_alike(claims: Sequence[Claim], store_id: str | None) -> tuple[bool, dict[str, Argument]] | None:
    """Return what claims with equal terms share, and whether they share a scope; None if their terms differ."""
    count = len(claims)
    ids, nonces, scopes, key_hashes, recipes, fingerprints, operation_ids, holders, terms, _, _, quotas = zip(
        *claims, strict=True
    )
    scope, recipe, holder, term = scopes[0], recipes[0], holders[0], terms[0]
    if not (
        recipes.count(recipe) == holders.count(holder) == terms.count(term) == count and quotas.count(None) == count
    ):
        return None
    one = scopes.count(scope) == count
    return one, {
        **(names_of(scope) if one else _names(scopes)),
        **numbers_of(term),
        "recipe": recipe,
        "holder": holder,
        "store": store_id,
        "id": list(ids),
        "key_hash": list(key_hashes),
        "fingerprint": list(fingerprints),
        "nonce": list(nonces),
        "operation_id": list(operation_ids),
        "lock": [lock for (lock,) in map(_LOCK, ids)],
    }


def _names(scopes: Sequence[Scope]) -> dict[str, Argument]:
    """Return the names of several callers or operations, a column each."""
    return dict(zip(Scope._fields, map(all_escaped, zip(*scopes, strict=True)), strict=True))


@lru_cache(maxsize=1024)
def names_of(scope: Scope) -> dict[str, Value]:
    """Return a caller's names as they are written; cached, because each of its commands has the same ones."""
    return {name: escape(text) for name, text in scope._asdict().items()}


def settlements_alike(settlements: Sequence[Settlement]) -> dict[str, Argument] | None:
    """Return the values shared by settlements that differ only in their own columns; None where they differ in more.

    Also None where one of them is no answer: the rules decide about such a record.
    """
    count = len(settlements)
    ids, fences, nonces, states, answers, kinds, doubts, codes, refs, types, names, _, _ = zip(
        *settlements, strict=True
    )
    state, kind = states[0], kinds[0]
    if (
        state not in ANSWERED_STATES
        or kind not in STORED_ANSWERS
        or states.count(state) != count
        or kinds.count(kind) != count
        or None in answers
    ):
        return None
    statuses, headers, bodies = zip(*answers, strict=True)
    doubt, code, ref, type, name, status = doubts[0], codes[0], refs[0], types[0], names[0], statuses[0]
    if not (
        statuses.count(status) == headers.count(headers[0]) == doubts.count(doubt) == codes.count(code) == count
        and refs.count(ref) == types.count(type) == names.count(name) == count
    ):
        return None
    block = pack_headers(headers[0])
    return {
        "id": list(ids),
        "fence": list(fences),
        "nonce": list(nonces),
        "state": int(state),
        "doubt": escape(doubt),
        "error_code": escape(code),
        "business_ref": escape(ref),
        "resource_type": escape(type),
        "resource_id": escape(name),
        "answer_kind": int(kind),
        "answer_digest": digest_answers(status, block, bodies),
        "status": status,
        "headers": block,
        "body": list(bodies),
    }


def are_different(settlements: Sequence[Any]) -> bool:
    """Whether no two of these claims or settlements have one id."""
    return len(settlements) == 1 or len(set(map(id_of, settlements))) == len(settlements)


__all__ = [
    "CLAIMS_AND_SCOPES",
    "CLAIMS_OWN",
    "SETTLEMENTS_OWN",
    "are_different",
    "claims_alike",
    "id_of",
    "names_of",
    "settlements_alike",
    "with_shared",
]
