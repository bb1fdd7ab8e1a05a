"""Every state × input of the decision table, against an expectation written from the documents alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from semel.bulk.rules import BULK_RECIPE as BULK
from semel.core.decide import (
    DOUBTS,
    KEPT_COLUMNS,
    LAPSED,
    TABLE,
    DeclaredTerms,
    Situation,
    Was,
    decide,
    doubt_of,
    find_replay,
    find_replay_in,
    first_grant,
    is_grant_new,
    needs_steps,
    situation,
)
from semel.core.model import (
    AfterExpiry,
    Answer,
    AnswerKind,
    Claim,
    Effects,
    Grant,
    InProgress,
    KeyExpired,
    KeyReused,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    QuotaExceeded,
    Rebuild,
    Record,
    ReferenceTaken,
    Replay,
    State,
    Unreadable,
    Unseal,
    Verdict,
)
from semel.core.record import answer_digest, is_sound, pack_headers
from semel.policy import Policy
from semel.stores.mariadb.rows import find_first_grant
from semel.stores.memory.store import grant_row
from semel.testing.attempts import EXTERNAL, OK, attempt, bits

NOW = 1_700_000_000_000_000
MINE, OTHERS = attempt(nonce=1), attempt(nonce=2)
NEWER_STATE = 77


class Case(NamedTuple):
    """One point of the space, in the words of the documents."""

    state: int | None
    effects: Effects
    lease: str  # live, lapsed, given back
    nonce: str  # mine, other
    request: str  # same, other
    recipe: str  # same, other
    retention: str  # lasts, over
    answer: str  # none, kept, not kept, sealed, rebuilt, damaged, half
    dedup: str  # lasts, over
    lapses: int  # of two that are allowed
    after_expiry: AfterExpiry
    declares: str = "external"  # atomic, idempotent, external, steps: what the operation of the attempt is now
    begun: bool = False  # whether a step of the record has begun


AXES: tuple[tuple[object, ...], ...] = (
    (None, *State, NEWER_STATE),
    tuple(Effects),
    ("live", "lapsed", "given back"),
    ("mine", "other"),
    ("same", "other"),
    ("same", "other"),
    ("lasts", "over"),
    ("none", "kept", "not kept", "sealed", "rebuilt", "damaged", "half"),
    ("lasts", "over"),
    (0, 1, 2),
    tuple(AfterExpiry),
)
ATTEMPTS_MAX = 2
DOUBT = "error:TimeoutError"


CLAIMS = {
    "atomic": attempt(nonce=1, policy=Policy(effects="atomic")),
    "idempotent": attempt(nonce=1, policy=Policy(effects="idempotent")),
    "external": MINE,
    "steps": attempt(nonce=1, policy=Policy(steps=True), starts=State.CLAIMED),
}


def cases() -> Iterator[Case]:
    """All that a record can be, met by an EXTERNAL attempt; and all that is open, met by every declaration."""
    for point in itertools.product(*AXES):
        yield Case(*point)  # type: ignore[arg-type]  # the axes are in the order of the fields
    for point in itertools.product(*AXES, CLAIMS, (False, True)):
        case = Case(*point)  # type: ignore[arg-type]  # as above
        if case.state in (State.CLAIMED, State.PROCESSING) and case.answer == "none":
            yield case


def decide_case(row: Record | None, case: Case) -> Verdict:
    return decide(row, CLAIMS[case.declares], NOW, begun=case.begun)


def situation_of(row: Record | None, case: Case) -> Situation:
    return situation(row, CLAIMS[case.declares], NOW, begun=case.begun)


def expect(case: Case) -> str:
    """States, verdicts and effects in plain words; written without looking at core/decide.py."""
    if case.state is None:
        return "proceed: first"
    if case.recipe == "other":
        return "unreadable: recipe"  # "refused, never taken for reuse, never run"
    if case.request == "other":
        return "reused"  # "checked before the state"
    match case.state:
        case State.SUCCEEDED | State.FAILED_REPLAYABLE:
            return expected_of_an_answer(case)
        case State.FAILED_NOT_REPLAYABLE:
            # Nothing happened, and yet it was answered: one of the two is damaged.
            return "proceed: again" if case.answer in ("none", "not kept") else "unreadable: corrupt"
        case State.UNKNOWN:
            return f"unknown: {DOUBT}"
        case State.CLAIMED | State.PROCESSING:
            if case.lease == "live":
                return "proceed: read back" if case.nonce == "mine" else "in progress"
            return expected_of_a_reservation(case) if case.state == State.CLAIMED else expected_of_a_lapse(case)
        case _:
            return "unreadable: corrupt"


def expected_of_an_answer(case: Case) -> str:
    if case.retention == "over":
        return "proceed: new" if case.after_expiry is AfterExpiry.NEW else "expired"
    if case.answer in ("damaged", "half"):
        return "unreadable: corrupt"
    if case.answer == "rebuilt":  # of a refusal nothing is there to be rebuilt
        return "rebuild" if case.state == State.SUCCEEDED else "not replayable"
    return {"kept": "replay", "sealed": "unseal"}.get(case.answer, "not replayable")


def expected_of_a_reservation(case: Case) -> str:
    # I4: a step that had finished is never made again, and a handler without steps cannot tell which had.
    return "unreadable: steps" if case.begun and case.declares != "steps" else "proceed: again"


def expected_of_a_lapse(case: Case) -> str:
    if case.effects is Effects.EXTERNAL:
        return "unknown: lapsed"
    if case.effects is Effects.ATOMIC:
        return "unknown: committed-early"
    if case.dedup == "over":
        return "unknown: dedup-over"
    crashes = case.lapses + (1 if case.lease == "lapsed" else 0)  # giving back is not a crash
    if crashes >= ATTEMPTS_MAX:
        return "unknown: attempts-over"
    # The downstream deduplicates by derived keys, which no other declaration promises to use.
    return "proceed: again" if case.declares == "idempotent" else "unknown: effects-changed"


def row_of(case: Case) -> Record | None:
    if case.state is None:
        return None
    first = decide(None, MINE, NOW - 1000)
    assert isinstance(first, Proceed)
    row = grant_row(None, MINE, first.grant)
    kinds = {"none": 0, "kept": 1, "not kept": 2, "sealed": 3, "rebuilt": 4, "damaged": 1, "half": 1}
    block = pack_headers(OK.headers)
    held = case.answer in ("kept", "sealed", "damaged")
    return row._replace(
        state=case.state,
        effects=case.effects,
        recipe=row.recipe if case.recipe == "same" else "2.other",
        fingerprint=row.fingerprint if case.request == "same" else bits("another", size=32),
        nonce=MINE.nonce if case.nonce == "mine" else OTHERS.nonce,
        lease_until={"live": NOW + 1, "lapsed": NOW, "given back": 0}[case.lease],
        answer_until=NOW + 1 if case.retention == "lasts" else NOW,
        after_expiry=case.after_expiry,
        dedup_until=NOW + 1 if case.dedup == "lasts" else NOW,
        lapses=case.lapses,
        attempts_max=ATTEMPTS_MAX,
        doubt=DOUBT,
        answer_kind=kinds[case.answer],
        status=OK.status,
        headers=block if held else None,
        body=(b"mad!" if case.answer == "damaged" else OK.body) if held else None,
        answer_digest=answer_digest(OK.status, block, OK.body),
    )


def name_verdict(row: Record | None, verdict: Verdict) -> str:
    """A verdict in the expectation's words."""
    match verdict:
        case Proceed(grant):
            return f"proceed: {grant_name(row, grant)}"
        case Replay(answer):
            return "replay" if answer == OK else f"replay of {answer!r}"
        case Unseal(_, answer):
            return "unseal" if answer == OK else f"unseal of {answer!r}"
        case Rebuild(status):
            return "rebuild" if status == OK.status else f"rebuild under {status}"
        case OutcomeUnknown(_, doubt):
            return f"unknown: {doubt}"
        case Unreadable(_, reason):
            return f"unreadable: {reason}"
        case InProgress(_, left):
            return "in progress" if left == 1 else f"in progress for {left}"
        case KeyReused():
            return "reused"
        case KeyExpired():
            return "expired"
        case NotReplayable():
            return "not replayable"
        case ReferenceTaken():
            return "taken"
        case QuotaExceeded():
            return "quota exceeded"


