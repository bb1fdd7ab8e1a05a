"""What the rules write, column by column: every row is compared whole, so that every column is tested."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.decide import decide
from semel.core.model import (
    AlreadyMine,
    Answer,
    AnswerKind,
    Effects,
    Grant,
    Proceed,
    Record,
    Resolution,
    Settled,
    State,
    Superseded,
)
from semel.core.record import answer_digest, pack_headers
from semel.core.settle import abandon_row, may_have_begun_before, settle_row
from semel.policy import Policy
from semel.reconciliation.resolutions import resolve_row
from semel.stores.memory.store import grant_row
from semel.testing.attempts import IDEMPOTENT, OK, attempt, settlement

NOW = 1_700_000_000_000_000
LATER = NOW + 7_000_000
DAY_US = 86_400_000_000
CLEARED: dict[str, Any] = {"request": None, "doubt": None}
BLOCK = pack_headers(OK.headers)
DIGEST = answer_digest(OK.status, BLOCK, OK.body)


def first(policy: Policy) -> tuple[Grant, Record]:
    """A first grant, and the row of it, with something in every column that a settlement replaces."""
    claim = attempt(policy=policy)
    verdict = decide(None, claim, NOW)
    assert isinstance(verdict, Proceed)
    row = grant_row(None, claim, verdict.grant)
    return verdict.grant, row._replace(request=b"asked", sealing_key_id="k1", doubt="before", error_code="before")


def second(policy: Policy = IDEMPOTENT) -> tuple[Grant, Record]:
    """The grant and the row of an attempt that took over from a lapsed one."""
    _, row = first(policy)
    claim = attempt(nonce=2, policy=policy)
    verdict = decide(row._replace(doubt=None), claim, row.lease_until + 1)
    assert isinstance(verdict, Proceed)
    return verdict.grant, grant_row(row, claim, verdict.grant)


RETAINED: dict[str, Any] = {"settled_at": LATER, "answer_until": LATER + DAY_US, "forget_after": LATER + 30 * DAY_US}
ANSWERED: dict[str, Any] = {"answer_digest": DIGEST, "status": 201}
KEPT: dict[str, Any] = {**ANSWERED, "answer_kind": AnswerKind.KEPT, "headers": BLOCK, "body": b"made"}
EMPTY: dict[str, Any] = {"doubt": None, "error_code": None, "answer_kind": AnswerKind.NONE, "request": None}


@pytest.mark.parametrize(
    ("said", "kept", "changes"),
    [
        (State.SUCCEEDED, True, {**RETAINED, **KEPT}),
        (State.SUCCEEDED, False, {**RETAINED, **ANSWERED, "answer_kind": AnswerKind.NOT_KEPT}),
        (State.FAILED_REPLAYABLE, True, {**RETAINED, **KEPT}),
        (State.FAILED_NOT_REPLAYABLE, True, RETAINED),
        (State.UNKNOWN, True, {"request": b"asked"}),
        (State.PROCESSING, True, {"lease_until": 0}),
    ],
)
def test_a_settlement_writes_the_expected_row(said: State, kept: bool, changes: dict[str, Any]) -> None:
    grant, row = first(Policy())
    last = settlement(grant, said, kept=kept, doubt="why")._replace(
        business_ref="order-7", resource_type="payment", resource_id="7", error_code="e"
    )
    reply, written = settle_row(row, last, LATER)
    named = {"business_ref": "order-7", "resource_type": "payment", "resource_id": "7", "error_code": "e"}
    assert reply == Settled()
    assert written == row._replace(**{**EMPTY, "doubt": "why", **named, "state": said, **changes})


def test_the_digest_is_of_status_headers_and_body() -> None:
    """A repeated settlement is recognised by it: the same state with another answer is another attempt's."""
    grant, row = first(Policy())
    _, written = settle_row(row, settlement(grant), LATER)
    assert settle_row(written, settlement(grant), LATER) == (AlreadyMine(), None)
    for other in (OK._replace(status=200), OK._replace(headers=()), OK._replace(body=b"other")):
        assert settle_row(written, settlement(grant, answer=other), LATER) == (Superseded(State.SUCCEEDED), None)


# --- an attempt before this one may have had its effect ---


