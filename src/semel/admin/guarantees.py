"""The guarantee level of an operation on a store: the invariants that hold, and why.

The rules answer what becomes of a command whose holder crashes, as on the page of guarantees. What a store survives
is what it declares and the conformance suite checks. Names and order are those of that page.

A bulk makes other promises about its items. Its record does not hold their effects; only the application's declaration
does. From records alone, this module therefore claims only what holds for every kind of effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from semel.core.contract import Capabilities
from semel.core.decide import TABLE, Rule, first_grant, situation
from semel.core.model import AnswerKind, Claim, Effects, Scope, Terms
from semel.core.timing import span_text
from semel.stores.memory.store import grant_row

NOW: Final = 1_000_000_000_000
ItemEffects = Literal["atomic", "idempotent", "external", "undeclared"]
Holds = Literal["holds", "limited", "not promised"]
_LIST: Final = "a list of items"


@dataclass(frozen=True, slots=True)
class Promise:
    """One invariant, and whether it holds here."""

    name: str
    holds: Holds
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The basis of one operation's guarantees.

    Parameters: ``terms`` of the policy; ``capabilities`` of the store; ``weak_sync`` whether its last commits may be
    lost with the power; ``key_optional`` and ``marks`` (``on_unprotected="mark"``) as declared, None where only the
    records are known; ``behind`` whether the claim comes after authentication; ``reaped`` whether the application runs
    a reaper, None where that cannot be seen; ``items`` the effects of a bulk's items, None where it is not a bulk.
    """

    terms: Terms
    capabilities: Capabilities
    weak_sync: bool = False
    key_optional: bool | None = None
    marks: bool | None = None
    behind: Literal["endpoint", "middleware", "function"] | None = None
    reaped: bool | None = None
    items: ItemEffects | None = None


def after_crash(terms: Terms) -> Rule:
    """Return the rules' verdict for the first attempt after a holder's lease has lapsed."""
    claim = Claim(bytes(16), bytes(16), Scope("t", "c", "o"), bytes(8), "r", bytes(32), bytes(16), "holder", terms)
    row = grant_row(None, claim, first_grant(claim, NOW))
    again = claim._replace(nonce=bytes(15) + b"\x01")
    if terms.effects == Effects.ATOMIC:
        return TABLE[situation(None, again, row.lease_until)]  # the record is rolled back with its transaction
    return TABLE[situation(row._replace(answer_kind=AnswerKind.NONE), again, row.lease_until)]


def level(ground: Ground) -> str:
    """Describe the guarantee in one sentence."""
    text = _level(ground.terms) if ground.items is None else level_of_items(ground.items, ground.terms)
    if not ground.capabilities.survives_process_crash:
        text += "; only until this process ends"
    elif ground.weak_sync:
        text += "; a power loss may lose the last commands"
    return text


def _level(terms: Terms) -> str:
    match terms.effects:
        case Effects.ATOMIC:
            return "exactly one committed effect"
        case Effects.IDEMPOTENT:
            return (
                f"one effect, as long as the provider deduplicates by the derived key for {span_text(terms.dedup_us)}"
            )
        case _:
            return "started at most once; an outcome that cannot be proven reads UNKNOWN"


def promises(ground: Ground) -> list[Promise]:
    """Return the invariants in their order."""
    if ground.items is None:
        effect, rerun, progress = _one_effect(ground), _no_blind_rerun(ground), _progress(ground)
    else:
        effect, rerun, progress = of_items(ground.items, ground.terms)
        rerun = _durable(ground, rerun.name, rerun.why)
    return [
        effect,
        _one_answer(ground),
        Promise(
            "I3 fenced",
            "holds",
            "every write carries fence and nonce; the write of a superseded holder changes nothing",
        ),
        rerun,
        _no_leak(ground),
        progress,
        Promise(
            "I7 loud misuse",
            "holds",
            f"the fingerprint is compared before the state, until the tombstone ends ({_tombstone(ground)})",
        ),
        _events(ground),
    ]


