"""Settling: once, repeated, late, superseded; renewals; and operators' resolutions."""

from __future__ import annotations

from typing import TypedDict

from semel.core.model import (
    AlreadyMine,
    Answer,
    AnswerKind,
    MovedOn,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    Replay,
    Resolved,
    Settled,
    State,
    Superseded,
    TooEarly,
    Unreadable,
)
from semel.errors import ResolveRefused
from semel.policy import Policy
from semel.testing.attempts import IDEMPOTENT, OK, attempt, settlement
from semel.testing.bench import Bench
from semel.testing.cases.claims import DAY_US, LEASE_US


class _Given(TypedDict):
    happened: bool
    answer: Answer | None
    refused: bool


OTHER = Answer(409, (), b"out of stock")
FINAL = (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE)


def an_answer_is_replayed_as_it_was(bench: Bench) -> None:
    """Status, header pairs in their order, body bytes; of successes and of definite refusals."""
    odd = Answer(
        299,
        ((b"link", b"</a>, </b>"), (b"LINK", b""), (b"", b"\x00\xff"), (b"x" * 300, b"y" * 70_000)),
        bytes(range(256)) * 2,
    )
    silent = Answer(None, (), b"")
    large = Answer(200, (), b"\x00m" * (1 << 19))
    for number, answer in enumerate((OK, odd, silent, large)):
        for state in (State.SUCCEEDED, State.FAILED_REPLAYABLE):
            key = f"{number}-{state.name}"
            grant = bench.grant(attempt(key))
            assert bench.settle(grant, state, answer) == Settled()
            assert bench.claim(attempt(key, nonce=2)) == Replay(answer, grant.operation_id, state)
            assert bench.claim(attempt(key)) == Replay(answer, grant.operation_id, state)  # its own nonce too


def an_answer_in_a_buffer_is_replayed_as_bytes(bench: Bench) -> None:
    """Frameworks also send buffers as bodies; later changes of the buffer do not change the answer."""
    for number, kind in enumerate((bytearray, memoryview)):
        body, grant = bytearray(b"made"), bench.grant(attempt(f"{number}"))
        assert bench.settle(grant, answer=OK._replace(body=kind(body))) == Settled()
        body[:] = b"lost"
        expected = Replay(OK._replace(body=b"made"), grant.operation_id, State.SUCCEEDED)
        assert bench.claim(attempt(f"{number}", nonce=2)) == expected


def a_command_without_a_kept_answer_is_done_all_the_same(bench: Bench) -> None:
    """NotReplayable, with the resource, and never run again."""
    for state in (State.SUCCEEDED, State.FAILED_REPLAYABLE):
        grant = bench.grant(attempt(state.name))
        last = settlement(grant, state, kept=False)._replace(resource_type="payment", resource_id="7")
        assert bench.do(lambda last=last: bench.store.settle((last,))) == [Settled()]  # type: ignore[misc]
        assert bench.claim(attempt(state.name, nonce=2)) == NotReplayable(grant.operation_id, "payment", "7")
        assert (bench.row(grant.id).body, bench.row(grant.id).headers) == (None, None)


def a_settlement_is_written_whole(bench: Bench) -> None:
    """The record has everything of the settlement, and the three times."""
    grant, now = bench.grant(), bench.clock.advance(seconds=3)
    last = settlement(grant)._replace(
        error_code="E1", business_ref="INV-7", resource_type="payment", resource_id="\U0001f600"
    )
    assert bench.do(lambda: bench.store.settle((last,))) == [Settled()]
    row = bench.row()
    assert (row.error_code, row.business_ref) == ("E1", "INV-7")
    assert (row.resource_type, row.resource_id) == ("payment", "\U0001f600")
    assert (row.settled_at, row.answer_until, row.forget_after) == (now, now + DAY_US, now + 30 * DAY_US)
    assert (row.status, row.body, row.answer_kind) == (201, b"made", AnswerKind.KEPT)


def a_repeated_settlement_is_recognised(bench: Bench) -> None:
    """It gets "already mine" in every final state; nothing is written again, not even the time."""
    for state in FINAL:
        grant = bench.grant(attempt(state.name))
        assert bench.settle(grant, state) == Settled()
        row = bench.row(grant.id)
        bench.clock.advance(seconds=1)
        assert bench.settle(grant, state) == AlreadyMine()
        assert bench.row(grant.id) == row


