"""Which (state × event) pairs the schedules have reached, which they cannot, and why.

The states are those of the records, with three that the clock makes of them: a PROCESSING record whose lease is
over, one that was given back, and an answered one whose retention is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.core.model import Record, State

STATES: Final = (
    "never seen",
    "CLAIMED",
    "PROCESSING",
    "lapsed",
    "given back",
    "SUCCEEDED",
    "FAILED_REPLAYABLE",
    "FAILED_NOT_REPLAYABLE",
    "UNKNOWN",
    "EXPIRED",
)
Counts = dict[tuple[str, str], int]


def state_name(row: Record | None, now: int) -> str:
    """The state of a record as the clock makes it."""
    if row is None:
        return "never seen"
    if row.state in (State.SUCCEEDED, State.FAILED_REPLAYABLE):
        over = row.answer_until is not None and now >= row.answer_until
        return "EXPIRED" if over else State(row.state).name
    if row.state == State.PROCESSING:
        return "given back" if row.lease_until == 0 else "lapsed" if now >= row.lease_until else "PROCESSING"
    return State(row.state).name


def add(counts: Counts, more: Mapping[tuple[str, str], int]) -> None:
    """Add one schedule's counts to those of many."""
    for pair, count in more.items():
        counts[pair] = counts.get(pair, 0) + count


# One sign for each state, in the order of STATES: R must be reached by a run of CI, r is possible and too rare for
# that (the soak reaches it), and a dot is impossible; ``why_not`` says why.
_EXPECTED: Final[Mapping[str, str]] = {
    "attempt": "R.RRRRRRRR",
    "attempt, other payload": "..RRRRRRRR",
    "claim, lost request": "R.RRRRrRRR",
    "claim, late request": "R.RRRRRRRR",
    "claim, lost reply": "R.RRRRRRRR",
    "claim, twice": "R.RRRRRRRR",
    "claim, slow": "R.RRRRRRRR",
    "abandon": "..RR....R.",
    "abandon: nothing there": "R.RRRRRRRR",
    "mark not kept": "..RRrRrrr.",
    "renew": "..RR....R.",
    "renew: refused": "..RRRRRRR.",
    "settle: succeeded": "..RR.R..R.",
    "settle: refused": "R.Rr..R.r.",
    "settle: nothing happened": "..RRr..Rr.",
    "settle: give back": "..RRR...r.",
    "settle: unknown": "..RR....R.",
    "settle: superseded": "..RrRRrrr.",
    "settle, lost request": "..RRrRrrr.",
    "settle, late request": "r.RRRRrrR.",
    "settle, lost reply": "r.RRrRrrr.",
    "settle, twice": "r.RRRRRRR.",
    "settle, slow": "r.RRrRrrr.",
    "lapse": "..RRRRRRRR",
    "resolve": "..rRRRrrR.",
    "purge": "..RRRRRRRR",
    "purge: answer dropped": ".........R",
    "purge: forgotten": ".......R.R",
    "crash": "R.RRRRRRRR",
    "pause": "R.RRRRRRRR",
}
EVENTS: Final = tuple(_EXPECTED)
_WHY_NOT: Final[Mapping[str, str]] = {
    "attempt, other payload": "no payload came before it",
    "abandon": "what is settled, given back or absent is answered with 'nothing there'",
    "renew": "only an open lease is renewed, or one that was let lapse: the others are refused",
    "settle: succeeded": "the record is another holder's, or has ended otherwise: then it is superseded",
    "settle: refused": "the record is another holder's, or has ended otherwise: then it is superseded",
    "settle: nothing happened": "the record is another holder's, or has ended otherwise: then it is superseded",
    "settle: give back": "the record is another holder's, or has ended otherwise: then it is superseded",
    "settle: unknown": "the record is another holder's, or has ended otherwise: then it is superseded",
    "purge: answer dropped": "an answer is dropped when its retention is over, and not before",
    "purge: forgotten": "what is open, UNKNOWN or within its retention is never forgotten",
}


NEVER_IN_CI: Final[Mapping[tuple[str, str], str]] = {
    ("FAILED_REPLAYABLE", "mark not kept"): "a mark in flight for longer than a lapse, a takeover and its refusal",
    ("FAILED_NOT_REPLAYABLE", "mark not kept"): "a mark in flight for longer than a resolution that nothing happened",
    ("FAILED_REPLAYABLE", "resolve"): "a holder refuses between an operator's look and the operator's word",
    ("FAILED_REPLAYABLE", "settle: superseded"): "a first holder's word after the refusal of the one that took over",
}
"""What is possible, and was in none of the first 100,000 schedules when they were counted. The store's side of each is
an order of two verbs, and those are enumerated whole (``semel.testing.verbs``)."""


def must_reach(state: str, event: str) -> bool:
    """Whether a run of CI has to reach this pair."""
    return _EXPECTED[event][STATES.index(state)] == "R"


def why_not(state: str, event: str) -> str | None:
    """Why this pair cannot be; None where it can."""
    if _EXPECTED.get(event, "?" * len(STATES))[STATES.index(state)] != ".":
        return None
    if state == "CLAIMED":
        return "no operation declares steps or queued work yet: every claim writes PROCESSING"
    if (state, event) == ("never seen", "settle, lost request"):
        return "what is lost is named by its first ask, and a refusal of an ATOMIC command begins with its claim"
    if event in _WHY_NOT:
        return _WHY_NOT[event]
    if state == "never seen":
        return "it looks at records, or names a grant, and no record is forgotten while one is in anybody's hands"
    return "the holder's deadline is over long before the answer's retention is"


def table(counts: Mapping[tuple[str, str], int]) -> str:
    """The counts as text: a line for each event, a column for each state; ``·`` where that is impossible."""
    width = max(map(len, EVENTS))
    lines = [" " * width + "".join(f"{state[:9]:>10}" for state in STATES)]
    for event in EVENTS:
        cells = ["·" if why_not(state, event) else str(counts.get((state, event), 0)) for state in STATES]
        lines.append(f"{event:<{width}}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)