def _durable(ground: Ground, name: str, why: str) -> Promise:
    """Return a promise that is as durable as the store."""
    if not ground.capabilities.survives_process_crash:
        return Promise(name, "limited", f"{why}; but this store loses everything when its process ends")
    if ground.weak_sync:
        return Promise(name, "limited", f"{why}; but synchronous=NORMAL may lose the last commits with the power")
    return Promise(name, "holds", why)


def _one_effect(ground: Ground) -> Promise:
    name = "I1 one effect"
    rule = after_crash(ground.terms)
    match ground.terms.effects:
        case Effects.ATOMIC if ground.capabilities.atomic_with_business_writes:
            # A lost commit loses effect and record together.
            return Promise(name, "holds", "the effect and its record commit in one transaction, or neither does")
        case Effects.ATOMIC:
            return Promise(name, "not promised", "this store cannot commit with the handler's writes: it is refused")
        case Effects.IDEMPOTENT:
            return Promise(name, "limited", f"after a crash {rule.verdict.__name__}: {rule.why}")
        case _:
            return Promise(name, "not promised", f"after a crash {rule.verdict.__name__}: {rule.why}")


def _one_answer(ground: Ground) -> Promise:
    kept = span_text(ground.terms.answer_us)
    return _durable(ground, "I2 one answer", f"every retry gets the stored answer, for {kept}")


def _no_blind_rerun(ground: Ground) -> Promise:
    name = "I4 no blind rerun"
    rule = after_crash(ground.terms)
    if ground.terms.effects == Effects.EXTERNAL:
        return _durable(ground, name, f"after a crash {rule.verdict.__name__}: {rule.why}")
    return Promise(
        name, "holds", f"applies to EXTERNAL effects; here, after a crash, {rule.verdict.__name__}: {rule.why}"
    )


def _no_leak(ground: Ground) -> Promise:
    name = "I5 no leak"
    if ground.behind == "middleware":
        return Promise(name, "limited", "keys are scoped by caller; authentication must run before the middleware")
    if ground.behind == "endpoint":
        return Promise(name, "holds", "keys are scoped by caller, and claimed after authentication, in the endpoint")
    return Promise(name, "holds", "keys are scoped by tenant, caller and operation")


def _progress(ground: Ground) -> Promise:
    name = "I6 progress"
    lease = span_text(ground.terms.lease_us)
    if ground.reaped is False:
        return Promise(
            name, "limited", f"after {lease} a retry learns it; the record becomes UNKNOWN only where a reaper runs"
        )
    doubt = "" if ground.reaped else ", where a reaper runs (semel doctor tells)"
    return Promise(name, "holds", f"a lease of {lease} and a second after a crash it reads UNKNOWN or is free{doubt}")


def _events(ground: Ground) -> Promise:
    name = "I8 events"
    if not ground.capabilities.atomic_with_business_writes:
        return Promise(name, "not promised", "this store keeps no events: emitting one is refused")
    return _durable(ground, name, "they commit with the outcome; a relay retries each until the broker has it")


def _tombstone(ground: Ground) -> str:
    return span_text(max(ground.terms.answer_us, ground.terms.tombstone_us))


def caveats(ground: Ground) -> list[str]:
    """Return the conditions that weaken every guarantee of the operation."""
    found = []
    if ground.key_optional:
        found.append("the key is optional: a request without one is not protected, and counted as `unprotected`")
    if ground.marks:
        found.append("on_unprotected='mark': while the store is down, requests run unprotected and are marked so")
    if not ground.capabilities.shared_between_processes:
        found.append("each process has its own records: run one process only")
    return found


def level_of_items(items: ItemEffects, terms: Terms) -> str:
    """Describe the guarantee of a bulk in one sentence."""
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
    """Return I1, I4 and I6, which are about items here."""
    return (
        _one_effect_of_items(items),
        _no_blind_rerun_of_items(items, terms),
        Promise(
            "I6 progress",
            "holds",
            f"a lease of {span_text(terms.lease_us)} after a crash a retry with the same list continues after the last "
            "finished item",
        ),
    )


def _one_effect_of_items(items: ItemEffects) -> Promise:
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


def _no_blind_rerun_of_items(items: ItemEffects, terms: Terms) -> Promise:
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
