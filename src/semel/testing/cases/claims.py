"""Claims: verdicts of attempts, the rows of grants, reading a claim back, and releasing it."""

from __future__ import annotations

from semel.core.model import (
    AfterExpiry,
    AnswerKind,
    InProgress,
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Proceed,
    Replay,
    State,
    Unreadable,
)
from semel.policy import Policy
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, OK, attempt, scope
from semel.testing.bench import Bench

LEASE_US = 30_000_000
DAY_US = 86_400_000_000


def a_new_key_is_granted_and_written_whole(bench: Bench) -> None:
    """The record holds the whole attempt: identity, terms, and the times by the store's clock."""
    claim, now = attempt(), bench.clock()
    grant = bench.grant(claim)
    row = bench.row()
    assert (grant.fence, grant.attempt, grant.lapses, grant.generation) == (now, 1, 0, 0)
    assert (grant.created_at, grant.first_started_at) == (now, now)
    assert (grant.lease_until, grant.deadline_at) == (now + LEASE_US, now + 10 * LEASE_US)
    assert (row.tenant, row.caller, row.operation) == claim.scope
    assert (row.recipe, row.fingerprint, row.key_hash) == (claim.recipe, claim.fingerprint, claim.key_hash)
    assert (row.nonce, row.fence, row.holder) == (claim.nonce, grant.fence, claim.holder)
    assert (row.state, row.operation_id) == (State.PROCESSING, claim.operation_id)
    assert (row.answer_us, row.tombstone_us) == (DAY_US, 30 * DAY_US)
    assert (row.settled_at, row.answer_until, row.forget_after) == (None, None, None)
    assert row.answer_kind == AnswerKind.NONE


def a_running_key_is_in_progress_for_everybody_else(bench: Bench) -> None:
    """The duplicate gets the operation's id and the rest of the holder's lease."""
    bench.grant(attempt(nonce=1))
    bench.clock.advance(seconds=10)
    assert bench.claim(attempt(nonce=2)) == InProgress(attempt(nonce=1).operation_id, LEASE_US - 10_000_000)


def the_same_nonce_reads_its_own_claim_back(bench: Bench) -> None:
    """A claim whose reply was lost is repeated: the same grant, nothing written, and a copy changes nothing."""
    grant = bench.grant(attempt())
    before = bench.row()
    bench.clock.advance(seconds=5)
    assert bench.claim(attempt()) == Proceed(grant)
    assert bench.row() == before


def another_request_is_refused_in_every_state(bench: Bench) -> None:
    """One key, one request: the request is checked before the state, whatever the state is."""
    other = attempt(nonce=9, request=1)

    def check_refused(state: State) -> None:
        row = bench.row()
        assert bench.claim(other) == KeyReused(row.operation_id, state)  # for the key's own caller
        assert bench.row() == row

    grant = bench.grant(attempt(nonce=1, policy=IDEMPOTENT, starts=State.CLAIMED))
    check_refused(State.CLAIMED)  # live
    bench.clock.advance(LEASE_US)
    check_refused(State.CLAIMED)  # lapsed: not granted to another request either
    grant = bench.grant(attempt(nonce=2, policy=IDEMPOTENT))
    check_refused(State.PROCESSING)  # live
    bench.clock.advance(LEASE_US)
    check_refused(State.PROCESSING)  # lapsed: the next attempt may finish it
    bench.settle(grant, State.UNKNOWN, doubt="error")
    check_refused(State.UNKNOWN)
    bench.settle(grant, State.FAILED_NOT_REPLAYABLE)
    check_refused(State.PROCESSING)  # given back: the previous attempt may have begun
    grant = bench.grant(attempt(nonce=3, policy=IDEMPOTENT))
    check_refused(State.PROCESSING)
    bench.settle(grant)
    check_refused(State.SUCCEEDED)
    bench.clock.advance(DAY_US)
    check_refused(State.SUCCEEDED)  # EXPIRED
    bench.clock.advance(DAY_US)
    bench.purge()
    check_refused(State.SUCCEEDED)  # a tombstone without its answer