def grant_name(row: Record | None, grant: Grant) -> str:
    if row is None:
        return "first"
    if not is_grant_new(row, grant):
        return "read back"
    return "new" if grant.generation > row.generation else "again"


def test_every_state_and_input_is_decided_as_designed() -> None:
    seen: set[Situation] = set()
    count = 0
    for case in cases():
        row = row_of(case)
        seen.add(situation_of(row, case))
        verdict, claim = decide_case(row, case), CLAIMS[case.declares]
        assert name_verdict(row, verdict) == expect(case), case
        # A kept answer is recognised without a claim, and nothing else is.
        kept = verdict if type(verdict) is Replay else None
        assert find_replay(row, claim.id, claim.recipe, claim.fingerprint, NOW) == kept, case
        if row is not None:
            columns = tuple(getattr(row, name) for name in KEPT_COLUMNS)
            asked = (claim.id, claim.recipe, claim.fingerprint, NOW)
            assert find_replay_in(columns, is_sound(row), *asked) == kept, case
            assert find_first_grant(row, claim, NOW) in (None, verdict), case
        count += 1
    assert count == 96_768 + 27_648
    assert seen == set(Situation)  # every situation was reached, and the table has no line that never is


def test_the_table_has_a_line_for_every_situation() -> None:
    assert set(TABLE) == set(Situation)
    verdicts = {
        Proceed,
        Replay,
        Unseal,
        Rebuild,
        InProgress,
        KeyReused,
        OutcomeUnknown,
        KeyExpired,
        NotReplayable,
        Unreadable,
    }
    assert {rule.verdict for rule in TABLE.values()} == verdicts
    assert all(rule.why for rule in TABLE.values())
    assert all(TABLE[found].verdict is OutcomeUnknown for found in DOUBTS)
    assert len({place.value for place in Situation}) == len(Situation)


