"""The states of a record and who moves between them: every arrow is found by asking the rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from guarantee_pages.asked import NOW, SECOND, claim_of, make_running_record
from guarantee_pages.markdown import HEADER, table
from semel.core.decide import TABLE, situation
from semel.core.model import AfterExpiry, AnswerKind, Effects, Record, Renewal, Resolution, Settled, Settlement, State
from semel.core.settle import abandon_row, lapse_row, renew_row, settle_row
from semel.policy import Policy
from semel.reconciliation.resolutions import resolve_row
from semel.steps.rules import Step

EXPIRED: Final = "EXPIRED"


def shapes() -> Iterator[tuple[Record, int]]:
    """Records in every state that the rules tell apart, each with a time to look at it."""
    for effects, state, after, kept in product(Effects, State, AfterExpiry, (AnswerKind.KEPT, AnswerKind.NOT_KEPT)):
        policy = Policy(effects=effects, after_expiry="new" if after is AfterExpiry.NEW else "refuse")
        row = make_running_record(policy)._replace(state=state)
        if state in (State.SUCCEEDED, State.FAILED_REPLAYABLE):
            row = row._replace(answer_kind=kept, settled_at=NOW, answer_until=NOW + 10 * SECOND)
            yield row, NOW + SECOND
            yield row, NOW + 11 * SECOND
            continue
        row = row._replace(doubt="lapsed" if state is State.UNKNOWN else None)
        yield row, NOW + SECOND
        if state in (State.CLAIMED, State.PROCESSING):
            yield row, row.lease_until
            yield row, row.dedup_until
            yield row._replace(lapses=row.attempts_max), row.lease_until


def place(row: Record, now: int) -> str:
    """The state's name; EXPIRED is derived from the clock."""
    over = row.answer_until is not None and now >= row.answer_until
    return EXPIRED if over else State(row.state).name


def moves(row: Record, now: int) -> Iterator[tuple[str, str]]:
    """What anybody can make of a record at this time: who, and the state it has then."""
    if place(row, now) == EXPIRED:
        if TABLE[situation(row, claim_of(Policy(), 2), now)].verdict.__name__ == "Proceed":
            yield "attempt", State.PROCESSING.name
        return
    if TABLE[situation(row, claim_of(Policy(), 2), now)].verdict.__name__ == "Proceed":
        yield "attempt", State.PROCESSING.name
    for state in State:
        reply, after = settle_row(row, Settlement(row.id, row.fence, row.nonce, state), now)
        if isinstance(reply, Settled) and after is not None and state not in (State.CLAIMED, row.state):
            yield "holder", State(after.state).name
    for who, found in (
        ("reaper", lapse_row(row, now)),
        ("holder's renewal", renew_row(row, Renewal(row.id, row.fence, row.nonce), now)),
        ("claim given up", abandon_row(row, row.nonce, now)),
        ("operator: it happened", resolve_row(row, _resolution(row, happened=True), now)[1]),
        ("operator: it did not", resolve_row(row, _resolution(row, happened=False), now)[1]),
        ("operator: of a step", _of_a_step(row, now)),
    ):
        if found is not None and found.state != row.state:
            yield who, State(found.state).name


def _resolution(row: Record, *, happened: bool) -> Resolution:
    return Resolution(row.id, row.fence, happened, None, "operator", "asked the provider", True)


def _of_a_step(row: Record, now: int) -> Record | None:
    """What the resolution of a step in doubt makes of a record, after another step that has finished."""
    if row.effects != Effects.EXTERNAL or row.state == State.CLAIMED:
        return None
    charged = Step("charge", 0, NOW, repeatable=False, finished=True)
    in_doubt = row._replace(doubt="step:ship")
    return resolve_row(in_doubt, _resolution(in_doubt, happened=False), now, (charged,))[1]


def edges() -> dict[tuple[str, str], list[str]]:
    """All transitions, with who makes them."""
    found: dict[tuple[str, str], list[str]] = {("[*]", State(Policy().terms.starts).name): ["attempt"]}
    for row, now in shapes():
        here = place(row, now)
        if here == EXPIRED:
            # Nobody writes it: the answer's retention is over.
            found.setdefault((State(row.state).name, EXPIRED), ["retention"])
        for who, there in moves(row, now):
            known = found.setdefault((here, there), [])
            if who not in known:
                known.append(who)
    for state in (EXPIRED, State.FAILED_NOT_REPLAYABLE.name):
        found[state, "[*]"] = ["purge"]
    return found


def states() -> str:
    """The page with the diagram."""
    rows = ((f"`{here}`", f"`{there}`", ", ".join(who)) for (here, there), who in edges().items())
    return (
        f"{HEADER}# States and transitions\n\n"
        "The generator found every transition by asking the rules (`core/decide.py`, `core/settle.py`,\n"
        "`reconciliation/resolutions.py`) what an attempt, the holder, the reaper or an operator can make of a record "
        "in each state. The\n[guarantees](../guarantees.md) have the verdict for each attempt.\n\n"
        "![The states of a record, with an arrow for every line of the table below](states.svg)\n\n"
        "- **EXPIRED** is derived from the clock and never written.\n"
        "- **CLAIMED** (grey) is the first state of an operation with [steps](../steps.md). It stays CLAIMED while "
        "each\n  begun step has finished or may be repeated. The table shows what moves it on.\n"
        "- `[*]` is no record: the key was never seen, or is forgotten.\n\n"
        "- `[*]` is no record: the key was never seen, or is forgotten.\n\n"
        "- `[*]` is no record: the key was never seen, or is forgotten.\n\n"
        + table(("from", "to", "moved by"), rows)
        + "\n"
    )
