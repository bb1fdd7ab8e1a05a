"""Every interleaving of two and three holders, retries, operators and reapers on one key, on both stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from semel.core.flow import Flow, ask
from semel.core.model import (
    AlreadyMine,
    AnswerKind,
    Claim,
    Grant,
    InProgress,
    KeyExpired,
    MovedOn,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    Purged,
    Record,
    Replay,
    Resolution,
    Resolved,
    Settled,
    Settling,
    State,
    Superseded,
    Verdict,
)
from semel.core.requests import Perform
from semel.core.timing import PURGE_GRACE_US
from semel.policy import Policy
from semel.testing.attempts import IDEMPOTENT, OK, attempt, renewal, settlement
from semel.testing.interleave import Act, MemoryWorld, Program, Run, SqliteWorld, World, interleavings

LEASE_US = 30_000_000
DAY_US = 86_400_000_000
WORLDS = pytest.mark.parametrize(
    "make", [MemoryWorld, SqliteWorld, partial(SqliteWorld, fine=True)], ids=["memory", "sqlite", "sqlite-fine"]
)

# --- programs ---


def claims(claim: Claim) -> Program:
    def program(world: World) -> Flow[Verdict]:
        [verdict] = yield from ask(Perform("claim", lambda: world.store.claim((claim,))))
        return verdict

    return program


def runs(claim: Claim) -> Program:
    """Claims, and where that is granted has its effect and settles: the life of a caller."""

    def program(world: World) -> Flow[Verdict | Settling]:
        verdict: Verdict = yield from claims(claim)(world)
        if not isinstance(verdict, Proceed):
            return verdict
        reply: Settling = yield from settles(verdict.grant)(world)
        return reply

    return program


def settles(grant: Grant, state: State = State.SUCCEEDED, *, kept: bool = True) -> Program:
    last = settlement(grant, state, kept=kept)

    def program(world: World) -> Flow[Settling]:
        [reply] = yield from ask(Perform("settle", lambda: world.store.settle((last,))))
        return reply

    return program


def renews(grant: Grant) -> Program:
    return lambda world: _only(Perform("renew", lambda: world.store.renew((renewal(grant),))))


def marks(grant: Grant) -> Program:
    return lambda world: _only(Perform("mark", lambda: world.store.mark_not_kept((renewal(grant),))))


def abandons(claim: Claim) -> Program:
    return lambda world: _only(Perform("abandon", lambda: world.store.abandon(((claim.id, claim.nonce),))))


def _only(needed: Perform[list[Any]]) -> Flow[Any]:
    return (yield from ask(needed))[0]


def lapses(world: World) -> Flow[list[Record]]:
    return (yield from ask(Perform("lapse", lambda: world.store.lapse(10))))


def purges(world: World) -> Flow[Purged]:
    return (yield from ask(Perform("purge", lambda: world.store.purge(None, 10))))


def resolves(grant: Grant, *, happened: bool) -> Program:
    resolution = Resolution(grant.id, grant.fence, happened, None, "olga", "asked", True)
    return lambda world: ask(Perform("resolve", lambda: world.store.resolve(resolution)))


def moves_the_clock(us: int) -> Program:
    return lambda world: ask(Act(partial(world.clock.advance, us)))


# --- the same start for every run ---


def after(start: Callable[[World], None], make: Callable[[], World]) -> Callable[[], World]:
    def make_started() -> World:
        world = make()
        start(world)
        return world

    return make_started


def claim_grant(world: World, claim: Claim) -> Grant:
    [verdict] = world.do(lambda: world.store.claim((claim,)))
    assert isinstance(verdict, Proceed)
    return verdict.grant


def grant_of(claim: Claim) -> Grant:
    """The grant that a first claim gets in every world: their clocks start alike."""
    return claim_grant(MemoryWorld(), claim)


def row(world: World) -> Record | None:
    return world.do(lambda: world.store.read((attempt().id,)))[0]


def state(run: Run) -> int | None:
    found = row(run.world)
    return None if found is None else found.state


def names(results: Sequence[object]) -> list[str]:
    return [type(result).__name__ for result in results]


# --- the enumerator itself ---


def test_every_interleaving_runs_once() -> None:
    """Two programs of two and three steps: 5! / (2! 3!) = 10 orders; three of two: 6! / 2!³ = 90."""

    def steps(count: int) -> Program:
        def program(world: World) -> Flow[int]:
            for _ in range(count):
                yield from ask(Act(lambda: None))
            return count

        return program

    two = [run.schedule for run in interleavings(MemoryWorld, [steps(2), steps(3)])]
    assert len(two) == len(set(two)) == 10
    three = [run.schedule for run in interleavings(MemoryWorld, [steps(2), steps(2), steps(2)])]
    assert len(three) == len(set(three)) == 90


# --- claims ---


@pytest.mark.parametrize("make", [MemoryWorld, SqliteWorld], ids=["memory", "sqlite"])
@pytest.mark.parametrize("callers", [2, 3])
def test_claims_on_one_key_are_one_grant(make: Callable[[], World], callers: int) -> None:
    programs = [claims(attempt(nonce=n)) for n in range(callers)]
    for run in interleavings(make, programs):
        assert sorted(names(run.results)) == ["InProgress"] * (callers - 1) + ["Proceed"], run.schedule
        winner = next(result.grant for result in run.results if isinstance(result, Proceed))
        found = row(run.world)
        assert found is not None
        assert (found.nonce, found.fence) == (winner.nonce, winner.fence)


@WORLDS
def test_a_claim_delivered_twice_is_one_grant(make: Callable[[], World]) -> None:
    for run in interleavings(make, [claims(attempt()), claims(attempt())]):
        assert isinstance(run.results[0], Proceed)
        assert run.results[0] == run.results[1], run.schedule


@WORLDS
def test_two_callers_have_one_effect_and_one_answer(make: Callable[[], World]) -> None:
    for run in interleavings(make, [runs(attempt(nonce=1)), runs(attempt(nonce=2))]):
        assert names(run.results).count("Settled") == 1, run.schedule
        other = next(result for result in run.results if not isinstance(result, Settled))
        assert isinstance(other, (InProgress, Replay))
        assert state(run) == State.SUCCEEDED


@WORLDS
def test_a_claim_meets_a_settlement(make: Callable[[], World]) -> None:
    claim = attempt(nonce=1)
    start = after(lambda world: _ignore(claim_grant(world, claim)), make)
    for run in interleavings(start, [claims(attempt(nonce=2)), settles(grant_of(claim))]):
        verdict, reply = run.results
        assert reply == Settled(), run.schedule
        assert isinstance(verdict, (InProgress, Replay))


def _ignore(_: object) -> None:
    return None


# --- takeovers and lapses ---


@WORLDS
def test_a_takeover_a_late_settlement_and_a_renewal(make: Callable[[], World]) -> None:
    """IDEMPOTENT and lapsed. Either the old holder stays and the new caller waits or replays, or it is fenced off."""
    claim = attempt(nonce=1, policy=IDEMPOTENT)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US)

    old = grant_of(claim)
    programs = [claims(attempt(nonce=2, policy=IDEMPOTENT)), settles(old), renews(old)]
    for run in interleavings(after(start, make), programs):
        verdict, reply, renewed = run.results
        if isinstance(verdict, Proceed):
            assert reply == Superseded(State.PROCESSING), run.schedule
            assert state(run) == State.PROCESSING
            found = row(run.world)
            assert found is not None
            assert found.fence == verdict.grant.fence
        else:
            assert reply == Settled(), run.schedule
            assert isinstance(verdict, Replay if not renewed else (InProgress, Replay)), run.schedule
            assert state(run) == State.SUCCEEDED


@WORLDS
def test_two_takeovers_and_a_late_settlement_have_one_winner(make: Callable[[], World]) -> None:
    claim = attempt(nonce=1, policy=IDEMPOTENT)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US)

    programs = [claims(attempt(nonce=n, policy=IDEMPOTENT)) for n in (2, 3)]
    for run in interleavings(after(start, make), [*programs, settles(grant_of(claim))]):
        assert names(run.results).count("Proceed") + names(run.results).count("Settled") == 1, run.schedule


@WORLDS
def test_a_lease_ends_during_concurrent_steps(make: Callable[[], World]) -> None:
    """EXTERNAL, with the clock as one of the actors: never a second grant, and the truth is kept."""
    claim = attempt(nonce=1)
    start = after(lambda world: _ignore(claim_grant(world, claim)), make)
    programs = [moves_the_clock(LEASE_US), lapses, claims(attempt(nonce=2)), settles(grant_of(claim))]
    for run in interleavings(start, programs):
        _, _, verdict, reply = run.results
        assert isinstance(verdict, (InProgress, OutcomeUnknown, Replay)), run.schedule
        assert reply == Settled(), run.schedule
        assert state(run) == State.SUCCEEDED


@WORLDS
def test_a_reaper_meets_a_renewal(make: Callable[[], World]) -> None:
    """In every order a live holder's renewal succeeds: a reaper takes nothing from it."""
    claim = attempt(nonce=1)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US)

    for run in interleavings(after(start, make), [lapses, renews(grant_of(claim))]):
        assert run.results[1] is True, run.schedule


