"""What an attempt proves, it proves of itself: an earlier one of an IDEMPOTENT command may have had its effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from semel import Policy
from semel.core.flow import MakeFlow
from semel.core.model import (
    AlreadyMine,
    Claim,
    Grant,
    OutcomeUnknown,
    Proceed,
    Record,
    Settled,
    Settling,
    State,
    Superseded,
)
from semel.core.outcomes import Outcome, Released
from semel.errors import NothingHappened
from semel.stores.backend import Backend
from semel.testing.attempts import attempt, settlement
from semel.testing.clock import SettableClock
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import Shell, command

T = TypeVar("T")
DEDUP_SECONDS = 3600
POLICY = Policy.of(effects="idempotent", dedup_for_seconds=DEDUP_SECONDS)
FAILED: Outcome = Released("error:ReadTimeout", proven=False)  # the downstream may have done it
PROVEN: Outcome = Released(NothingHappened.__name__, proven=True)  # this call never left


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[SettableClock], Backend]:
    return memory if request.param == "memory" else lambda clock: sqlite(tmp_path / "semel.db", clock)


class Bare:
    """A migrated store without an engine."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.do(lambda: backend.store.migrate("store", b"none"))

    def do(self, make: MakeFlow[T]) -> T:
        reply: T = self.backend.driver.run(make)
        return reply

    def grant(self, claim: Claim) -> Grant:
        [verdict] = self.do(lambda: self.backend.store.claim((claim,)))
        assert isinstance(verdict, Proceed)
        return verdict.grant

    def settle(self, grant: Grant, state: State) -> Settling:
        [reply] = self.do(lambda: self.backend.store.settle((settlement(grant, state),)))
        return reply

    def row(self, id: bytes) -> Record:
        [row] = self.do(lambda: self.backend.store.read((id,)))
        assert row is not None
        return row


def test_nothing_happened_proves_nothing_about_an_earlier_attempt(stores: Callable[[SettableClock], Backend]) -> None:
    """The downstream's memory counts from the first attempt that may have reached it; then the outcome is unknown."""
    clock = SettableClock()
    shell = Shell("sync", stores(clock))
    shell.open()
    what = command(policy=POLICY)
    assert shell.settle(shell.permit(what), FAILED) == Settled()
    clock.advance(seconds=60)
    assert shell.settle(shell.permit(what), PROVEN) == Settled()
    again = shell.permit(what)  # within the window it may run again, by the same derived keys
    assert again.generation == 0
    assert shell.settle(again, PROVEN) == Settled()
    clock.advance(seconds=DEDUP_SECONDS)
    assert isinstance(shell.claim(what), OutcomeUnknown)
    shell.close()


def test_an_abandoned_claim_proves_nothing_about_an_earlier_attempt(stores: Callable[[SettableClock], Backend]) -> None:
    """Its handler never ran; the crashed one before it did. What has been counted stays counted."""
    clock = SettableClock()
    bare = Bare(stores(clock))
    policy = Policy.of(effects="idempotent", dedup_for_seconds=DEDUP_SECONDS, attempts_max=3)
    bare.grant(attempt(policy=policy))
    clock.advance(seconds=31)  # its process died
    second = attempt(nonce=2, policy=policy)
    bare.grant(second)
    assert bare.do(lambda: bare.backend.store.abandon(((second.id, second.nonce),))) == [True]
    row = bare.row(second.id)
    assert (row.state, row.lease_until, row.forget_after) == (State.PROCESSING, 0, None)
    third = bare.grant(attempt(nonce=3, policy=policy))
    assert (third.lapses, third.first_started_at) == (1, row.first_started_at)
    bare.backend.driver.close()


def test_a_first_attempt_that_proves_no_effect_frees_the_key(stores: Callable[[SettableClock], Backend]) -> None:
    clock = SettableClock()
    shell = Shell("sync", stores(clock))
    shell.open()
    what = command(policy=POLICY)
    for _ in range(3):  # each of them is the first: the one before it proved that nothing happened
        assert shell.settle(shell.permit(what), PROVEN) == Settled()
        row = shell.row(what)
        assert row is not None
        assert row.state == State.FAILED_NOT_REPLAYABLE
        clock.advance(seconds=DEDUP_SECONDS)
    shell.close()


def test_a_repeated_settlement_is_recognised(stores: Callable[[SettableClock], Backend]) -> None:
    """The store's reply was lost, and the settlement is sent again."""
    clock = SettableClock()
    bare = Bare(stores(clock))
    first = bare.grant(attempt(policy=POLICY))
    assert bare.settle(first, State.PROCESSING) == Settled()
    second = bare.grant(attempt(nonce=2, policy=POLICY))
    for expected in (Settled(), AlreadyMine()):
        assert bare.settle(second, State.FAILED_NOT_REPLAYABLE) == expected
    assert bare.settle(second, State.SUCCEEDED) == Superseded(State.PROCESSING)
    bare.backend.driver.close()
