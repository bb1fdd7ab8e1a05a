"""Quotas: what a claim takes, when a place is free again, and how a row has it. Whole values at a time."""

from __future__ import annotations

from typing import Any

import pytest

from semel import Policy, Quota
from semel.core.identity import name_id
from semel.core.model import Allowance, QuotaExceeded, Scope, State
from semel.errors import PolicyError
from semel.quota import (
    Usage,
    allowance_of,
    check_quota,
    is_over,
    must_look,
    pack_counts,
    pack_listed,
    take,
    unpack_counts,
    unpack_listed,
)

US = 10  # microseconds of a slice
NOW = 1_000_000_005  # in the middle of slice 100,000,000
SLICE = 100_000_000
MINUTE_US = 60_000_000
NONE = (0,) * 21
A, B, C, NEW = (bytes([letter]) * 16 for letter in b"abcn")
SCOPE = Scope("acme", "alice", "pay")


def limits(new_keys: int | None = None, open_max: int | None = None, unknown_max: int | None = None) -> Allowance:
    return Allowance(bytes(16), new_keys, US, open_max, unknown_max)


def counts(**at: int) -> tuple[int, ...]:
    """Counts by their age in slices: ``s0`` is the newest."""
    found = list(NONE)
    for name, count in at.items():
        found[-1 - int(name[1:])] = count
    return tuple(found)


@pytest.mark.parametrize(
    ("seconds", "slice_us"), [(60, 3_000_000), (1, 50_000), (1.00001, 50_001), (31 * 86_400, 133_920_000_000)]
)
def test_a_slice_is_a_twentieth_of_the_window_rounded_up(seconds: float, slice_us: int) -> None:
    assert Quota(new_keys=1, per_seconds=seconds).slice_us == slice_us


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"new_keys": 0}, "new_keys must be a whole number from 1 to 10000000; it is 0"),
        ({"new_keys": 10_000_001}, "new_keys must be a whole number from 1 to 10000000; it is 10000001"),
        ({"open_at_once": 1_001}, "open_at_once must be a whole number from 1 to 1000; it is 1001"),
        ({"unknown_at_once": 1_001}, "unknown_at_once must be a whole number from 1 to 1000; it is 1001"),
        ({"new_keys": 1, "per_seconds": 0.5}, "per_seconds must be 1 to 2678400 seconds; it is 0.5"),
        ({"new_keys": 1, "per_seconds": 2_678_401}, "per_seconds must be 1 to 2678400 seconds; it is 2678401"),
        ({}, "a Quota limits nothing: give new_keys, open_at_once or unknown_at_once"),
        ({"new_keys": 1, "callers": ["a"]}, "callers must map a caller's name to its Quota; it is ['a']"),
        (
            {"new_keys": 1, "callers": {"a": Quota(new_keys=1, callers={"b": Quota(new_keys=1)})}},
            "callers must map a caller's name to a Quota without callers; see 'a'",
        ),
        (
            {"new_keys": 1, "callers": {5: Quota(new_keys=1)}},
            "callers must map a caller's name to a Quota without callers; see 5",
        ),
    ],
)
def test_a_limit_that_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError) as raised:
        Quota(**options)
    assert str(raised.value) == told


@pytest.mark.parametrize("options", [{"new_keys": 10_000_000}, {"open_at_once": 1_000}, {"unknown_at_once": 1}])
def test_a_limit_at_the_end_of_its_range_is_taken(options: dict[str, Any]) -> None:
    assert check_quota(Quota(**options)) == Quota(**options)


def test_what_is_no_quota_is_refused() -> None:
    assert check_quota(None) is None
    with pytest.raises(PolicyError) as raised:
        check_quota(600)
    assert str(raised.value) == "quota must be a Quota, such as Quota(new_keys=600, per_seconds=60); it is 600"


