"""Settlements, renewals, marks, abandonments, lapses and resolutions over every state and holder."""

from __future__ import annotations

import itertools

import pytest

from semel.core.decide import decide
from semel.core.model import (
    AlreadyMine,
    AnswerKind,
    Effects,
    Grant,
    MovedOn,
    Proceed,
    Record,
    Resolution,
    Resolved,
    Settled,
    State,
    Superseded,
    TooEarly,
)
from semel.core.record import answer_digest, pack_headers
from semel.core.settle import (
    abandon_row,
    is_relinquished,
    lapse_row,
    mark_row,
    relinquished_state,
    renew_row,
    settle_row,
)
from semel.policy import Policy
from semel.reconciliation.resolutions import action_of, resolve_row
from semel.sealing.rows import Reseal, reseal_row
from semel.steps.rules import Step, Steps
from semel.stores.memory.store import grant_row
from semel.testing.attempts import OK, attempt, renewal, settlement

NOW = 1_700_000_000_000_000
LEASE_US, DAY_US = 30_000_000, 86_400_000_000
WORDS = [state for state in State if state is not State.CLAIMED]  # what a holder may say


def grant_and_row(policy: Policy | None = None) -> tuple[Grant, Record]:
    claim = attempt(policy=policy or Policy())
    verdict = decide(None, claim, NOW)
    assert isinstance(verdict, Proceed)
    return verdict.grant, grant_row(None, claim, verdict.grant)


@pytest.mark.parametrize(("state", "said"), list(itertools.product(State, WORDS)))
def test_a_settlement_by_the_holder_in_every_state(state: State, said: State) -> None:
    """Open or UNKNOWN: it is written. Ended: recognised if it is the same, refused if not; nothing is written."""
    grant, row = grant_and_row()
    row = row._replace(state=state)
    reply, written = settle_row(row, settlement(grant, said, None), NOW)
    if state in (State.CLAIMED, State.PROCESSING, State.UNKNOWN):
        assert reply == Settled()
        assert written is not None
        assert written.state == said
    else:
        assert written is None
        assert reply == (AlreadyMine() if state == said else Superseded(state))


@pytest.mark.parametrize(("state", "said", "guess"), list(itertools.product(State, WORDS, ["fence", "nonce"])))
def test_a_settlement_by_another_holder_in_every_state(state: State, said: State, guess: str) -> None:
    grant, row = grant_and_row()
    other = grant._replace(fence=grant.fence - 1) if guess == "fence" else grant._replace(nonce=bytes(16))
    assert settle_row(row._replace(state=state), settlement(other, said), NOW) == (Superseded(state), None)


def test_a_settlement_of_a_deleted_record_is_superseded() -> None:
    grant, _ = grant_and_row()
    assert settle_row(None, settlement(grant), NOW) == (Superseded(None), None)
    assert renew_row(None, renewal(grant), NOW) is None
    assert mark_row(None, renewal(grant)) is None
    assert abandon_row(None, grant.nonce, NOW) is None


@pytest.mark.parametrize("said", WORDS)
def test_retention_starts_at_the_end_of_the_command(said: State) -> None:
    grant, row = grant_and_row()
    _, written = settle_row(row, settlement(grant, said), NOW + 5)
    assert written is not None
    ends = said not in (State.UNKNOWN, State.PROCESSING)
    wanted = (NOW + 5, NOW + 5 + DAY_US, NOW + 5 + 30 * DAY_US) if ends else (None, None, None)
    assert (written.settled_at, written.answer_until, written.forget_after) == wanted


def test_a_settlement_removes_an_earlier_doubt() -> None:
    grant, row = grant_and_row()
    _, unknown = settle_row(row, settlement(grant, State.UNKNOWN, doubt="error"), NOW)
    assert unknown is not None
    assert unknown.doubt == "error"
    reply, written = settle_row(unknown, settlement(grant), NOW)
    assert reply == Settled()
    assert written is not None
    assert (written.doubt, written.body, written.answer_kind) == (None, OK.body, AnswerKind.KEPT)