def test_every_verdict_except_for_a_damaged_answer_comes_from_the_table() -> None:
    for case in cases():
        row = row_of(case)
        verdict, line = decide_case(row, case), TABLE[situation_of(row, case)]
        damaged = line.verdict is Replay and case.answer in ("damaged", "half")
        assert type(verdict) is (Unreadable if damaged else line.verdict), case


def grant_for(row: Record | None, claim: Claim = OTHERS, now: int = NOW) -> Grant:
    verdict = decide(row, claim, now)
    assert isinstance(verdict, Proceed)
    return verdict.grant


def record(state: State, *, policy: Policy = EXTERNAL, at: int = NOW) -> Record:
    claim = attempt(nonce=1, policy=policy)
    return grant_row(None, claim, grant_for(None, claim, at))._replace(state=state)


def test_a_first_grant_follows_from_the_claim_and_the_clock() -> None:
    grant = grant_for(None, MINE)
    assert grant == Grant(
        id=MINE.id,
        nonce=MINE.nonce,
        fence=NOW,
        state=State.PROCESSING,
        generation=0,
        attempt=1,
        lapses=0,
        operation_id=MINE.operation_id,
        created_at=NOW,
        first_started_at=NOW,
        lease_until=NOW + 30_000_000,
        deadline_at=NOW + 300_000_000,
        dedup_until=NOW + 23 * 3_600_000_000,
    )


def test_a_claim_that_starts_later_is_reserved_only() -> None:
    assert grant_for(None, attempt(starts=State.CLAIMED)).state is State.CLAIMED


def test_a_takeover_keeps_the_operation_and_counts_the_crash() -> None:
    idempotent = Policy(effects="idempotent", dedup_for_seconds=3600)
    row = record(State.PROCESSING, policy=idempotent)
    later = row.lease_until + 5
    grant = grant_for(row, attempt(nonce=2, policy=idempotent), later)
    assert (grant.attempt, grant.lapses, grant.generation) == (2, 1, 0)
    assert (grant.operation_id, grant.created_at, grant.first_started_at) == (row.operation_id, NOW, NOW)
    assert (grant.nonce, grant.fence) == (OTHERS.nonce, later)
    assert grant.dedup_until == row.dedup_until  # from the first start, not from this one
    assert grant.deadline_at == later + 300_000_000


def test_a_released_lease_counts_no_crash() -> None:
    idempotent = Policy(effects="idempotent")
    row = record(State.PROCESSING, policy=idempotent)._replace(lease_until=0, lapses=1)
    assert grant_for(row, attempt(nonce=2, policy=idempotent)).lapses == 1


def test_a_reservation_that_lapsed_counts_no_crash() -> None:
    row = record(State.CLAIMED)
    stepped = attempt(nonce=2, starts=State.CLAIMED)
    assert grant_for(row, stepped, row.lease_until).lapses == 0


