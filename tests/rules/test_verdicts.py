"""What each verdict carries, whole; and where one situation ends and the next begins."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.decide import Situation, count_crash, decide, first_grant, is_grant_new, situation
from semel.core.model import (
    AfterExpiry,
    AnswerKind,
    Claim,
    InProgress,
    KeyExpired,
    KeyReused,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    Record,
    Replay,
    State,
    Unreadable,
    Verdict,
)
from semel.core.record import answer_digest, pack_headers
from semel.policy import Policy
from semel.stores.memory.store import grant_row
from semel.testing.attempts import IDEMPOTENT, OK, attempt

NOW = 1_700_000_000_000_000
DAY_US = 86_400_000_000
MINE, OTHER = attempt(nonce=1), attempt(nonce=2)
BLOCK = pack_headers(OK.headers)


def row(policy: Policy | None = None, **changes: Any) -> Record:
    claim = attempt(nonce=1, policy=policy or Policy())
    return grant_row(None, claim, first_grant(claim, NOW))._replace(**changes)


def make_ended(state: State, **changes: Any) -> Record:
    digest = answer_digest(OK.status, BLOCK, OK.body)
    answer: dict[str, Any] = {"answer_digest": digest, "status": OK.status, "headers": BLOCK, "body": OK.body}
    times: dict[str, Any] = {"settled_at": NOW, "answer_until": NOW + DAY_US, "forget_after": NOW + 30 * DAY_US}
    return row()._replace(state=state, answer_kind=AnswerKind.KEPT, **answer, **times)._replace(**changes)


ID = MINE.operation_id
NAMED: dict[str, Any] = {"resource_type": "payment", "resource_id": "7"}
NOT_KEPT: dict[str, Any] = {"answer_kind": AnswerKind.NOT_KEPT, "headers": None, "body": None}


@pytest.mark.parametrize(
    ("record", "claim", "now", "verdict", "found"),
    [
        (row(), OTHER, NOW + 1, InProgress(ID, 29_999_999), Situation.PROCESSING_LIVE),
        (row(lease_until=NOW + 2), OTHER, NOW + 1, InProgress(ID, 1), Situation.PROCESSING_LIVE),
        (row(), OTHER, NOW + 30_000_000, OutcomeUnknown(ID, "lapsed"), Situation.EXTERNAL_LAPSED),
        (row(state=State.UNKNOWN, doubt="error:X"), OTHER, NOW, OutcomeUnknown(ID, "error:X"), Situation.UNKNOWN),
        (row(state=State.UNKNOWN), OTHER, NOW, OutcomeUnknown(ID, "unknown"), Situation.UNKNOWN),
        (make_ended(State.SUCCEEDED), OTHER, NOW, Replay(OK, ID, State.SUCCEEDED), Situation.ANSWER_KEPT),
        (
            make_ended(State.FAILED_REPLAYABLE),
            OTHER,
            NOW,
            Replay(OK, ID, State.FAILED_REPLAYABLE),
            Situation.REFUSAL_KEPT,
        ),
        (
            make_ended(State.SUCCEEDED, **NOT_KEPT, **NAMED),
            OTHER,
            NOW,
            NotReplayable(ID, "payment", "7"),
            Situation.ANSWER_NOT_KEPT,
        ),
        (make_ended(State.FAILED_REPLAYABLE, **NOT_KEPT), OTHER, NOW, NotReplayable(ID), Situation.REFUSAL_NOT_KEPT),
        (make_ended(State.SUCCEEDED), OTHER, NOW + DAY_US, KeyExpired(ID), Situation.EXPIRED),
        (make_ended(State.SUCCEEDED, body=b"mode"), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.ANSWER_KEPT),
        (row(), attempt(request=1), NOW, KeyReused(ID, State.PROCESSING), Situation.OTHER_REQUEST),
        (row(lease_until=NOW), attempt(request=1), NOW, KeyReused(ID, State.UNKNOWN), Situation.OTHER_REQUEST),
        (row(), attempt(recipe="2.new"), NOW, Unreadable(ID, "recipe", "1.tests"), Situation.OTHER_RECIPE),
        (row(id=bytes(len(MINE.id))), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (row(lease_until="soon"), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (row(format=2), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (row(state=99), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (row(settled_at=NOW), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (row(settled_at=NOW), OTHER, NOW + DAY_US, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (row(settled_at=NOW, state=State.CLAIMED), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
        (make_ended(State.FAILED_NOT_REPLAYABLE), OTHER, NOW, Unreadable(ID, "corrupt"), Situation.CORRUPT),
    ],
    ids=lambda value: value.name if isinstance(value, Situation) else "",
)
def test_a_verdict_has_every_field(record: Record, claim: Claim, now: int, verdict: Verdict, found: Situation) -> None:
    assert decide(record, claim, now) == verdict
    assert situation(record, claim, now) is found


def test_a_released_lease_is_not_a_crash() -> None:
    assert [count_crash(row(lease_until=at)) for at in (0, 1, NOW)] == [0, 1, 1]


def test_a_claim_read_back_gets_the_grant_of_its_record() -> None:
    record = row(attempt=3, lapses=2, generation=1, created_at=NOW - 9, first_started_at=NOW - 8, fence=NOW + 5)
    verdict = decide(record, MINE, NOW + 1)
    assert isinstance(verdict, Proceed)
    assert verdict.grant._asdict() == {name: getattr(record, name) for name in verdict.grant._fields}
    assert not is_grant_new(record, verdict.grant)


def test_a_takeover_keeps_what_the_command_is() -> None:
    record = row(IDEMPOTENT, created_at=NOW - 9)
    claim = attempt(nonce=2, policy=IDEMPOTENT)
    now = record.lease_until
    verdict = decide(record, claim, now)
    assert isinstance(verdict, Proceed)
    kept = {name: getattr(record, name) for name in verdict.grant._fields}
    times = {"lease_until": now + 30_000_000, "deadline_at": now + claim.terms.deadline_us}
    new = {"nonce": claim.nonce, "fence": now, "attempt": 2, "lapses": 1, "state": State.PROCESSING}
    assert verdict.grant._asdict() == {**kept, **times, **new}
    assert is_grant_new(record, verdict.grant)


@pytest.mark.parametrize("found", ["released", "expired"])
def test_a_command_that_starts_over_resets_its_counts(found: str) -> None:
    """Released: the same command, whose clocks start again. Expired: another command under the old id."""
    if found == "released":
        record = row(state=State.FAILED_NOT_REPLAYABLE, lapses=3, attempt=4, generation=1)
    else:
        record = make_ended(State.SUCCEEDED, after_expiry=AfterExpiry.NEW, lapses=3, attempt=4, generation=1)
    now = NOW + DAY_US
    verdict = decide(record, OTHER, now)
    assert isinstance(verdict, Proceed)
    grant, fresh = verdict.grant, found == "expired"
    assert (grant.id, grant.nonce, grant.fence) == (record.id, OTHER.nonce, now)
    assert (grant.generation, grant.attempt, grant.lapses) == ((2, 1, 0) if fresh else (1, 5, 0))
    assert grant.operation_id == (OTHER.operation_id if fresh else ID)
    assert (grant.created_at, grant.first_started_at) == (now if fresh else NOW, now)
    assert grant.lease_until == now + 30_000_000
    assert grant.deadline_at == now + OTHER.terms.deadline_us
    assert grant.dedup_until == now + OTHER.terms.dedup_us