def test_an_answer_is_put_in_another_form_where_it_is_the_one_that_was_seen() -> None:
    grant, row = grant_and_row()
    _, kept = settle_row(row, settlement(grant), NOW)
    assert kept is not None
    assert kept.answer_digest is not None
    sealed = OK._replace(body=b"sealed")
    change = Reseal(kept.id, kept.answer_digest, sealed, AnswerKind.SEALED)
    block = pack_headers(sealed.headers)
    again = kept._replace(
        answer_kind=AnswerKind.SEALED,
        answer_digest=answer_digest(sealed.status, block, sealed.body),
        headers=block,
        body=sealed.body,
    )
    assert reseal_row(kept, change) == again
    assert reseal_row(again, change) is None  # another reseal was faster
    assert reseal_row(None, change) is None
    assert reseal_row(kept._replace(answer_kind=AnswerKind.NOT_KEPT), change) is None
    assert reseal_row(kept._replace(lease_until="x"), change) is None  # type: ignore[arg-type]  # a damaged row


def test_a_mutable_body_is_copied_by_the_settlement() -> None:
    """An application may fill its buffer anew; only bytes are read back as they were."""
    grant, row = grant_and_row()
    buffer = bytearray(b"first")
    given = OK._replace(body=buffer)  # type: ignore[arg-type]  # as Python lets an application do
    _, written = settle_row(row, settlement(grant, answer=given), NOW)
    buffer[:] = b"other"
    assert written is not None
    assert (type(written.body), written.body) == (bytes, b"first")


def test_an_answer_that_is_not_stored_leaves_only_its_status() -> None:
    grant, row = grant_and_row()
    _, written = settle_row(row, settlement(grant, kept=False), NOW)
    assert written is not None
    assert (written.status, written.headers, written.body) == (201, None, None)
    assert written.answer_digest is not None  # so that a repeated settlement is recognised
    assert settle_row(written, settlement(grant, kept=False), NOW) == (AlreadyMine(), None)


def test_a_released_lease_is_over_for_its_holder() -> None:
    grant, row = grant_and_row(Policy(effects="idempotent"))
    _, back = settle_row(row, settlement(grant, State.PROCESSING), NOW)
    assert back is not None
    assert is_relinquished(back)
    assert back.lease_until == 0
    for said in WORDS:
        mine = AlreadyMine() if said is State.PROCESSING else Superseded(State.PROCESSING)
        assert settle_row(back, settlement(grant, said), NOW) == (mine, None)
    assert renew_row(back, renewal(grant), NOW) is None
    assert mark_row(back, renewal(grant)) is None
    assert abandon_row(back, grant.nonce, NOW) is None


@pytest.mark.parametrize(("state", "doubt"), list(itertools.product(State, ["lapsed", "error", None])))
def test_only_the_current_holder_may_renew(state: State, doubt: str | None) -> None:
    """The holder of an open record, lapsed or not, and of one that is UNKNOWN by lapse alone."""
    grant, row = grant_and_row()
    row = row._replace(state=state, doubt=doubt)
    later = row.lease_until + LEASE_US
    written = renew_row(row, renewal(grant), later)
    if state in (State.CLAIMED, State.PROCESSING):
        assert written == row._replace(lease_until=later + LEASE_US)
    elif state is State.UNKNOWN and doubt == "lapsed":
        assert written == row._replace(lease_until=later + LEASE_US, state=State.PROCESSING, doubt=None)
    else:
        assert written is None
    for other in (grant._replace(fence=grant.fence + 1), grant._replace(nonce=bytes(16))):
        assert renew_row(row, renewal(other), later) is None


def test_a_renewal_that_crosses_its_holders_own_unknown_withdraws_nothing() -> None:
    """Found by the simulator: a step's doubt is also what a lapse leaves, but no lease lapses before its end."""
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN, doubt="step:charge")
    assert renew_row(row, renewal(grant), row.lease_until - 1) is None
    back = renew_row(row, renewal(grant), row.lease_until)
    assert back == row._replace(lease_until=row.lease_until + LEASE_US, state=State.PROCESSING)


def test_renewal_ends_at_the_deadline() -> None:
    grant, row = grant_and_row()
    last = renew_row(row, renewal(grant), row.deadline_at - 1)
    assert last is not None
    assert last.lease_until == row.deadline_at
    assert renew_row(row, renewal(grant), row.deadline_at) is None