def a_holder_cannot_change_its_mind(bench: Bench) -> None:
    """A second settlement with another answer or another state is refused."""
    grant = bench.grant()
    bench.settle(grant)
    assert bench.settle(grant, answer=OTHER) == Superseded(State.SUCCEEDED)
    assert bench.settle(grant, State.FAILED_REPLAYABLE) == Superseded(State.SUCCEEDED)
    assert bench.settle(grant, State.UNKNOWN) == Superseded(State.SUCCEEDED)
    assert bench.claim(attempt(nonce=2)) == Replay(OK, grant.operation_id, State.SUCCEEDED)


def a_superseded_holder_writes_nothing(bench: Bench) -> None:
    """After a takeover, no settlement, renewal, mark or abandonment of the old holder takes effect."""
    old = bench.grant(attempt(nonce=1, policy=IDEMPOTENT))
    bench.clock.advance(LEASE_US)
    bench.grant(attempt(nonce=2, policy=IDEMPOTENT))
    row = bench.row()
    for state in (*FINAL, State.UNKNOWN, State.PROCESSING):
        assert bench.settle(old, state) == Superseded(State.PROCESSING)
    assert not bench.renew(old)
    assert not bench.mark_not_kept(old)
    assert not bench.abandon(attempt(nonce=1))
    assert bench.row() == row


def a_guess_at_fence_or_nonce_is_not_enough(bench: Bench) -> None:
    """Every write names both; either alone matches nothing."""
    grant = bench.grant()
    row = bench.row()
    for guess in (grant._replace(fence=grant.fence + 1), grant._replace(nonce=bytes(16))):
        assert bench.settle(guess) == Superseded(State.PROCESSING)
        assert not bench.renew(guess)
        assert not bench.mark_not_kept(guess)
    assert bench.row() == row


def what_was_never_claimed_cannot_be_settled(bench: Bench) -> None:
    """The record is gone, or never existed."""
    grant = bench.grant(attempt("a"))._replace(id=attempt("b").id)
    assert bench.settle(grant) == Superseded(None)
    assert not bench.renew(grant)
    assert bench.resolve(grant) == MovedOn(None)


def a_late_holder_may_still_tell_the_truth(bench: Bench) -> None:
    """A lapse destroys nothing: a holder that was not superseded may settle, before and after the reaper."""
    for seen in (False, True):
        grant = bench.grant(attempt(str(seen)))
        bench.clock.advance(10 * LEASE_US)
        assert len(bench.lapse() if seen else []) == seen
        assert bench.settle(grant) == Settled()
        assert bench.claim(attempt(str(seen), nonce=2)) == Replay(OK, grant.operation_id, State.SUCCEEDED)
        assert bench.row(grant.id).settled_at == bench.clock()


def a_late_holder_may_renew_from_unknown_by_lapse(bench: Bench) -> None:
    """The state is PROCESSING again; after the deadline no renewal is possible."""
    grant = bench.grant()
    bench.clock.advance(LEASE_US)
    assert [row.doubt for row in bench.lapse()] == ["lapsed"]
    assert bench.renew(grant)
    row = bench.row()
    assert (row.state, row.doubt, row.lease_until) == (State.PROCESSING, None, bench.clock() + LEASE_US)
    bench.clock.set(grant.deadline_at - 1)
    assert bench.renew(grant)
    assert bench.row().lease_until == grant.deadline_at
    bench.clock.advance(1)
    assert not bench.renew(grant)
    assert bench.claim(attempt(nonce=2)) == OutcomeUnknown(grant.operation_id, "lapsed")


def only_a_living_open_holder_renews(bench: Bench) -> None:
    """A holder that settled, gave its lease back, or reported UNKNOWN cannot renew."""
    for state in (*FINAL, State.UNKNOWN, State.PROCESSING):
        grant = bench.grant(attempt(state.name, policy=IDEMPOTENT))
        bench.settle(grant, state, doubt="error")
        assert not bench.renew(grant)


def an_unknown_word_keeps_its_doubt(bench: Bench) -> None:
    """If the handler reports UNKNOWN, every attempt gets its reason, until an operator settles."""
    grant = bench.grant()
    assert bench.settle(grant, State.UNKNOWN, doubt="error:TimeoutError") == Settled()
    assert bench.claim(attempt(nonce=2)) == OutcomeUnknown(grant.operation_id, "error:TimeoutError")
    row = bench.row()
    assert (row.settled_at, row.answer_until, row.forget_after) == (None, None, None)
    assert bench.settle(grant) == Settled()


def a_lease_given_back_is_free_at_once(bench: Bench) -> None:
    """An IDEMPOTENT handler raised: a retry runs the same operation, no crash counts, and the old grant is over."""
    for tries in range(5):  # more than attempts_max, since these were no crashes
        grant = bench.grant(attempt(nonce=tries, policy=IDEMPOTENT))
        assert (grant.attempt, grant.lapses) == (tries + 1, 0)
        assert bench.settle(grant, State.PROCESSING, doubt="error") == Settled()
        assert bench.settle(grant, State.PROCESSING, doubt="error") == AlreadyMine()
        assert bench.settle(grant) == Superseded(State.PROCESSING)
        assert not bench.mark_not_kept(grant)