def another_request_is_refused_on_a_definite_refusal_too(bench: Bench) -> None:
    """FAILED_REPLAYABLE does not leak its answer to another request."""
    bench.settle(grant := bench.grant(), State.FAILED_REPLAYABLE)
    verdict = bench.claim(attempt(nonce=2, request=1))
    assert verdict == KeyReused(grant.operation_id, State.FAILED_REPLAYABLE)


def another_request_is_refused_where_the_first_had_no_effect(bench: Bench) -> None:
    """FAILED_NOT_REPLAYABLE frees the key for the same request alone."""
    bench.settle(grant := bench.grant(), State.FAILED_NOT_REPLAYABLE)
    verdict = bench.claim(attempt(nonce=2, request=1))
    assert verdict == KeyReused(grant.operation_id, State.FAILED_NOT_REPLAYABLE)


def another_request_is_refused_even_under_the_same_nonce(bench: Bench) -> None:
    """A nonce reads back its own request only."""
    grant = bench.grant(attempt())
    assert bench.claim(attempt(request=1)) == KeyReused(grant.operation_id, State.PROCESSING)


def an_idempotent_command_is_not_run_by_another_declaration(bench: Bench) -> None:
    """Its effect may have happened, and a handler not declared IDEMPOTENT promises no derived keys."""
    bench.grant(attempt(nonce=1, policy=IDEMPOTENT))
    bench.clock.advance(LEASE_US)
    unknown = OutcomeUnknown(attempt(nonce=1).operation_id, "effects-changed")
    before = bench.row()
    assert bench.claim(attempt(nonce=2)) == unknown
    assert bench.claim(attempt(nonce=3, starts=State.CLAIMED)) == unknown
    assert bench.do(lambda: bench.store.look((attempt(nonce=2),))) == [unknown]
    assert bench.row() == before
    assert bench.grant(attempt(nonce=4, policy=IDEMPOTENT)).attempt == 2


def a_reservation_without_steps_is_granted_to_every_declaration(bench: Bench) -> None:
    """CLAIMED and lapsed without a step: nothing had started, whatever the operation declares now."""
    for key, policy in (("external", EXTERNAL), ("idempotent", IDEMPOTENT)):
        again = attempt(key, nonce=2, policy=policy)
        bench.grant(attempt(key, nonce=1, starts=State.CLAIMED))
        bench.clock.advance(LEASE_US)
        assert bench.do(lambda again=again: bench.store.look((again,))) == [None]  # type: ignore[misc]
        assert bench.grant(again).attempt == 2


def another_recipe_is_neither_reuse_nor_run(bench: Bench) -> None:
    """Another configuration cannot compare this fingerprint: it gets the recipe, in every state."""
    grant = bench.grant()
    told = Unreadable(attempt().operation_id, "recipe", attempt().recipe)
    assert bench.claim(attempt(nonce=2, recipe="2.newer")) == told
    bench.settle(grant, State.FAILED_NOT_REPLAYABLE)
    assert bench.claim(attempt(nonce=2, recipe="2.newer")) == told


def keys_of_different_scopes_never_meet(bench: Bench) -> None:
    """The same key of another tenant, caller or operation is another record."""
    odd = ["alice", "Alice", "älice", "alice\x00", " alice", "\U0001f600", "a" * 2000]
    scopes = [scope(caller=name) for name in odd]
    scopes += [scope(tenant="emca"), scope("refund"), scope("pay", tenant="alice", caller="acme")]
    for number, place in enumerate(scopes):
        grant = bench.grant(attempt("k", nonce=number, within=place))
        row = bench.row(grant.id)
        assert (row.tenant, row.caller, row.operation) == place
    assert bench.do(bench.store.counts) == {int(State.PROCESSING): len(scopes)}


def a_batch_is_answered_in_its_order(bench: Bench) -> None:
    """New, known, and new again; two claims on one key in one batch are one grant."""
    bench.settle(bench.grant(attempt("b")))
    claims = [attempt("c"), attempt("b", nonce=2), attempt("a"), attempt("a", nonce=2)]
    verdicts = bench.do(lambda: bench.store.claim(claims))
    assert [type(verdict) for verdict in verdicts] == [Proceed, Replay, Proceed, InProgress]
    assert bench.do(lambda: bench.store.claim(())) == []