@pytest.mark.parametrize("state", State)
def test_a_mark_is_for_open_records(state: State) -> None:
    grant, row = grant_and_row()
    row = row._replace(state=state, answer_kind=AnswerKind.KEPT)
    written = mark_row(row, renewal(grant))
    if state in (State.CLAIMED, State.PROCESSING, State.UNKNOWN):
        assert written == row._replace(answer_kind=AnswerKind.NOT_KEPT)
    else:
        assert written is None
    assert mark_row(row, renewal(grant._replace(nonce=bytes(16)))) is None


@pytest.mark.parametrize("state", State)
def test_only_an_unsettled_claim_is_abandoned(state: State) -> None:
    grant, row = grant_and_row()
    row = row._replace(state=state)
    written = abandon_row(row, grant.nonce, NOW)
    if state in (State.CLAIMED, State.PROCESSING, State.UNKNOWN):
        assert written is not None
        assert (written.state, written.doubt, written.fence) == (State.FAILED_NOT_REPLAYABLE, "abandoned", row.fence)
        assert written.forget_after == NOW + 30 * DAY_US
    else:
        assert written is None
    assert abandon_row(row, bytes(16), NOW) is None


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("effects", Effects)
def test_a_lapse_depends_on_state_and_lease(state: State, effects: Effects) -> None:
    _, row = grant_and_row()
    row = row._replace(state=state, effects=effects)
    assert lapse_row(row, row.lease_until - 1) is None
    written = lapse_row(row, row.lease_until)
    doubt = {Effects.EXTERNAL: "lapsed", Effects.ATOMIC: "committed-early"}.get(effects)
    if state is State.PROCESSING and doubt is not None:
        assert written == row._replace(state=State.UNKNOWN, doubt=doubt)
    else:
        assert written is None


@pytest.mark.parametrize(
    ("lapses", "given_back", "dedup_over", "doubt"),
    [
        (0, False, False, None),
        (1, False, False, "attempts-over"),
        (1, True, False, None),
        (2, True, False, "attempts-over"),
        (0, False, True, "dedup-over"),
        (0, True, True, "dedup-over"),
        (2, False, True, "dedup-over"),
    ],
)
def test_an_idempotent_command_lapses_past_its_bounds(
    lapses: int, given_back: bool, dedup_over: bool, doubt: str | None
) -> None:
    _, row = grant_and_row(Policy(effects="idempotent", attempts_max=2))
    now = row.dedup_until if dedup_over else row.lease_until
    written = lapse_row(row._replace(lapses=lapses, lease_until=0 if given_back else row.lease_until), now)
    assert (None if written is None else written.doubt) == doubt


@pytest.mark.parametrize(("state", "lapsed", "forced"), list(itertools.product(State, [True, False], [True, False])))
def test_an_operator_settles_only_unknown_or_lapsed_records(state: State, lapsed: bool, forced: bool) -> None:
    """UNKNOWN, or PROCESSING and lapsed; before the deadline only by force."""
    grant, row = grant_and_row()
    row = row._replace(state=state)
    now = row.lease_until if lapsed else row.lease_until - 1
    reply, written = resolve_row(row, Resolution(grant.id, grant.fence, True, OK, "olga", "why", forced), now)
    if state is State.UNKNOWN or (state is State.PROCESSING and lapsed):
        wanted: object = Resolved(State.SUCCEEDED) if forced else TooEarly(row.deadline_at - now)
    else:
        wanted = MovedOn(state)
    assert reply == wanted
    assert (written is None) is not isinstance(reply, Resolved)


@pytest.mark.parametrize("happened", [True, False])
def test_a_resolution_supersedes_the_holder_and_starts_retention(happened: bool) -> None:
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN, doubt="lapsed", answer_kind=AnswerKind.NOT_KEPT)
    resolution = Resolution(grant.id, grant.fence, happened, OK, "olga", "why")
    reply, written = resolve_row(row, resolution, row.deadline_at)
    assert written is not None
    assert reply == Resolved(State.SUCCEEDED if happened else State.FAILED_NOT_REPLAYABLE)
    assert written.fence == row.deadline_at > row.fence
    assert written.generation == (0 if happened else 1)  # new derived keys only where nothing had happened
    assert written.body == (OK.body if happened else None)  # "did not happen" stores no answer
    assert (written.settled_at, written.doubt) == (row.deadline_at, None)
    assert settle_row(written, settlement(grant), NOW) == (Superseded(State(written.state)), None)


