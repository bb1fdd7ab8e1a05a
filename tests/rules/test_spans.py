"""Durations and counts that cannot be meant are refused where they are given, by name."""

from __future__ import annotations

from typing import Any

import pytest

from semel import AsyncEngine, Engine, Policy
from semel.errors import PolicyError
from semel.outbox.sinks.function import FunctionSink
from semel.outbox.worker import Relay
from semel.reconciliation.worker import Reconciling
from semel.resuming.worker import Completer
from semel.retention.worker import Reaper

NO_SECONDS = [None, "30", True, float("nan"), float("inf"), -1, 10**400]


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("lease_seconds", 30_000),
        ("deadline_seconds", 300_000),
        ("wait_seconds", 20_000),
        ("dedup_for_seconds", 82_800_000),
    ],
)
def test_a_span_in_milliseconds_is_refused(name: str, milliseconds: int) -> None:
    with pytest.raises(PolicyError, match=f"{name} must be at most .* in seconds, not milliseconds"):
        Policy.of(**{name: milliseconds})


@pytest.mark.parametrize("name", ["answer_seconds", "tombstone_seconds", "dedup_for_seconds", "operation_seconds"])
def test_a_span_that_rounds_to_zero_is_refused(name: str) -> None:
    with pytest.raises(PolicyError, match=f"{name} must be at least 1e-06"):
        Policy.of(**{name: 1e-9})


@pytest.mark.parametrize("attempts", [2**31, 2**63])
def test_more_attempts_than_a_store_can_count_are_refused(attempts: int) -> None:
    with pytest.raises(PolicyError, match="attempts_max must be at most 2147483647"):
        Policy(attempts_max=attempts)


@pytest.mark.parametrize("value", [*NO_SECONDS, 5000])
@pytest.mark.parametrize("made", [Engine, AsyncEngine])
def test_an_engine_refuses_a_confirmation_that_cannot_be(made: Any, value: Any) -> None:
    with pytest.raises(PolicyError, match="confirm_seconds must be"):
        made.connect("memory://", confirm_seconds=value)


@pytest.mark.parametrize("name", ["waiters_max", "waiters_per_caller_max"])
def test_an_engine_refuses_waiters_that_cannot_be_counted(name: str) -> None:
    with pytest.raises(PolicyError, match=f"{name} must be a whole number"):
        Engine.connect("memory://", **{name: 1.5})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", NO_SECONDS)
def test_workers_refuse_invalid_seconds(value: Any) -> None:
    engine = AsyncEngine.connect("sqlite:///never-opened.db")
    sink = FunctionSink(print)
    made: list[tuple[str, Any]] = [
        ("every_seconds", lambda: Reaper(engine, every_seconds=value)),
        ("purge_every_seconds", lambda: Reaper(engine, purge_every_seconds=value)),
        ("every_seconds", lambda: Completer(engine, every_seconds=value)),
        ("rest_seconds", lambda: Completer(engine, rest_seconds=value)),
        ("every_seconds", lambda: Reconciling(engine, [], every_seconds=value)),
        ("lease_seconds", lambda: Relay(engine, sink, lease_seconds=value)),
        ("keep_seconds", lambda: Relay(engine, sink, keep_seconds=value)),
    ]
    for name, make in made:
        with pytest.raises(PolicyError, match=f"{name} must be"):
            make()


def test_a_relay_refuses_an_invalid_lease() -> None:
    with pytest.raises(PolicyError, match="lease_seconds must be 1 to 3600 seconds; it is 1e-09"):
        Relay(AsyncEngine.connect("sqlite:///never-opened.db"), FunctionSink(print), lease_seconds=1e-9)
