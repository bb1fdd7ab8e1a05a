"""The arithmetic of fences, leases and the two retentions, at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.core.backoff import poll_seconds, retry_seconds
from semel.core.decide import first_grant
from semel.core.timing import (
    PURGE_GRACE_US,
    lease_end,
    may_drop_answer,
    may_forget,
    next_fence,
    retention,
)
from semel.testing.attempts import attempt

PLAIN = settings(derandomize=True, deadline=None, max_examples=200)
TIMES = st.integers(0, 2**62)


@PLAIN
@given(fence=TIMES, now=TIMES)
def test_a_fence_grows_and_keeps_up_with_the_clock(fence: int, now: int) -> None:
    assert next_fence(fence, now) > fence
    assert next_fence(fence, now) >= now


@PLAIN
@given(now=TIMES, lease=TIMES, deadline=TIMES)
def test_a_lease_never_outlives_the_deadline(now: int, lease: int, deadline: int) -> None:
    assert lease_end(now, lease, deadline) <= deadline
    assert lease_end(now, lease, deadline) in (now + lease, deadline)


@PLAIN
@given(now=TIMES, answer=TIMES, tombstone=TIMES)
def test_the_tombstone_outlives_the_answer(now: int, answer: int, tombstone: int) -> None:
    assert retention(now, answer, tombstone) == (now + answer, now + max(answer, tombstone))


def test_a_purge_waits_for_its_grace() -> None:
    for may in (may_forget, may_drop_answer):
        assert not may(1000, 1000 + PURGE_GRACE_US - 1)
        assert may(1000, 1000 + PURGE_GRACE_US)
        assert not may(None, 2**62)  # what is open or unknown has no end
        assert not may(1000, 0)  # a clock that was set back
        for damaged in (-1, "soon", b"\xff", 1.5):
            assert not may(damaged, 2**62)  # type: ignore[arg-type]  # SQLite keeps a value of any type


@PLAIN
@given(asked=st.integers(0, 1000), jitter=st.floats(0, 1))
def test_pauses_grow_to_a_bound_and_are_never_zero(asked: int, jitter: float) -> None:
    assert 0.01 <= poll_seconds(asked, jitter) <= 0.25
    assert 0.025 <= retry_seconds(asked, jitter) <= 2.0
    assert poll_seconds(asked, jitter) <= poll_seconds(asked + 1, 1.0)


def test_pauses_double_until_the_longest() -> None:
    """Half of a pause is certain and half is jitter; what is not given is 20 ms to 0.25 s, and 50 ms to 2 s."""
    whole = [poll_seconds(asked, 1.0) for asked in range(6)]
    assert whole == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.25, 0.25])
    assert [poll_seconds(asked, 0.0) for asked in range(3)] == pytest.approx([0.01, 0.02, 0.04])
    assert poll_seconds(1, 0.5) == pytest.approx(0.03)
    assert [retry_seconds(tried, 1.0) for tried in (0, 1, 5, 6, 1000)] == pytest.approx([0.05, 0.1, 1.6, 2.0, 2.0])
    assert poll_seconds(17, 1.0, first=2.0**-20, longest=1.0) == poll_seconds(16, 1.0, first=2.0**-20, longest=1.0)
    assert retry_seconds(3, 1.0, first=1.0, longest=5.0) == 5.0
    assert retry_seconds(1, 0.0, first=1.0, longest=5.0) == 1.0


@pytest.mark.parametrize(("lease_us", "until"), [(299, 1_299), (300, 1_300), (301, 1_300)])
def test_a_first_lease_ends_with_the_deadline_at_the_latest(lease_us: int, until: int) -> None:
    claim = attempt()
    grant = first_grant(claim._replace(terms=claim.terms._replace(lease_us=lease_us, deadline_us=300)), 1_000)
    assert (grant.lease_until, grant.deadline_at) == (until, 1_300)