CHARGE = Step("charge", 0, NOW, repeatable=False)
PAID = CHARGE._replace(finished=True, result=b'"ch_1"')
GONE = CHARGE._replace(name="ship", disproved=True)
MAIL = Step("mail", 0, NOW, repeatable=True)
CONTINUED: list[tuple[str, str, Steps | None, bytes | None, State, str | None, int]] = [
    ("no steps at all", "error:E", None, None, State.FAILED_NOT_REPLAYABLE, None, 1),
    ("nothing else had begun", "step:ship", (GONE,), None, State.FAILED_NOT_REPLAYABLE, None, 0),
    ("its start was not written", "step:ship", (), None, State.FAILED_NOT_REPLAYABLE, None, 0),
    ("nor can be, here", "step:ship", None, None, State.FAILED_NOT_REPLAYABLE, None, 0),
    ("nothing else had begun, and a completer may go on", "step:ship", (GONE,), b"r", State.CLAIMED, None, 0),
    ("a step had finished", "step:ship", (PAID, GONE), None, State.CLAIMED, None, 0),
    ("a step may be repeated", "step:ship", (MAIL, GONE), None, State.CLAIMED, None, 0),
    ("a step had finished, and no step is in doubt", "attempts-over", (PAID,), None, State.CLAIMED, None, 0),
    ("another step is in doubt", "step:ship", (GONE, CHARGE), None, State.UNKNOWN, "step:charge", 0),
]


@pytest.mark.parametrize("each", CONTINUED, ids=[each[0] for each in CONTINUED])
def test_a_resolution_where_steps_had_begun(
    each: tuple[str, str, Steps | None, bytes | None, State, str | None, int],
) -> None:
    _, doubt, steps, request, state, left, generation = each
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN, doubt=doubt, request=request, error_code="error:E", attempt=2)
    row = row._replace(answer_kind=AnswerKind.NOT_KEPT, status=500)
    reply, written = resolve_row(
        row, Resolution(grant.id, grant.fence, False, None, "olga", "why"), row.deadline_at, steps
    )
    assert written is not None
    assert reply == Resolved(state)
    assert (written.state, written.doubt, written.generation) == (state, left, generation)
    assert written.fence == row.deadline_at > row.fence
    assert settle_row(written, settlement(grant), NOW) == (Superseded(state), None)
    if state is State.CLAIMED:
        gone_on = row._replace(
            state=state, fence=written.fence, lease_until=0, doubt=None, error_code=None, answer_kind=0, status=None
        )
        assert written == gone_on
    if state is State.UNKNOWN:
        assert written == row._replace(fence=written.fence, doubt=left)


def test_a_resolution_resets_the_completers_attempts() -> None:
    grant, row = grant_and_row(Policy(attempts_max=3))
    row = row._replace(state=State.UNKNOWN, doubt="attempts-over", attempt=3, deadline_at=NOW)
    _, written = resolve_row(row, Resolution(grant.id, grant.fence, False, None, "o", "w"), NOW, (PAID,))
    assert written is not None
    assert written.attempt == 1  # not 0: the next run is not the first, and reads what is recorded


@pytest.mark.parametrize(
    ("seen", "doubt", "result", "stands"),
    [
        ("charge", "step:charge", None, True),
        ("charge", "step:ship", None, False),
        ("charge", "lapsed", None, False),
        (None, "step:ship", None, True),
        (None, "lapsed", b"1", False),
    ],
)
def test_a_resolution_of_a_step_applies_to_that_step(
    seen: str | None, doubt: str, result: bytes | None, stands: bool
) -> None:
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN, doubt=doubt)
    asked = Resolution(grant.id, grant.fence, result is not None, None, "o", "w", True, step=seen, result=result)
    reply, written = resolve_row(row, asked, NOW, () if result is None else (PAID,))
    assert isinstance(reply, Resolved if stands else MovedOn)
    assert (written is not None) is stands


