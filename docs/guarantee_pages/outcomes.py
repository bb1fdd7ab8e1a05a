"""What an attempt meets, and what becomes of a record: asked of the rules, case by case."""

from __future__ import annotations

from typing import Final

from guarantee_pages.asked import NOW, SECOND, claim_of, make_running_record
from guarantee_pages.markdown import table
from semel.admin.describe import state_label
from semel.core.command_flow import make_settlement
from semel.core.decide import TABLE, Situation, classify_lapsed, decide, first_grant
from semel.core.model import Answer, Effects, Settled, State
from semel.core.outcomes import Outcome, Released, classify_answer, classify_exception
from semel.core.settle import lapse_row, settle_row
from semel.errors import NothingHappened
from semel.policy import Policy


def situations() -> str:
    """The state × verdict table, line by line."""
    rows = ((_situation(found), f"**{rule.verdict.__name__}**", rule.why) for found, rule in TABLE.items())
    return table(("state at the attempt", "verdict", "why"), rows)


REPLAYED_ERRORS: Final = '5xx or exception, `on_error="replay"`'
ENDS: Final = (
    "a 2xx answer",
    "a 3xx answer",
    "a definite 4xx answer",
    "401, 403, 408, 425 or 429",
    "a 5xx answer",
    "a 5xx named in `definite_5xx`",
    "an exception",
    "`NothingHappened`, or an exception in `nothing_happened`",
    "an exception before `permit.effect()`, `marks_effects=True`",
    REPLAYED_ERRORS,
    "a crash, or a lease that lapsed",
)
_STATUS: Final = {ENDS[0]: 201, ENDS[1]: 303, ENDS[2]: 409, ENDS[3]: 429, ENDS[4]: 500, ENDS[5]: 500}


def _situation(found: Situation) -> str:
    """What the row is called: as operators read it."""
    return state_label(found.value)


def ends() -> str:
    """What becomes of the record, and what the next attempt gets, by effects and by the handler's end."""
    heads = ("how the handler ends", *(effects.name for effects in Effects))
    return table(heads, ([end, *(_end(end, effects) for effects in Effects)] for end in ENDS))


def _end(end: str, effects: Effects) -> str:
    external = effects is Effects.EXTERNAL
    if end in (ENDS[8], REPLAYED_ERRORS) and not external:
        return "–"
    policy = Policy(
        effects=effects,
        marks_effects=end == ENDS[8],
        on_error="replay" if end == REPLAYED_ERRORS else "unknown",
        definite_5xx=frozenset({500} if end == ENDS[5] else ()),
    )
    if end == ENDS[10]:
        return after_crash(policy)
    return _after(policy, _outcome(end, policy))


def _outcome(end: str, policy: Policy) -> Outcome:
    error: Exception = NothingHappened() if end == ENDS[7] else RuntimeError()
    if end in _STATUS:
        return classify_answer(Answer(_STATUS[end], (), b""), policy, begun=True)
    answer = Answer(500, (), b"") if end == REPLAYED_ERRORS else None
    return classify_exception(error, policy, begun=end != ENDS[8], answer=answer)


def _after(policy: Policy, outcome: Outcome) -> str:
    """The record after a settlement, and the verdict of the next attempt a second later."""
    if policy.terms.effects is Effects.ATOMIC and isinstance(outcome, Released):
        verdict = type(decide(None, claim_of(policy, 2), NOW)).__name__
        return f"rolled back, no record → **{verdict}**"
    row = make_running_record(policy)
    settlement = make_settlement(first_grant(claim_of(policy), NOW), outcome)
    reply, after = settle_row(row, settlement, NOW)
    assert isinstance(reply, Settled)
    assert after is not None
    state = state_label(State(after.state).name) if after.lease_until else "lease released"
    verdict = type(decide(after, claim_of(policy, 2), NOW + SECOND)).__name__
    return f"{state} → **{verdict}**"


def after_crash(policy: Policy) -> str:
    if policy.terms.effects is Effects.ATOMIC:
        return f"rolled back, no record → **{TABLE[Situation.NEVER_SEEN].verdict.__name__}**"
    row = make_running_record(policy)
    found = classify_lapsed(row, row.lease_until)
    reaped = lapse_row(row, row.lease_until)
    state = "PROCESSING, lapsed" if reaped is None else state_label(State(reaped.state).name)
    return f"{state} → **{TABLE[found].verdict.__name__}**"
