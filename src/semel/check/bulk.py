"""The shipping questions that a bulk answers differently: a list of items, each with its own outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from semel.bulk.declaration import BulkPolicy
from semel.check.discovery import CheckedOperation
from semel.check.outcomes import Said, seconds


def _bulk_policy(operation: CheckedOperation) -> BulkPolicy:
    assert operation.bulk is not None
    return operation.bulk


def _fingerprint(operation: CheckedOperation) -> Said:
    return "ok", "yes: of the whole list, each item as canonical JSON", ""


def _replay(operation: CheckedOperation) -> Said:
    return "ok", "rebuilt from the items' stored outcomes: the same ones, in the order of the list", ""


def _sensitive(operation: CheckedOperation) -> Said:
    how = _bulk_policy(operation).answers
    if how != "keep":
        what = "sealed" if how == "seal" else "not stored"
        return (
            "ok",
            f"details of items are {what}; their names and result ids are stored as they are for "
            f"{seconds(operation.policy.tombstone_seconds)}, their content is not",
            "",
        )
    return (
        "open",
        f"outcomes of items are stored as they are for {seconds(operation.policy.tombstone_seconds)}, their content is "
        "not: answers='keep'",
        "declare answers='seal' or 'forget' for details, let handlers return ids and nothing secret, restrict who "
        "reads the store, or shorten tombstone_seconds",
    )


def _transaction(operation: CheckedOperation) -> Said:
    bulk = _bulk_policy(operation)
    if bulk.effects == "atomic":
        return (
            "ok",
            f"yes, writes on item.connection commit with the item's outcome, up to {bulk.chunk_items} items in one "
            "transaction",
            "",
        )
    return (
        "open",
        f"no: the start of an item is recorded before it runs, its outcome afterwards (effects='{bulk.effects}')",
        "where all effects are rows in the record's database, declare effects='atomic'",
    )


def _downstream(operation: CheckedOperation) -> Said:
    bulk = _bulk_policy(operation)
    match bulk.effects:
        case "atomic":
            return "ok", "not needed: nothing leaves the transaction (check that the handler calls no other system)", ""
        case "idempotent":
            return (
                "open",
                f"promised for {seconds(bulk.dedup_for_seconds)}, by item.key_for(...); Semel cannot check it",
                (
                    "test it: assert_idempotent interrupts the list and counts effects; ask the provider how long it "
                    "keeps keys"
                ),
            )
        case _:
            return (
                "open",
                "none is declared: the outcome of an item that was running in a crash cannot be proven",
                "where the provider deduplicates by a key, declare effects='idempotent' and pass item.key_for(...)",
            )


def _reconciliation(operation: CheckedOperation) -> Said:
    bulk = _bulk_policy(operation)
    if bulk.effects == "atomic":
        return "ok", "not needed: a crash leaves nothing of an item that has no outcome", ""
    items = "an item" if bulk.at_once == 1 else f"up to {bulk.at_once} items"
    when = "after a crash" if bulk.effects == "external" else "after a crash, when the provider may have forgotten,"
    return (
        "open",
        f"by people: {when} {items} that had begun may read UNKNOWN, never to be run again",
        "document who looks, where (the item's id at the provider), and how soon: semel bulk lists them",
    )


def _retry(operation: CheckedOperation) -> Said:
    return (
        "ok",
        "it continues after the last finished item; at its end it gets the same answer, as does a later retry",
        "",
    )


def _ending(operation: CheckedOperation) -> Said:
    return "ok", "only its client, by a retry: the list is not stored", ""


BULK: Final[Mapping[str, Callable[[CheckedOperation], Said]]] = {
    "fingerprint canonical": _fingerprint,
    "replayed or rebuilt": _replay,
    "sensitive answers": _sensitive,
    "transaction": _transaction,
    "downstream idempotency": _downstream,
    "reconciliation": _reconciliation,
    "retry with the same key": _retry,
    "who ends it without its client": _ending,
}
"""By their question; the others are answered as for every operation."""