@WORLDS
def test_two_renewals_of_one_holder_both_hold(make: Callable[[], World]) -> None:
    """The second beat begins while the first is still out: neither may be told that the lease is lost."""
    claim = attempt(nonce=1, policy=IDEMPOTENT)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US // 3)

    again = grant_of(claim)
    for run in interleavings(after(start, make), [renews(again), moves_the_clock(5), renews(again)]):
        assert (run.results[0], run.results[2]) == (True, True), run.schedule


@WORLDS
def test_a_renewal_meets_a_mark(make: Callable[[], World]) -> None:
    """Both hold, and neither undoes the other."""
    claim = attempt(nonce=1)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US // 3)

    grant = grant_of(claim)
    for run in interleavings(after(start, make), [renews(grant), marks(grant)]):
        assert run.results == (True, True), run.schedule
        found = row(run.world)
        assert found is not None
        assert found.answer_kind == AnswerKind.NOT_KEPT, run.schedule
        assert found.lease_until == run.world.clock() + LEASE_US, run.schedule


@WORLDS
def test_a_renewal_and_a_mark_meet_a_settlement(make: Callable[[], World]) -> None:
    """Nothing takes a stored answer away, whichever way the three cross."""
    claim = attempt(nonce=1)
    grant = grant_of(claim)
    start = after(lambda world: _ignore(claim_grant(world, claim)), make)
    for run in interleavings(start, [renews(grant), settles(grant), marks(grant)]):
        assert run.results[1] == Settled(), run.schedule
        [verdict] = run.world.do(partial(run.world.store.claim, (attempt(nonce=2),)))
        assert verdict == Replay(OK, claim.operation_id, State.SUCCEEDED), run.schedule