def an_attempt_that_comes_twice_in_a_batch_is_read_back(bench: Bench) -> None:
    """Also if it takes over a record, and an earlier attempt of the batch met that record."""
    bench.grant(attempt("k", policy=IDEMPOTENT))
    bench.clock.advance(seconds=120)
    reuses, again = attempt("k", nonce=3, request=1), attempt("k", nonce=2, policy=IDEMPOTENT)
    claims = [reuses, again, again, attempt("n"), attempt("n")]
    verdicts = bench.do(lambda: bench.store.claim(claims))
    assert [type(verdict) for verdict in verdicts] == [KeyReused, *[Proceed] * 4]
    assert (verdicts[1], verdicts[3]) == (verdicts[2], verdicts[4])


def look_tells_without_writing(bench: Bench) -> None:
    """A look returns None where a claim would write, else the verdict of that claim."""
    looks = (attempt("b", nonce=2), attempt("new"))
    bench.grant(attempt("b"))
    waiting, unseen = bench.do(lambda: bench.store.look(looks))
    assert isinstance(waiting, InProgress)
    assert unseen is None
    assert bench.do(lambda: bench.store.read((looks[1].id,))) == [None]


def a_claim_in_a_unit_is_a_claim(bench: Bench) -> None:
    """The form for an open transaction decides in the same way."""
    verdict = bench.do(lambda: bench.store.claim_in_unit(attempt()))
    assert isinstance(verdict, Proceed)
    assert isinstance(bench.do(lambda: bench.store.claim_in_unit(attempt(nonce=2))), InProgress)


def the_fence_grows_over_every_grant_and_over_oblivion(bench: Bench) -> None:
    """Release and regrant, takeover, resolution, purge and new claim: the fence always grows."""
    fences = []
    grant = bench.grant(attempt(nonce=1, policy=IDEMPOTENT))
    fences.append(grant.fence)
    bench.settle(grant, State.FAILED_NOT_REPLAYABLE)
    grant = bench.grant(attempt(nonce=2, policy=IDEMPOTENT))  # at the same microsecond
    fences.append(grant.fence)
    bench.clock.advance(LEASE_US)
    grant = bench.grant(attempt(nonce=3, policy=IDEMPOTENT))
    fences.append(grant.fence)
    bench.settle(grant, State.UNKNOWN)
    bench.resolve(grant, happened=False, forced=True)
    fences.append(bench.row().fence)
    grant = bench.grant(attempt(nonce=4, policy=IDEMPOTENT))
    fences.append(grant.fence)
    bench.settle(grant)
    bench.clock.advance(31 * DAY_US)
    assert bench.purge() == (0, 1)
    fences.append(bench.grant(attempt(nonce=5)).fence)
    assert fences == sorted(set(fences))


def the_fence_grows_even_if_the_clock_is_set_back(bench: Bench) -> None:
    """Only over a deletion does the fence need the clock; within a record it does not."""
    grant = bench.grant()
    bench.settle(grant, State.FAILED_NOT_REPLAYABLE)
    bench.clock.advance(seconds=-3600)
    assert bench.grant(attempt(nonce=2)).fence == grant.fence + 1


def a_lapsed_reservation_is_granted_anew(bench: Bench) -> None:
    """CLAIMED and lapsed: nothing had started. The operation keeps its id, its start and its generation."""
    first = bench.grant(attempt(nonce=1, starts=State.CLAIMED))
    bench.clock.advance(LEASE_US - 1)
    assert bench.claim(attempt(nonce=2)) == InProgress(first.operation_id, 1, state=State.CLAIMED)
    bench.clock.advance(1)
    second = bench.grant(attempt(nonce=2))
    assert (second.attempt, second.lapses, second.generation) == (2, 0, 0)
    assert (second.operation_id, second.created_at) == (first.operation_id, first.created_at)
    assert second.fence > first.fence