def a_mark_says_that_no_answer_will_be_kept(bench: Bench) -> None:
    """It is set on an open record, before the first byte leaves; the record stays open."""
    grant = bench.grant()
    assert bench.mark_not_kept(grant)
    assert (bench.row().state, bench.row().answer_kind) == (State.PROCESSING, AnswerKind.NOT_KEPT)
    assert bench.renew(grant)
    assert bench.row().answer_kind == AnswerKind.NOT_KEPT
    bench.settle(grant, kept=False)
    assert isinstance(bench.claim(attempt(nonce=2)), NotReplayable)


def a_mark_takes_no_answer_away(bench: Bench) -> None:
    """The mark is for open records only: an answer that may have reached a client stays."""
    grant = bench.grant()
    bench.settle(grant)
    assert not bench.mark_not_kept(grant)
    assert bench.claim(attempt(nonce=2)) == Replay(OK, grant.operation_id, State.SUCCEEDED)


def a_corrupt_answer_is_refused_and_never_run(bench: Bench) -> None:
    """The digest detects a flipped bit, whatever its cause; the key stays blocked."""
    grant = bench.grant()
    bench.settle(grant)
    row = bench.row()
    assert row.body is not None
    bench.corrupt(row._replace(body=b"M" + row.body[1:]))
    assert bench.claim(attempt(nonce=2)) == Unreadable(grant.operation_id, "corrupt")
    assert bench.claim(attempt()) == Unreadable(grant.operation_id, "corrupt")


def an_unknown_state_is_refused_and_never_run(bench: Bench) -> None:
    """The state is from a newer Semel, or has a flipped bit."""
    grant = bench.grant()
    bench.corrupt(bench.row()._replace(state=77))
    assert bench.claim(attempt(nonce=2)) == Unreadable(grant.operation_id, "corrupt")


def an_operator_settles_an_unknown_record(bench: Bench) -> None:
    """The operator settles it with an answer, without one, or as "did not happen"; the former holder is superseded."""
    for name, happened, answer in (("found", True, OTHER), ("done", True, None), ("not", False, None)):
        grant = bench.grant(attempt(name))
        bench.clock.advance(10 * LEASE_US)
        reply = bench.resolve(grant, happened=happened, answer=answer)
        state = State.SUCCEEDED if happened else State.FAILED_NOT_REPLAYABLE
        assert reply == Resolved(state)
        row = bench.row(grant.id)
        assert (row.state, row.doubt, row.settled_at) == (state, None, bench.clock())
        assert row.fence > grant.fence
        assert row.generation == (0 if happened else 1)
        assert bench.settle(grant) == Superseded(state)
        assert not bench.renew(grant)
        assert not bench.mark_not_kept(grant)
    assert bench.claim(attempt("found", nonce=2)) == Replay(OTHER, attempt("found").operation_id, State.SUCCEEDED)
    assert isinstance(bench.claim(attempt("done", nonce=2)), NotReplayable)
    assert bench.grant(attempt("not", nonce=2)).generation == 1


def an_operator_must_wait_for_the_deadline_or_force(bench: Bench) -> None:
    """The handler may still be running: the settlement is refused with the time left, unless forced."""
    grant = bench.grant()
    bench.clock.advance(LEASE_US)
    assert bench.resolve(grant, happened=False) == TooEarly(9 * LEASE_US)
    assert bench.resolve(grant, happened=False, forced=True) == Resolved(State.FAILED_NOT_REPLAYABLE)


def an_operator_settles_only_what_was_seen(bench: Bench) -> None:
    """The settlement is a compare-and-set on the fence; a living holder's record or a settled one is refused."""
    grant = bench.grant(attempt(nonce=1, policy=IDEMPOTENT))
    assert bench.resolve(grant, forced=True) == MovedOn(State.PROCESSING)  # the holder is alive
    bench.clock.advance(LEASE_US)
    later = bench.grant(attempt(nonce=2, policy=IDEMPOTENT))
    bench.clock.advance(LEASE_US)
    assert bench.resolve(grant, forced=True) == MovedOn(State.PROCESSING)  # not the record that the operator saw
    bench.settle(later)
    assert bench.resolve(later, forced=True) == MovedOn(State.SUCCEEDED)
    assert bench.do(lambda: bench.store.audit(None, 10)) == []


