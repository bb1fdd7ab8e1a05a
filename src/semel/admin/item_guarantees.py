"""The guarantees for the items of a bulk, where they differ from those of a single operation.

A bulk's record says nothing of its items' effects: only the application that declares them knows. So that what records
alone tell is never more than holds for each kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from semel.cli.terminal import span_text
from semel.core.model import Terms

ItemEffects = Literal["atomic", "idempotent", "external", "undeclared"]
Holds = Literal["holds", "limited", "not promised"]
_LIST: Final = "a list of items"


@dataclass(frozen=True, slots=True)
class Promise:
    """One invariant, and whether it holds here."""

    name: str
    holds: Holds
    why: str


def level_of_items(items: ItemEffects, terms: Terms) -> str:
    """The guarantee of a bulk in one sentence."""
    match items:
        case "atomic":
            return f"{_LIST}: exactly one committed effect of each"
        case "idempotent":
            return (
                f"{_LIST}: one effect of each, as long as the provider deduplicates by its derived key for "
                f"{span_text(terms.dedup_us)}"
            )
        case "external":
            return f"{_LIST}: each started at most once; one whose outcome cannot be proven reads UNKNOWN, alone"
        case "undeclared":
            return f"{_LIST}, each with its own outcome; the bulk's declaration defines their effects"


def of_items(items: ItemEffects, terms: Terms) -> tuple[Promise, Promise, Promise]:
    """I1, I4 and I6, which are about items here."""
    return (
        _one_effect(items),
        _no_blind_rerun(items, terms),
        Promise(
            "I6 progress",
            "holds",
            f"a lease of {span_text(terms.lease_us)} after a crash a retry with the same list continues after the last "
            "finished item",
        ),
    )


def _one_effect(items: ItemEffects) -> Promise:
    name = "I1 one effect"
    match items:
        case "atomic":
            return Promise(name, "holds", "an item's effect and its outcome commit in one transaction, or neither does")
        case "idempotent":
            return Promise(
                name, "limited", "an item that was running in a crash runs again, with the same derived keys"
            )
        case "external":
            return Promise(name, "not promised", "the outcome of an item that was running in a crash cannot be proven")
        case "undeclared":
            return Promise(
                name, "not promised", "records do not hold this: semel config module:app shows the declaration"
            )


def _no_blind_rerun(items: ItemEffects, terms: Terms) -> Promise:
    match items:
        case "atomic":
            why = "an item without an outcome has no effect: its transaction is undone"
        case "idempotent":
            why = f"an item that had begun more than {span_text(terms.dedup_us)} before is UNKNOWN, not run again"
        case "external":
            why = "an item that had begun is never run again; the others are"
        case "undeclared":
            why = "an item that had begun is run again only where its declared effects allow it"
    return Promise("I4 no blind rerun", "holds", why)