def test_the_limits_of_a_claim() -> None:
    """The operation's own quota counts by itself; the engine's counts all operations of a caller together."""
    quota = Quota(new_keys=5, open_at_once=3, unknown_at_once=2, callers={"nightly": Quota(new_keys=9, per_seconds=1)})
    shared = name_id(None, b"semel.quota.1", "acme", "alice")
    own = name_id(None, b"semel.quota.1", "acme", "alice", "pay")
    external, atomic = Policy(), Policy(effects="atomic")
    assert allowance_of(external, None, SCOPE, None) is None
    assert allowance_of(external, quota, SCOPE, None) == Allowance(shared, 5, 3_000_000, 3, 2)
    assert allowance_of(atomic, quota, SCOPE, None) == Allowance(shared, 5, 3_000_000, None, None)
    assert allowance_of(atomic, Quota(open_at_once=1), SCOPE, None) is None  # it leaves nothing open
    for_itself = Policy(quota=Quota(unknown_at_once=1))
    assert allowance_of(for_itself, quota, SCOPE, None) == Allowance(own, None, 3_000_000, None, 1)
    nightly = name_id(b"s" * 32, b"semel.quota.1", "acme", "nightly")
    assert allowance_of(external, quota, SCOPE._replace(caller="nightly"), b"s" * 32) == (
        Allowance(nightly, 9, 50_000, None, None)
    )


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        (None, NOW, Usage(SLICE, US, counts(s0=1))),
        (Usage(SLICE, US, counts(s0=2, s20=1)), NOW, Usage(SLICE, US, counts(s0=3, s20=1))),
        (Usage(SLICE, US, counts(s0=2, s20=1)), NOW + US, Usage(SLICE + 1, US, counts(s0=1, s1=2))),
        (Usage(SLICE, US, counts(s0=2)), NOW + 20 * US, Usage(SLICE + 20, US, counts(s0=1, s20=2))),
        (Usage(SLICE, US, counts(s0=2)), NOW + 21 * US, Usage(SLICE + 21, US, counts(s0=1))),
        (Usage(SLICE, US, counts(s0=2)), NOW + 99 * US, Usage(SLICE + 99, US, counts(s0=1))),
        # The clock was set back: by a window at most, nothing moves; by more, all of it does.
        (Usage(SLICE, US, counts(s0=2, s3=1)), NOW - 21 * US, Usage(SLICE, US, counts(s0=3, s3=1))),
        (Usage(SLICE, US, counts(s0=2, s3=1)), NOW - 22 * US, Usage(SLICE - 22, US, counts(s0=3, s3=1))),
        # Another window was declared.
        (Usage(7, 5 * US, counts(s0=2, s3=1)), NOW, Usage(SLICE, US, counts(s0=3, s3=1))),
        (Usage(SLICE, 5 * US, counts(s0=2, s3=1)), NOW, Usage(SLICE, US, counts(s0=3, s3=1))),
    ],
)
def test_a_place_is_taken_in_the_slice_of_now(before: Usage | None, now: int, after: Usage) -> None:
    assert take(before, limits(new_keys=10), NEW, {}, now) == (after, None)


@pytest.mark.parametrize(
    ("taken", "free_at_slice"),
    [
        (counts(s0=3), SLICE + 21),
        (counts(s20=3), SLICE + 1),
        (counts(s20=1, s5=2), SLICE + 1),
        (counts(s20=1, s5=3), SLICE + 16),  # of four, two must leave
        (counts(s5=2, s0=1), SLICE + 16),
    ],
)
def test_a_refused_key_learns_when_a_place_is_free(taken: tuple[int, ...], free_at_slice: int) -> None:
    told = QuotaExceeded("new_keys", free_at_slice * US - NOW)
    assert take(Usage(SLICE, US, taken), limits(new_keys=3), NEW, {}, NOW) == (None, told)


def test_a_wait_is_never_longer_than_the_window_nor_nothing() -> None:
    """The clock was set back by a window, or stands at the end of a slice."""
    full = Usage(SLICE, US, counts(s0=3))
    assert take(full, limits(new_keys=3), NEW, {}, NOW - 21 * US) == (None, QuotaExceeded("new_keys", 21 * US))
    assert take(full, limits(new_keys=3), NEW, {}, SLICE * US) == (None, QuotaExceeded("new_keys", 21 * US))
    oldest = Usage(SLICE, US, counts(s20=3))
    assert take(oldest, limits(new_keys=3), NEW, {}, SLICE * US + 9) == (None, QuotaExceeded("new_keys", 1))


def test_the_last_place_is_taken() -> None:
    taken, refused = take(Usage(SLICE, US, counts(s1=2)), limits(new_keys=3), NEW, {}, NOW)
    assert (taken, refused) == (Usage(SLICE, US, counts(s1=2, s0=1)), None)
    assert take(taken, limits(new_keys=3), NEW, {}, NOW) == (None, QuotaExceeded("new_keys", 20 * US - 5))


LISTED = ((A, NOW - 5), (B, NOW - 4), (C, NOW - MINUTE_US))


@pytest.mark.parametrize(
    ("usage", "allowance", "looked"),
    [
        (None, limits(open_max=1), []),
        (Usage(SLICE, US, NONE, LISTED), limits(new_keys=1), []),
        (Usage(SLICE, US, NONE, LISTED), limits(open_max=4), []),
        (Usage(SLICE, US, NONE, LISTED), limits(open_max=3), [A, B, C]),
        (Usage(SLICE, US, NONE, LISTED), limits(unknown_max=3), [A, B, C]),
        (Usage(SLICE, US, NONE, LISTED), limits(open_max=9, unknown_max=2), [A, B, C]),
        (Usage(SLICE, US, NONE, LISTED), limits(open_max=9, unknown_max=4), []),
    ],
)
def test_records_are_looked_at_only_where_they_decide(
    usage: Usage | None, allowance: Allowance, looked: list[bytes]
) -> None:
    assert list(must_look(usage, allowance)) == looked


