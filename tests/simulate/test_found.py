"""What the simulator has found, each as its own test: once the code has changed, its seed is another schedule."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Policy
from semel.core.command_flow import reread
from semel.core.decide import decide
from semel.core.model import Proceed
from semel.engine import renewal as upkeep
from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.stores.memory.store import MemoryStore
from semel.testing.attempts import attempt
from semel.testing.clock import SettableClock
from tests.engine.drivers import memory
from verification.simulate.shape import command


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no"), StoreTimeout("no reply")], ids=lambda error: type(error).__name__
)
def test_a_handler_that_ran_is_never_reported_as_not_run(error: StoreError) -> None:
    """Its settlement was refused, and the store could not say what holds instead: that is not known yet.

    Found by seed 1227 of format 1: an IDEMPOTENT handler, paused past its lease and superseded, was told
    StoreUnavailable ("the handler did not run"), since the look after the refusal had met that.
    """
    claim = attempt("k")
    verdict = decide(None, claim, 1)
    assert isinstance(verdict, Proceed)
    flow = reread(MemoryStore(), claim, verdict.grant, None)
    next(flow)
    with pytest.raises(StoreTimeout, match="refused"):
        flow.throw(error)


class SlowUnit:
    """A unit whose server takes its time for a claim."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.rolled_back = False

    async def run_async(self, make: object) -> object:
        self.asked.set()
        return await asyncio.Event().wait()

    async def rollback_async(self) -> None:
        self.rolled_back = True


def test_a_cancelled_claim_leaves_no_transaction_open() -> None:
    """Found by seed 5368 of format 1: a caller was cancelled between BEGIN and the reply, its task was kept.

    The unit was left to the garbage collector, which the task's traceback kept from it; the writer's gate stayed shut.
    """

    async def scenario() -> bool:
        unit = SlowUnit()

        async def begin() -> Any:
            return unit

        backend = replace(memory(), unit=lambda: None, unit_async=begin)  # type: ignore[arg-type, return-value]
        async with AsyncEngine(backend) as engine:
            task = asyncio.create_task(engine.run(command(0, 1, Policy(effects="atomic")), never))
            await unit.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return unit.rolled_back

    assert asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["answered", "given up"])
def test_an_abandoned_claim_is_released_after_an_outage_longer_than_its_lease(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by seed 71200 of format 1: its only release met an outage of the store, and then its lease was over.

    The record read UNKNOWN for ever, for a command that never ran.
    """
    clock = SettableClock()
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(monotonic=lambda: clock.now_us / 1_000_000))
    given_up = upkeep.AbandonedClaims()
    claim = attempt("k")
    given_up.add(claim)
    clock.advance(claim.terms.lease_us + 1)
    nonces = given_up.batch()
    given_up.forget_overdue(nonces)
    assert given_up.batch() == ((claim.id, claim.nonce),)  # its absence is not confirmed
    if mode == "answered":
        given_up.forget_released(nonces, [False])  # now it is
    else:
        clock.advance(seconds=upkeep.OUTAGE_SECONDS_MAX)
        given_up.forget_overdue(nonces)  # it will not be
    assert not given_up


def test_a_claim_that_two_event_loops_release_is_forgotten_once() -> None:
    """Each has its own round; the second to hear that it is gone finds it forgotten."""
    given_up = upkeep.AbandonedClaims()
    given_up.add(attempt("k"))
    nonces = given_up.batch()
    for _ in range(2):
        given_up.forget_released(nonces, [True])
    given_up.forget_overdue(nonces)
    assert not given_up


async def never(permit: object) -> Answer:
    raise AssertionError("this must not run")