def an_operator_ends_a_command_that_rests_between_its_steps(bench: Bench) -> None:
    """Only a final resolution is accepted, and only after its lease; a late retry gets that outcome."""
    ends = ((True, False, State.SUCCEEDED), (True, True, State.FAILED_REPLAYABLE), (False, False, FINAL[2]))
    for happened, refused, state in ends:
        claim = attempt(state.name, starts=State.CLAIMED)
        grant = bench.grant(claim)
        given: _Given = {"happened": happened, "answer": OTHER if happened else None, "refused": refused}
        assert bench.resolve(grant, **given, forced=True, ends=()) == MovedOn(State.CLAIMED)  # the holder is alive
        bench.clock.advance(LEASE_US)
        row = bench.row(grant.id)
        assert bench.resolve(grant, **given, forced=True) == MovedOn(State.CLAIMED)  # a retry continues
        assert bench.resolve(grant, **given, ends=()) == TooEarly(9 * LEASE_US)
        why = ""
        try:
            bench.resolve(grant, **given, forced=True, ends=(("mail", False),))
        except ResolveRefused as error:
            why = str(error)
        assert "no step 'mail'" in why
        assert bench.row(grant.id) == row
        assert bench.resolve(grant, **given, forced=True, ends=()) == Resolved(state)
        row = bench.row(grant.id)
        assert (row.state, row.doubt, row.settled_at, row.request) == (state, None, bench.clock(), None)
        assert row.fence > grant.fence
        assert bench.settle(grant) == Superseded(state)
        assert not bench.renew(grant)
        assert bench.resolve(grant, **given, forced=True, ends=()) == MovedOn(state)
        again = bench.claim(attempt(state.name, nonce=2, starts=State.CLAIMED))
        assert again == Replay(OTHER, grant.operation_id, state) if happened else isinstance(again, Proceed)
    lines = bench.do(lambda: bench.store.audit(None, 10))
    said = ["resolve:did-not-happen", "resolve:refused", "resolve:succeeded"]
    assert [line.action for line in lines] == said


def every_resolution_is_audited(bench: Bench) -> None:
    """The audit has the operator, the resolution, the reason and the fence; newest first, for one record or all."""
    for key in ("a", "b"):
        grant = bench.grant(attempt(key))
        bench.clock.advance(10 * LEASE_US)
        bench.resolve(grant, happened=key == "a", answer=OK if key == "a" else None)
    lines = bench.do(lambda: bench.store.audit(None, 10))
    assert [line.action for line in lines] == ["resolve:did-not-happen", "resolve:succeeded"]
    assert {(line.actor, line.reason) for line in lines} == {("olga", "asked the provider")}
    assert [line.fence for line in lines] == [bench.row(attempt(key).id).fence for key in ("b", "a")]
    assert bench.do(lambda: bench.store.audit(attempt("a").id, 10)) == lines[1:]
    assert bench.do(lambda: bench.store.audit(None, 1)) == lines[:1]


def a_policy_that_changed_does_not_change_a_record(bench: Bench) -> None:
    """The claim's terms apply until the next grant."""
    grant = bench.grant(attempt(policy=Policy(answer_seconds=60, tombstone_seconds=120)))
    bench.settle(grant)
    assert bench.row().answer_until == bench.clock() + 60_000_000
    assert bench.row().forget_after == bench.clock() + 120_000_000


ALL = (
    an_answer_is_replayed_as_it_was,
    an_answer_in_a_buffer_is_replayed_as_bytes,
    a_command_without_a_kept_answer_is_done_all_the_same,
    a_settlement_is_written_whole,
    a_repeated_settlement_is_recognised,
    a_holder_cannot_change_its_mind,
    a_superseded_holder_writes_nothing,
    a_guess_at_fence_or_nonce_is_not_enough,
    what_was_never_claimed_cannot_be_settled,
    a_late_holder_may_still_tell_the_truth,
    a_late_holder_may_renew_from_unknown_by_lapse,
    only_a_living_open_holder_renews,
    an_unknown_word_keeps_its_doubt,
    a_lease_given_back_is_free_at_once,
    a_mark_says_that_no_answer_will_be_kept,
    a_mark_takes_no_answer_away,
    a_corrupt_answer_is_refused_and_never_run,
    an_unknown_state_is_refused_and_never_run,
    an_operator_settles_an_unknown_record,
    an_operator_must_wait_for_the_deadline_or_force,
    an_operator_settles_only_what_was_seen,
    an_operator_ends_a_command_that_rests_between_its_steps,
    every_resolution_is_audited,
    a_policy_that_changed_does_not_change_a_record,
)
