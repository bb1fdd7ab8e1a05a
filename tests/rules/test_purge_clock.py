"""When a purge trusts the store's clock, and for how long it waits after a movement that nothing explains."""

from __future__ import annotations

import pytest

from semel.retention.rules import PurgeClock, bound_now, clock_gap

SECOND_US = 1_000_000
GRACE_US = 600 * SECOND_US
DAY_US = 86_400 * SECOND_US
MONTH_US = 31 * DAY_US
NOW = 1_800_000_000 * SECOND_US
HOUR = 3_600.0
DAY = 24 * HOUR


def test_a_steady_clock_is_trusted() -> None:
    clock = PurgeClock()
    for hour in range(100):
        assert clock.doubt(NOW + hour * 3_600 * SECOND_US, NOW, hour * HOUR) == 0


def test_a_clock_jump_stops_the_purge_for_a_day() -> None:
    clock = PurgeClock()
    assert clock.doubt(NOW, NOW, 0.0) == 0
    for hour in range(1, 25):
        now = NOW + MONTH_US + hour * 3_600 * SECOND_US
        assert clock.doubt(now, now, hour * HOUR) == MONTH_US  # also where records were written since
    assert clock.doubt(NOW + MONTH_US + 25 * 3_600 * SECOND_US, NOW, HOUR + DAY) == 0


def test_a_reverted_clock_jump_is_forgotten() -> None:
    clock = PurgeClock()
    clock.doubt(NOW, NOW, 0.0)
    assert clock.doubt(NOW + MONTH_US, NOW, 1.0) != 0
    assert clock.doubt(NOW + 2 * SECOND_US, NOW, 2.0) == 0


def test_a_process_that_begins_a_month_after_the_newest_record_waits_for_a_day() -> None:
    clock = PurgeClock()
    assert clock.doubt(NOW + MONTH_US, NOW, 0.0) == MONTH_US
    assert clock.doubt(NOW + MONTH_US + 3_600 * SECOND_US, NOW + MONTH_US, HOUR) == MONTH_US
    assert clock.doubt(NOW + MONTH_US + DAY_US, NOW + MONTH_US, DAY) == 0


@pytest.mark.parametrize(("moved", "doubted"), [(GRACE_US, 0), (GRACE_US + 1, GRACE_US + 1), (-MONTH_US, 0)])
def test_a_change_below_the_grace_is_not_a_jump(moved: int, doubted: int) -> None:
    clock = PurgeClock()
    clock.doubt(NOW, NOW, 0.0)
    assert clock.doubt(NOW + moved, NOW, 0.0) == doubted


def test_a_doubt_lasts_for_a_day_of_this_process_and_no_longer() -> None:
    clock = PurgeClock()
    clock.doubt(NOW, NOW, 0.0)
    assert clock.doubt(NOW + MONTH_US, NOW, 0.0) == MONTH_US
    assert clock.doubt(NOW + MONTH_US + DAY_US - SECOND_US, NOW, DAY - 1) == MONTH_US
    assert clock.doubt(NOW + MONTH_US + DAY_US, NOW, DAY) == 0
    assert clock.doubt(NOW + MONTH_US + DAY_US, NOW, DAY) == 0  # it is forgotten, not only over


def test_a_second_jump_begins_the_wait_anew() -> None:
    clock = PurgeClock()
    clock.doubt(NOW, NOW, 0.0)
    assert clock.doubt(NOW + MONTH_US, NOW, 0.0) == MONTH_US
    later = NOW + MONTH_US + DAY_US // 2
    assert clock.doubt(later + GRACE_US + 1, NOW, DAY / 2) == GRACE_US + 1
    assert clock.doubt(later + GRACE_US + DAY_US // 2, NOW, DAY) == GRACE_US + 1
    assert clock.doubt(later + GRACE_US + DAY_US, NOW, DAY * 3 / 2) == 0


def test_a_clock_that_was_set_back_is_judged_by_the_newest_record() -> None:
    """It may have been wrong before, and may still be."""
    clock = PurgeClock()
    clock.doubt(NOW + 3 * MONTH_US, NOW + 3 * MONTH_US, 0.0)
    assert clock.doubt(NOW + 2 * MONTH_US, NOW, 0.0) == 2 * MONTH_US
    assert clock.doubt(NOW, NOW, 1.0) == 0


def test_a_clock_that_was_set_back_a_little_leaves_the_doubt() -> None:
    clock = PurgeClock()
    clock.doubt(NOW, NOW, 0.0)
    assert clock.doubt(NOW + MONTH_US, NOW, 0.0) == MONTH_US
    assert clock.doubt(NOW + MONTH_US - GRACE_US, NOW, 0.0) == MONTH_US
    assert clock.doubt(NOW + MONTH_US - 2 * GRACE_US - 1, NOW + MONTH_US, 0.0) == 0


def test_time_that_passed_is_no_movement() -> None:
    clock = PurgeClock()
    clock.doubt(NOW, NOW, 5.5)
    assert clock.doubt(NOW + GRACE_US, NOW, 5.5) == 0
    assert clock.doubt(NOW + 2 * GRACE_US + SECOND_US // 2, NOW, 605.0) == 0
    assert clock.doubt(NOW + 2 * GRACE_US + SECOND_US // 2 + GRACE_US + SECOND_US + 1, NOW, 606.0) == GRACE_US + 1


@pytest.mark.parametrize(
    ("now", "newest", "gap", "bound"),
    [
        (NOW, None, 0, NOW),
        (NOW, NOW, 0, NOW),
        (NOW, NOW + MONTH_US, 0, NOW),
        (NOW + DAY_US, NOW, 0, NOW + DAY_US),
        (NOW + DAY_US + 1, NOW, DAY_US + 1, NOW + DAY_US),
        (NOW, 0, NOW, DAY_US),
    ],
)
def test_the_newest_record_explains_a_day(now: int, newest: int | None, gap: int, bound: int) -> None:
    assert clock_gap(now, newest) == gap
    assert bound_now(now, newest) == bound