def a_lapsed_external_command_is_never_run_again(bench: Bench) -> None:
    """The retry gets UNKNOWN, and nothing is written: the holder keeps its fence."""
    bench.grant(attempt())
    row = bench.row()
    bench.clock.advance(LEASE_US)
    assert bench.claim(attempt(nonce=2)) == OutcomeUnknown(row.operation_id, "lapsed")
    assert bench.claim(attempt()) == OutcomeUnknown(row.operation_id, "lapsed")  # its own nonce does not help either
    assert bench.row() == row


def an_idempotent_command_is_granted_anew_until_its_cap(bench: Bench) -> None:
    """After three crashes (attempts_max=3) the fourth attempt is UNKNOWN, so that a poison command ends."""
    started = bench.clock()
    for crashes in range(3):
        grant = bench.grant(attempt(nonce=crashes, policy=IDEMPOTENT))
        assert (grant.attempt, grant.lapses, grant.first_started_at) == (crashes + 1, crashes, started)
        assert grant.operation_id == attempt(nonce=0).operation_id
        bench.clock.advance(LEASE_US)
    told = OutcomeUnknown(attempt(nonce=0).operation_id, "attempts-over")
    assert bench.claim(attempt(nonce=3, policy=IDEMPOTENT)) == told


def an_idempotent_command_is_not_repeated_after_the_downstream_forgot(bench: Bench) -> None:
    """dedup_for counts from the *first* start, over all takeovers."""
    policy = Policy(effects="idempotent", dedup_for_seconds=60)
    bench.grant(attempt(nonce=1, policy=policy))
    bench.clock.advance(LEASE_US)
    bench.grant(attempt(nonce=2, policy=policy))
    bench.clock.advance(LEASE_US)
    told = OutcomeUnknown(attempt(nonce=1).operation_id, "dedup-over")
    assert bench.claim(attempt(nonce=3, policy=policy)) == told


def a_visible_atomic_record_without_an_answer_is_unknown(bench: Bench) -> None:
    """A lapsed record that is visible proves that the handler committed early."""
    bench.grant(attempt(policy=Policy(effects="atomic")))
    bench.clock.advance(LEASE_US)
    told = OutcomeUnknown(attempt().operation_id, "committed-early")
    assert bench.claim(attempt(nonce=2, policy=Policy(effects="atomic"))) == told


def after_expiry_new_is_a_new_execution(bench: Bench) -> None:
    """A new operation id and a new generation: the downstream must not answer with the old result."""
    policy = Policy(after_expiry="new")
    first = bench.grant(attempt(nonce=1, policy=policy))
    bench.settle(first)
    bench.clock.advance(DAY_US - 1)
    assert isinstance(bench.claim(attempt(nonce=2, policy=policy)), Replay)
    bench.clock.advance(1)
    again = bench.grant(attempt(nonce=2, policy=policy))
    assert again.operation_id == attempt(nonce=2).operation_id != first.operation_id
    assert (again.generation, again.attempt, again.created_at) == (1, 1, bench.clock())
    row = bench.row()
    assert (row.answer_kind, row.body, row.settled_at, row.forget_after) == (AnswerKind.NONE, None, None, None)
    old, new = bench.do(lambda: bench.store.read_operations((first.operation_id, again.operation_id)))
    assert old is None
    assert new == row


def after_expiry_is_fixed_at_the_claim(bench: Bench) -> None:
    """A later configuration does not change this record."""
    bench.settle(bench.grant())
    bench.clock.advance(DAY_US)
    assert bench.claim(attempt(nonce=2, policy=Policy(after_expiry="new"))) == KeyExpired(attempt().operation_id)
    assert bench.row().after_expiry == AfterExpiry.REFUSE


def an_abandoned_claim_is_free_again(bench: Bench) -> None:
    """Its handler never ran: the key is released at once, and the record keeps its history."""
    grant = bench.grant()
    assert bench.abandon(attempt())
    row = bench.row()
    assert (row.state, row.doubt, row.fence) == (State.FAILED_NOT_REPLAYABLE, "abandoned", grant.fence)
    assert bench.grant(attempt(nonce=2)).attempt == 2