def test_a_resolution_without_an_answer_stores_none() -> None:
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN)
    _, written = resolve_row(row, Resolution(grant.id, grant.fence, True, None, "o", "w", True), NOW)
    assert written is not None
    assert written.answer_kind == AnswerKind.NOT_KEPT


@pytest.mark.parametrize("named", ["order", None])
def test_a_resolution_sets_the_resource_or_leaves_it(named: str | None) -> None:
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN, resource_type="invoice", resource_id="7")
    asked = Resolution(grant.id, grant.fence, True, None, "o", "w", True, resource_type=named, resource_id=named)
    _, written = resolve_row(row, asked, NOW)
    assert written is not None
    assert (written.resource_type, written.resource_id) == (named or "invoice", named or "7")


def test_a_step_resolution_of_a_moved_on_record_reports_that() -> None:
    grant, row = grant_and_row()
    row = row._replace(state=State.UNKNOWN, doubt="step:ship")
    asked = Resolution(grant.id, grant.fence, False, None, "o", "w", True, step="charge")
    assert resolve_row(row, asked, NOW, (PAID,)) == (MovedOn(State.UNKNOWN), None)


@pytest.mark.parametrize("left", [(GONE, CHARGE), (PAID,)])
def test_a_continued_execution_keeps_nothing_of_a_former_answer(left: Steps) -> None:
    """Nor does one with an unmarked lapse read as if it were running."""
    grant, row = grant_and_row()
    row = row._replace(doubt="step:ship", answer_digest=b"d", status=201, headers=b"h", body=b"b")
    asked = Resolution(grant.id, grant.fence, False, None, "o", "w", True)
    _, written = resolve_row(row, asked, row.lease_until, left)
    assert written is not None
    if left == (PAID,):
        assert (written.answer_digest, written.status, written.headers, written.body) == (None, None, None, None)
    else:
        assert (written.state, written.doubt) == (State.UNKNOWN, "step:charge")


@pytest.mark.parametrize("effects", Effects)
def test_a_released_lease_lets_a_retry_run(effects: Effects) -> None:
    _, row = grant_and_row()
    wanted = State.PROCESSING if effects is Effects.IDEMPOTENT else State.CLAIMED
    assert relinquished_state(row._replace(effects=effects)) is wanted


@pytest.mark.parametrize(
    ("happened", "doubt", "result", "called"),
    [
        (True, "lapsed", None, "resolve:succeeded"),
        (False, "lapsed", None, "resolve:did-not-happen"),
        (True, "step:charge", None, "resolve:succeeded"),  # all of the command
        (True, "step:charge", b"1", "resolve:succeeded step:charge"),
        (False, "step:charge", None, "resolve:did-not-happen step:charge"),
    ],
)
def test_the_audit_trail_names_the_resolution(happened: bool, doubt: str, result: bytes | None, called: str) -> None:
    grant, row = grant_and_row()
    said = Resolution(grant.id, grant.fence, happened, None, "o", "w", result=result)
    assert action_of(said, row._replace(state=State.UNKNOWN, doubt=doubt)) == called


def test_an_operator_who_saw_another_grant_settles_nothing() -> None:
    grant, row = grant_and_row()
    stale = Resolution(grant.id, grant.fence - 1, True, OK, "olga", "why", True)
    assert resolve_row(row._replace(state=State.UNKNOWN), stale, NOW) == (MovedOn(State.UNKNOWN), None)
    assert resolve_row(None, stale, NOW) == (MovedOn(None), None)


def test_an_invalid_state_is_refused_without_an_exception() -> None:
    grant, row = grant_and_row()
    damaged = row._replace(state=99)
    assert settle_row(damaged, settlement(grant, State.SUCCEEDED, None), NOW) == (Superseded(None), None)
    resolution = Resolution(damaged.id, damaged.fence, True, None, "op", "because")
    assert resolve_row(damaged, resolution, NOW) == (MovedOn(None), None)