@pytest.mark.parametrize("effects", Effects)
def test_only_a_later_attempt_of_an_idempotent_command_may_follow_an_effect(effects: Effects) -> None:
    _, row = first(IDEMPOTENT)
    row = row._replace(effects=effects)
    assert may_have_begun_before(row) is False
    assert may_have_begun_before(row._replace(fence=row.first_started_at + 1)) is (effects is Effects.IDEMPOTENT)


def test_a_second_attempt_that_proves_nothing_releases_its_lease() -> None:
    grant, row = second()
    reply, written = settle_row(row, settlement(grant, State.FAILED_NOT_REPLAYABLE, doubt="http-401"), LATER)
    assert reply == Settled()
    assert written == row._replace(**EMPTY)._replace(state=State.PROCESSING, lease_until=0, doubt="http-401")
    again = settlement(grant, State.FAILED_NOT_REPLAYABLE)
    assert settle_row(written, again, LATER) == (AlreadyMine(), None)


@pytest.mark.parametrize("said", [State.SUCCEEDED, State.FAILED_REPLAYABLE, State.UNKNOWN, State.PROCESSING])
def test_every_other_outcome_of_a_second_attempt_is_kept(said: State) -> None:
    grant, row = second()
    reply, written = settle_row(row, settlement(grant, said), LATER)
    assert reply == Settled()
    assert written is not None
    assert written.state == said


def test_an_abandoned_first_claim_frees_the_key() -> None:
    grant, row = first(IDEMPOTENT)
    changes: dict[str, Any] = {"state": State.FAILED_NOT_REPLAYABLE, "doubt": "abandoned", "request": None, **RETAINED}
    assert abandon_row(row, grant.nonce, LATER) == row._replace(**changes)


def test_an_abandoned_first_claim_keeps_no_request() -> None:
    grant, row = first(IDEMPOTENT)
    freed = abandon_row(row._replace(request=b"whose card it is"), grant.nonce, LATER)
    assert freed is not None
    assert freed.request is None
    grant, row = second()
    back = abandon_row(row._replace(request=b"whose card it is"), grant.nonce, LATER)
    assert back is not None
    assert back.request == b"whose card it is"


def test_an_abandoned_later_claim_releases_its_lease() -> None:
    grant, row = second()
    wanted = row._replace(state=State.PROCESSING, lease_until=0, doubt="abandoned")
    assert abandon_row(row, grant.nonce, LATER) == wanted
    unknown = row._replace(state=State.UNKNOWN, doubt="lapsed")
    assert abandon_row(unknown, grant.nonce, LATER) == wanted


# --- operators ---


@pytest.mark.parametrize(
    ("happened", "answer", "changes"),
    [
        (True, OK, KEPT),
        (True, None, {"answer_kind": AnswerKind.NOT_KEPT}),
        (False, OK, {"answer_kind": AnswerKind.NONE}),
        (False, None, {"answer_kind": AnswerKind.NONE}),
    ],
)
@pytest.mark.parametrize("left", [False, True], ids=["nothing stored", "an answer stored"])
def test_a_resolution_writes_the_expected_row(
    happened: bool, answer: Answer | None, changes: dict[str, Any], left: bool
) -> None:
    """All of an answer, or nothing of what was stored before."""
    grant, row = first(Policy())
    row = row._replace(state=State.UNKNOWN)
    if left:
        row = row._replace(answer_kind=AnswerKind.KEPT, answer_digest=b"x" * 16, status=500, headers=b"", body=b"no")
    now = row.deadline_at
    settlement = Resolution(grant.id, grant.fence, happened, answer, "olga", "asked the bank")
    reply, written = resolve_row(row, settlement, now)
    state = State.SUCCEEDED if happened else State.FAILED_NOT_REPLAYABLE
    nothing: dict[str, Any] = {
        "answer_digest": None,
        "status": None,
        "headers": None,
        "body": None,
        "request": None,
        "doubt": None,
    }
    retained = {"settled_at": now, "answer_until": now + DAY_US, "forget_after": now + 30 * DAY_US}
    ends = {"state": state, "fence": now, "generation": 0 if happened else 1}
    assert reply is not None
    assert written == row._replace(**{**nothing, **retained, **ends, **changes})