# --- operators ---


@WORLDS
@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("seen", [True, False], ids=["marked", "lapsed"])
def test_a_resolution_meets_a_settlement(make: Callable[[], World], happened: bool, seen: bool) -> None:
    """One of them takes effect, and the other one's reply says so."""
    claim = attempt(nonce=1)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US)
        if seen:
            world.do(lambda: world.store.lapse(1))

    grant = grant_of(claim)
    programs = [resolves(grant, happened=happened), settles(grant), claims(attempt(nonce=2))]
    for run in interleavings(after(start, make), programs):
        resolved, reply, verdict = run.results
        audits = run.world.do(partial(run.world.store.audit, None, 10))
        if isinstance(reply, Settled):
            assert resolved == MovedOn(State.SUCCEEDED), run.schedule
            assert isinstance(verdict, (OutcomeUnknown, Replay)), run.schedule
            assert audits == []
        else:
            assert isinstance(resolved, Resolved), run.schedule
            assert isinstance(reply, Superseded), run.schedule
            expected = (OutcomeUnknown, NotReplayable) if happened else (OutcomeUnknown, Proceed)
            assert isinstance(verdict, expected), run.schedule
            assert len(audits) == 1


@WORLDS
def test_two_operators_settle_once(make: Callable[[], World]) -> None:
    claim = attempt(nonce=1)

    def start(world: World) -> None:
        claim_grant(world, claim)
        world.clock.advance(LEASE_US)

    grant = grant_of(claim)
    programs = [resolves(grant, happened=True), resolves(grant, happened=False)]
    for run in interleavings(after(start, make), programs):
        assert sorted(names(run.results)) == ["MovedOn", "Resolved"], run.schedule
        assert len(run.world.do(partial(run.world.store.audit, None, 10))) == 1