@pytest.mark.parametrize(
    ("allowance", "states", "listed"),
    [
        (limits(new_keys=9), {}, ()),  # nothing of it is asked for
        (limits(open_max=4), {}, (*LISTED, (NEW, NOW))),  # there is room: no look is needed
        (limits(unknown_max=4), {}, (*LISTED, (NEW, NOW))),
        (limits(open_max=3), {A: State.SUCCEEDED, B: State.PROCESSING}, (LISTED[1], (NEW, NOW))),
        (limits(open_max=3), {A: State.FAILED_REPLAYABLE, B: State.FAILED_NOT_REPLAYABLE}, ((NEW, NOW),)),
        # One that cannot be seen counts for a minute: its commit may be on its way.
        (limits(open_max=3), {A: State.CLAIMED}, (LISTED[0], LISTED[1], (NEW, NOW))),
        # UNKNOWN is not open.
        (limits(open_max=3), dict.fromkeys((A, B, C), State.UNKNOWN), (*LISTED, (NEW, NOW))),
        (limits(unknown_max=3), dict.fromkeys((A, B, C), State.PROCESSING), (*LISTED, (NEW, NOW))),
    ],
)
def test_what_is_over_leaves_its_place(
    allowance: Allowance, states: dict[bytes, int], listed: tuple[tuple[bytes, int], ...]
) -> None:
    usage = Usage(SLICE, US, counts(s0=4), LISTED)
    assert take(usage, allowance, NEW, states, NOW) == (Usage(SLICE, US, counts(s0=5), listed), None)


@pytest.mark.parametrize("allowance", [limits(open_max=1), limits(unknown_max=1), limits(open_max=1, unknown_max=1)])
def test_a_callers_first_record_is_listed(allowance: Allowance) -> None:
    assert take(None, allowance, NEW, {}, NOW) == (Usage(SLICE, US, counts(s0=1), ((NEW, NOW),)), None)


@pytest.mark.parametrize("before", [Usage(7, 5 * US, NONE, LISTED), Usage(SLICE + 99, US, NONE, LISTED)])
def test_what_is_listed_stays_when_the_slices_change(before: Usage) -> None:
    after = Usage(SLICE, US, counts(s0=1), (*LISTED, (NEW, NOW)))
    assert take(before, limits(open_max=4), NEW, {}, NOW) == (after, None)


@pytest.mark.parametrize(
    ("allowance", "states", "told"),
    [
        (limits(open_max=3), dict.fromkeys((A, B, C), State.PROCESSING), QuotaExceeded("open_at_once", 5_000_000)),
        (limits(open_max=2), {C: State.SUCCEEDED}, QuotaExceeded("open_at_once", 5_000_000)),
        (limits(open_max=1), {A: State.UNKNOWN, B: State.CLAIMED}, QuotaExceeded("open_at_once", 5_000_000)),
        (limits(unknown_max=3), dict.fromkeys((A, B, C), State.UNKNOWN), QuotaExceeded("unknown_at_once", 60_000_000)),
        (limits(unknown_max=1), {A: State.UNKNOWN, B: State.CLAIMED}, QuotaExceeded("unknown_at_once", 60_000_000)),
        (limits(open_max=1, unknown_max=1), {A: State.UNKNOWN}, QuotaExceeded("open_at_once", 5_000_000)),
        (limits(new_keys=1, open_max=1), {}, QuotaExceeded("new_keys", 21 * US - 5)),  # the first that is used up
    ],
)
def test_a_caller_with_too_many_is_refused(allowance: Allowance, states: dict[bytes, int], told: QuotaExceeded) -> None:
    assert take(Usage(SLICE, US, counts(s0=1), LISTED), allowance, NEW, states, NOW) == (None, told)


def test_what_counts_no_more_may_be_deleted() -> None:
    usage = Usage(SLICE, US, counts(s0=1), ((A, NOW),))
    ends = (SLICE + 21) * US
    assert is_over(usage, ends, {A: State.SUCCEEDED})
    assert not is_over(usage, ends - 1, {A: State.SUCCEEDED})
    assert not is_over(usage, ends, {A: State.UNKNOWN})
    assert not is_over(usage, ends, {})
    assert not is_over(usage, NOW + MINUTE_US - 1, {})
    assert is_over(usage, NOW + MINUTE_US, {})


def test_a_row_has_the_usage_as_it_is() -> None:
    usage = Usage(SLICE, US, (0, 12, 5), ((A, 1), (B, 2**56 + 7)))
    assert pack_counts(usage) == "0,12,5"
    assert unpack_counts("0,12,5") == (0, 12, 5)
    packed = A + b"\0\0\0\0\0\0\0\1" + B + b"\1\0\0\0\0\0\0\7"
    assert pack_listed(usage) == packed
    assert unpack_listed(packed) == usage.listed
    assert unpack_listed(b"") == ()