def test_an_attempt_without_steps_gets_no_reservation_before_its_steps_are_read() -> None:
    row = record(State.CLAIMED)
    verdict = decide(row, OTHERS, row.lease_until)
    assert verdict == Unreadable(row.operation_id, "steps")
    assert needs_steps(verdict)
    assert not needs_steps(decide(row, OTHERS, row.lease_until, begun=False))


def test_the_table_of_declarations_is_complete() -> None:
    assert set(LAPSED) == set(Was)
    assert all(set(line) == set(DeclaredTerms) for line in LAPSED.values())
    may = {(was, now) for was, line in LAPSED.items() for now in DeclaredTerms if TABLE[line[now]].verdict is Proceed}
    assert may == {
        (Was.IDEMPOTENT, DeclaredTerms.IDEMPOTENT),
        (Was.STEPS_BEGUN, DeclaredTerms.STEPS),
        *((Was.STEPS_NOT_BEGUN, each) for each in DeclaredTerms),
    }


@pytest.mark.parametrize(
    ("effects", "state", "late_us", "told"),
    [
        (Effects.EXTERNAL, State.PROCESSING, -1, State.PROCESSING),
        (Effects.EXTERNAL, State.PROCESSING, 0, State.UNKNOWN),
        (Effects.IDEMPOTENT, State.PROCESSING, 0, State.PROCESSING),  # the next attempt of its own runs it again
        (Effects.EXTERNAL, State.CLAIMED, 0, State.CLAIMED),
        (Effects.EXTERNAL, State.SUCCEEDED, 0, State.SUCCEEDED),
        (Effects.EXTERNAL, State.UNKNOWN, -1, State.UNKNOWN),
    ],
)
def test_a_reused_key_reports_the_state_of_the_first_request(
    effects: Effects, state: State, late_us: int, told: State
) -> None:
    policy = Policy(effects=effects)
    row = record(state, policy=policy)
    other = attempt(nonce=2, request=1, policy=policy)
    verdict = decide(row, other, row.lease_until + late_us)
    assert isinstance(verdict, KeyReused)
    assert (verdict.operation_id, verdict.state) == (row.operation_id, told)  # two of them are equal whatever they tell


@pytest.mark.parametrize("declares", CLAIMS)
@pytest.mark.parametrize("state", State)
def test_a_bulk_and_a_single_command_never_run_each_others_record(state: State, declares: str) -> None:
    """A bulk's recipe is its own: neither its items nor a command's effect are ever made again by the other."""
    single = CLAIMS[declares]
    bulk = attempt(nonce=2, recipe=BULK, starts=State.CLAIMED)
    for one, other in ((single, bulk), (bulk, single)):
        row = grant_row(None, one, grant_for(None, one))._replace(state=state)
        for now in (NOW, row.lease_until, row.dedup_until):
            assert decide(row, other, now, begun=False) == Unreadable(row.operation_id, "recipe", row.recipe)


def test_did_not_happen_resets_the_counts() -> None:
    row = record(State.FAILED_NOT_REPLAYABLE)._replace(lapses=4, generation=3)
    grant = grant_for(row, OTHERS, NOW + 7)
    assert (grant.lapses, grant.attempt, grant.generation) == (0, 2, 3)
    assert (grant.first_started_at, grant.created_at, grant.operation_id) == (NOW + 7, NOW, row.operation_id)


def test_an_expired_key_used_again_is_another_execution() -> None:
    row = record(State.SUCCEEDED, policy=Policy(after_expiry="new"))._replace(answer_until=NOW + 1, attempt=4, lapses=2)
    grant = grant_for(row, OTHERS, NOW + 1)
    assert (grant.attempt, grant.lapses, grant.generation) == (1, 0, 1)
    assert (grant.operation_id, grant.created_at, grant.first_started_at) == (OTHERS.operation_id, NOW + 1, NOW + 1)


@pytest.mark.parametrize("back", [0, 1, 10**15])
def test_the_fence_grows_though_the_clock_does_not(back: int) -> None:
    row = record(State.FAILED_NOT_REPLAYABLE)
    assert grant_for(row, OTHERS, NOW - back).fence == row.fence + 1