# --- purges ---


@WORLDS
def test_a_purge_meets_a_replay(make: Callable[[], World]) -> None:
    """Whole or expired, never half, and never run again before the tombstone is gone."""
    claim = attempt(nonce=1)

    def start(world: World) -> None:
        grant = claim_grant(world, claim)
        world.do(lambda: world.store.settle((settlement(grant),)))
        world.clock.advance(DAY_US - 1)  # both its end and the purge's grace fall into the run

    programs = [moves_the_clock(1), moves_the_clock(PURGE_GRACE_US), purges, claims(attempt(nonce=2))]
    for run in interleavings(after(start, make), programs):
        wanted = (Replay(OK, claim.operation_id, State.SUCCEEDED), KeyExpired(claim.operation_id))
        # The grace covers any command that is under way; one that hangs for ten minutes is told less, never more.
        assert run.results[3] in (*wanted, NotReplayable(claim.operation_id)), run.schedule
        assert run.results[3] in wanted or run.schedule.index(1) > run.schedule.index(3), run.schedule


@WORLDS
@pytest.mark.parametrize("policy", [Policy(), Policy(after_expiry="new")], ids=["refuse", "new"])
def test_a_purge_that_forgets_meets_a_claim(make: Callable[[], World], policy: Policy) -> None:
    """The key is expired or free; two purges beside it take nothing that was granted meanwhile."""
    claim = attempt(nonce=1, policy=policy)

    def start(world: World) -> None:
        grant = claim_grant(world, claim)
        world.do(lambda: world.store.settle((settlement(grant),)))
        world.clock.advance(31 * DAY_US)

    for run in interleavings(after(start, make), [purges, purges, claims(attempt(nonce=2, policy=policy))]):
        verdict = run.results[2]
        found = row(run.world)
        if isinstance(verdict, Proceed):
            assert found is not None, run.schedule
            assert found.fence == verdict.grant.fence
            assert verdict.grant.fence > grant_of(claim).fence
        else:
            assert verdict == KeyExpired(claim.operation_id), run.schedule
            assert found is None


# --- claims that were given up ---


@WORLDS
def test_an_abandonment_meets_its_own_late_claim(make: Callable[[], World]) -> None:
    """Seen: released. Not seen: False, so that it is repeated, and then it is."""
    claim = attempt(nonce=1)
    for run in interleavings(make, [abandons(claim), claims(claim)]):
        released, verdict = run.results
        assert isinstance(verdict, Proceed), run.schedule
        assert state(run) == (State.FAILED_NOT_REPLAYABLE if released else State.PROCESSING)
        [again] = run.world.do(partial(run.world.store.abandon, [(claim.id, claim.nonce)]))
        assert again is not released
        assert state(run) == State.FAILED_NOT_REPLAYABLE


@WORLDS
def test_an_abandonment_meets_another_caller(make: Callable[[], World]) -> None:
    """It releases its own claim and never the other's."""
    mine, other = attempt(nonce=1), attempt(nonce=2)
    start = after(lambda world: _ignore(claim_grant(world, mine)), make)
    for run in interleavings(start, [abandons(mine), runs(other)]):
        released, ended = run.results
        assert released is True, run.schedule
        assert isinstance(ended, (InProgress, Settled)), run.schedule
        assert state(run) == (State.SUCCEEDED if isinstance(ended, Settled) else State.FAILED_NOT_REPLAYABLE)


@WORLDS
def test_the_same_settlement_delivered_three_times(make: Callable[[], World]) -> None:
    claim = attempt(nonce=1)
    for last in (State.SUCCEEDED, State.FAILED_NOT_REPLAYABLE):
        start = after(lambda world: _ignore(claim_grant(world, claim)), make)
        for run in interleavings(start, [settles(grant_of(claim), last)] * 3):
            assert sorted(names(run.results)) == ["AlreadyMine", "AlreadyMine", "Settled"], run.schedule
            assert AlreadyMine() in run.results
