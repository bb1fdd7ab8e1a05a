"""Races on one key, by threads and tasks; and whether the store matches its declared capabilities."""

from __future__ import annotations

from functools import partial

from semel.core.flow import Flow
from semel.core.model import (
    InProgress,
    KeyReused,
    MovedOn,
    Proceed,
    Replay,
    Resolution,
    Resolved,
    Resolving,
    Settled,
    Settlement,
    Settling,
    State,
    Superseded,
)
from semel.testing.attempts import IDEMPOTENT, attempt, settlement
from semel.testing.bench import Bench
from semel.testing.cases.claims import LEASE_US

RACERS = 12
ROUNDS = 4


def one_of_many_claims_is_granted(bench: Bench) -> None:
    """A dozen concurrent claims on a new key: one grant, and all others get its operation."""
    for number in range(ROUNDS):
        claims = [attempt(str(number), nonce=n) for n in range(RACERS)]
        verdicts = bench.race([partial(bench.store.claim, (claim,)) for claim in claims])
        granted = [verdict.grant for [verdict] in verdicts if isinstance(verdict, Proceed)]
        [grant] = granted
        told = {verdict for [verdict] in verdicts if not isinstance(verdict, Proceed)}
        assert told == {InProgress(grant.operation_id, LEASE_US)}
        assert bench.row(grant.id).nonce == grant.nonce


def one_claim_sent_many_times_is_one_grant(bench: Bench) -> None:
    """The same nonce, delivered many times at once: every delivery reads the same grant."""
    replies = bench.race([partial(bench.store.claim, (attempt(),)) for _ in range(RACERS)])
    assert len({verdict for [verdict] in replies}) == 1
    assert bench.row().attempt == 1


def one_of_many_takes_over(bench: Bench) -> None:
    """A lapsed IDEMPOTENT command and a released key: one new grant each."""
    for number, state in enumerate((State.PROCESSING, State.FAILED_NOT_REPLAYABLE)):
        key = str(number)
        bench.settle(bench.grant(attempt(key, nonce=99, policy=IDEMPOTENT)), state)
        claims = [attempt(key, nonce=n, policy=IDEMPOTENT) for n in range(RACERS)]
        replies = bench.race([partial(bench.store.claim, (claim,)) for claim in claims])
        assert sorted(type(verdict).__name__ for [verdict] in replies) == ["InProgress"] * (RACERS - 1) + ["Proceed"]
        assert bench.row(claims[0].id).attempt == 2


def two_requests_race_for_one_key(bench: Bench) -> None:
    """The first request gets the key; all attempts of the other request are refused."""
    for number in range(ROUNDS):
        claims = [attempt(str(number), nonce=n, request=n % 2) for n in range(RACERS)]
        replies = [verdict for [verdict] in bench.race([partial(bench.store.claim, (claim,)) for claim in claims])]
        [winner] = [n for n, verdict in enumerate(replies) if isinstance(verdict, Proceed)]
        for n, verdict in enumerate(replies):
            if n != winner:
                assert isinstance(verdict, InProgress if n % 2 == winner % 2 else KeyReused)


def one_settlement_stands(bench: Bench) -> None:
    """The same settlement many times at once: written once, recognised by the others."""
    last = settlement(bench.grant())
    replies = bench.race([partial(bench.store.settle, (last,)) for _ in range(RACERS)])
    assert sorted(type(reply).__name__ for [reply] in replies) == ["AlreadyMine"] * (RACERS - 1) + ["Settled"]
    assert isinstance(bench.claim(attempt(nonce=2)), Replay)


def holder_and_operator_never_both_win(bench: Bench) -> None:
    """The late holder settles while the operator says "did not happen": one is written, the other gets that outcome."""
    for number in range(ROUNDS):
        grant = bench.grant(attempt(str(number)))
        bench.clock.advance(10 * LEASE_US)
        resolution = Resolution(grant.id, grant.fence, False, None, "olga", "not there", False)
        replies = bench.race([partial(_settle, bench, settlement(grant)), partial(_resolve, bench, resolution)])
        state = bench.row(grant.id).state
        if state == State.SUCCEEDED:
            assert replies == [Settled(), MovedOn(State.SUCCEEDED)]
        else:
            assert replies == [Superseded(State.FAILED_NOT_REPLAYABLE), Resolved(State.FAILED_NOT_REPLAYABLE)]


def _settle(bench: Bench, last: Settlement) -> Flow[Settling | Resolving]:
    return (yield from bench.store.settle((last,)))[0]


def _resolve(bench: Bench, resolution: Resolution) -> Flow[Settling | Resolving]:
    return (yield from bench.store.resolve(resolution))


def a_batch_and_its_members_race(bench: Bench) -> None:
    """Batches in opposite orders over the same keys: each key is granted exactly once."""
    claims = [[attempt(str(key), nonce=n) for key in range(6)] for n in range(RACERS)]
    orders = [batch if n % 2 else batch[::-1] for n, batch in enumerate(claims)]
    replies = bench.race([partial(bench.store.claim, batch) for batch in orders])
    grants = [verdict.grant.id for batch in replies for verdict in batch if isinstance(verdict, Proceed)]
    assert sorted(grants) == sorted(claim.id for claim in claims[0])


def the_store_is_what_it_declares(bench: Bench) -> None:
    """Capabilities are promises: what other processes see, what survives this one, what ATOMIC needs."""
    declared = bench.store.capabilities
    grant = bench.grant()
    bench.settle(grant)

    def is_seen_elsewhere() -> bool:
        other = bench.subject.elsewhere()
        try:
            identity = other.driver.run(other.store.identity)
            if identity is None:
                return False
            reads: list[object] = other.driver.run(partial(other.store.read, (grant.id,)))
            return reads == [bench_row]
        finally:
            other.driver.close()

    bench_row = bench.row()
    assert is_seen_elsewhere() is declared.shared_between_processes
    bench.close()
    assert is_seen_elsewhere() is declared.survives_process_crash
    assert (bench.backend.unit is not None) is declared.atomic_with_business_writes


ALL = (
    one_of_many_claims_is_granted,
    one_claim_sent_many_times_is_one_grant,
    one_of_many_takes_over,
    two_requests_race_for_one_key,
    one_settlement_stands,
    holder_and_operator_never_both_win,
    a_batch_and_its_members_race,
    the_store_is_what_it_declares,
)