def test_a_read_back_changes_nothing() -> None:
    row = record(State.PROCESSING)._replace(lease_until=NOW + 9, attempt=3, lapses=2, generation=1)
    grant = grant_for(row, MINE, NOW + 5)
    assert grant_row(row, MINE, grant) == row
    assert not is_grant_new(row, grant)


@pytest.mark.parametrize("starts", [State.PROCESSING, State.CLAIMED])
def test_a_record_that_was_written_just_now_is_granted_by_one_comparison(starts: State) -> None:
    claim = attempt(starts=starts)
    row = grant_row(None, claim, first_grant(claim, NOW))
    assert find_first_grant(row, claim, NOW) == decide(row, claim, NOW) == Proceed(first_grant(claim, NOW))
    assert find_first_grant(row, claim, NOW + 1) is None  # it was read back: the grant is of another time
    for name in (*Grant._fields, "format", "recipe", "fingerprint", "settled_at"):
        value = getattr(row, name)
        other: Any = value + value if value else 1
        damaged = row._replace(**{name: other})
        assert find_first_grant(damaged, claim, NOW) is None, name


def test_a_lease_ends_no_later_than_the_deadline() -> None:
    short = Policy(lease_seconds=30, deadline_seconds=30)
    assert grant_for(None, attempt(policy=short)).lease_until == NOW + 30_000_000


def test_an_unknown_record_without_a_doubt_is_still_unknown() -> None:
    row = record(State.UNKNOWN)._replace(doubt=None)
    assert decide(row, OTHERS, NOW) == OutcomeUnknown(row.operation_id, "unknown")


@pytest.mark.parametrize(
    ("found", "doubt", "told"),
    [
        (Situation.EXTERNAL_LAPSED, "step:charge", "step:charge"),
        (Situation.EXTERNAL_LAPSED, "abandoned", "lapsed"),  # of a former attempt
        (Situation.EXTERNAL_LAPSED, None, "lapsed"),
        (Situation.ATOMIC_LAPSED, "step:charge", "committed-early"),
        (Situation.UNKNOWN, "http-500", "http-500"),
    ],
)
def test_a_lapse_sets_the_doubt_unless_a_step_was_running(found: Situation, doubt: str | None, told: str) -> None:
    assert doubt_of(record(State.PROCESSING)._replace(doubt=doubt), found) == told


def test_in_progress_never_promises_a_time_that_is_past() -> None:
    row = record(State.CLAIMED)
    assert decide(row, OTHERS, NOW + 29_999_999) == InProgress(row.operation_id, 1, state=State.CLAIMED)


def test_an_answer_with_malformed_headers_is_corrupt() -> None:
    block = b"\x00\x05ab"
    row = record(State.SUCCEEDED)._replace(
        answer_kind=AnswerKind.KEPT, headers=block, body=b"", status=200, answer_digest=answer_digest(200, block, b"")
    )
    assert decide(row, OTHERS, NOW) == Unreadable(row.operation_id, "corrupt")


def test_an_answer_without_a_status_is_replayed() -> None:
    row = record(State.SUCCEEDED)._replace(
        answer_kind=AnswerKind.KEPT, headers=b"", body=b"x", status=None, answer_digest=answer_digest(None, b"", b"x")
    )
    assert decide(row, OTHERS, NOW) == Replay(Answer(None, (), b"x"), row.operation_id, State.SUCCEEDED)


@pytest.mark.parametrize("state", list(State))
def test_a_record_of_another_format_is_never_read_run_or_replayed(state: State) -> None:
    row = record(state)._replace(format=2)
    assert situation(row, MINE, NOW) is Situation.CORRUPT
    assert decide(row, MINE, NOW + 10**15) == Unreadable(row.operation_id, "corrupt")


@pytest.mark.parametrize("policy", [Policy(effects="idempotent"), EXTERNAL], ids=["idempotent", "external"])
def test_a_list_of_steps_that_was_not_read_may_hold_one_that_has_begun(policy: Policy) -> None:
    """An explanation decides without the list: it must not say that nothing has begun."""
    row = record(State.CLAIMED, policy=Policy(steps=True))._replace(lease_until=NOW)
    claim = attempt(nonce=2, policy=policy)
    assert situation(row, claim, NOW) == situation(row, claim, NOW, begun=True)
    assert situation(row, claim, NOW) != situation(row, claim, NOW, begun=False)
    assert decide(row, claim, NOW) == decide(row, claim, NOW, begun=True)