def a_claim_abandoned_before_it_landed_is_released_when_it_has(bench: Bench) -> None:
    """If the store has not seen the claim: False, so that the caller repeats. Seen later, even as UNKNOWN: released."""
    assert not bench.abandon(attempt())
    bench.grant()
    bench.clock.advance(LEASE_US)
    assert len(bench.lapse()) == 1
    assert bench.abandon(attempt())
    assert not bench.abandon(attempt())
    assert bench.row().state == State.FAILED_NOT_REPLAYABLE


def abandoning_touches_no_other_claim(bench: Bench) -> None:
    """It touches neither another attempt's claim, nor one that was settled or released."""
    grant = bench.grant(attempt(nonce=1, policy=IDEMPOTENT))
    assert not bench.abandon(attempt(nonce=2))
    bench.settle(grant, State.PROCESSING)
    assert not bench.abandon(attempt(nonce=1))
    bench.settle(bench.grant(attempt(nonce=3, policy=IDEMPOTENT)))
    assert not bench.abandon(attempt(nonce=3))
    assert bench.claim(attempt(nonce=4)) == Replay(OK, attempt(nonce=1).operation_id, State.SUCCEEDED)


def a_look_for_a_kept_answer_gives_nothing_else(bench: Bench) -> None:
    """It returns only an intact, unexpired answer of this very request; in all other cases a claim decides."""
    again = attempt(nonce=2)
    assert bench.look_for_kept(again) is None  # never seen
    grant = bench.grant(attempt(nonce=1))
    assert bench.look_for_kept(again) is None  # running
    bench.settle(grant)
    row = bench.row()
    assert bench.look_for_kept(again) == Replay(OK, grant.operation_id, State.SUCCEEDED) == bench.claim(again)
    assert bench.look_for_kept(attempt(request=1)) is None
    assert bench.look_for_kept(attempt(recipe="2.tests")) is None
    assert bench.look_for_kept(attempt("other")) is None
    assert bench.row() == row
    bench.corrupt(row._replace(body=b"another"))
    assert bench.look_for_kept(again) is None
    bench.corrupt(row)
    bench.clock.advance(DAY_US)
    assert bench.look_for_kept(again) is None  # its retention is over
    grant = bench.grant(attempt("k2"))
    bench.settle(grant, kept=False)
    assert bench.look_for_kept(attempt("k2", nonce=2)) is None


ALL = (
    a_look_for_a_kept_answer_gives_nothing_else,
    a_new_key_is_granted_and_written_whole,
    a_running_key_is_in_progress_for_everybody_else,
    the_same_nonce_reads_its_own_claim_back,
    another_request_is_refused_in_every_state,
    another_request_is_refused_on_a_definite_refusal_too,
    another_request_is_refused_where_the_first_had_no_effect,
    another_request_is_refused_even_under_the_same_nonce,
    an_idempotent_command_is_not_run_by_another_declaration,
    a_reservation_without_steps_is_granted_to_every_declaration,
    another_recipe_is_neither_reuse_nor_run,
    keys_of_different_scopes_never_meet,
    a_batch_is_answered_in_its_order,
    an_attempt_that_comes_twice_in_a_batch_is_read_back,
    look_tells_without_writing,
    a_claim_in_a_unit_is_a_claim,
    the_fence_grows_over_every_grant_and_over_oblivion,
    the_fence_grows_even_if_the_clock_is_set_back,
    a_lapsed_reservation_is_granted_anew,
    a_lapsed_external_command_is_never_run_again,
    an_idempotent_command_is_granted_anew_until_its_cap,
    an_idempotent_command_is_not_repeated_after_the_downstream_forgot,
    a_visible_atomic_record_without_an_answer_is_unknown,
    after_expiry_new_is_a_new_execution,
    after_expiry_is_fixed_at_the_claim,
    an_abandoned_claim_is_free_again,
    a_claim_abandoned_before_it_landed_is_released_when_it_has,
    abandoning_touches_no_other_claim,
)
