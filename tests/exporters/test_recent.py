"""The last hour and the purge's lag on every store: right, and from a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel import Engine
from semel.admin.census import read_census
from semel.admin.recent import BARS, HOUR_US, LastHour, last_hour, purge_lag
from semel.core.timing import PURGE_GRACE_US
from semel.testing.clock import SettableClock
from tests.exporters.test_census import command, failing, pay, subject
from tests.servers.mariadb import MARK

STORES = ["memory", "sqlite", "psycopg", "valkey", pytest.param("mariadb", marks=MARK)]
READS_MAX = 70
MINUTE_US = 60_000_000


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture(params=STORES)
def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: SettableClock) -> Iterator[Engine]:
    with closing(Engine(subject(request.param, tmp_path, clock).backend)) as opened:
        opened.migrate()
        yield opened


def reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    asked: list[object] = []
    find = engine.store.find

    def counting(query: object) -> object:
        asked.append(query)
        return find(query)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.store, "find", counting, raising=False)
    return asked


def purge(engine: Engine) -> None:
    after: int | None = None
    while True:
        done = engine.perform("purge", lambda after=after: engine.store.purge(after, 500))  # type: ignore[misc]
        if (after := done.next_after) is None:
            return


def test_an_hour_that_a_census_has_read_is_exact(engine: Engine, clock: SettableClock) -> None:
    engine.run(command("old"), pay)
    clock.advance(2 * HOUR_US)
    with pytest.raises(ConnectionError):
        engine.run(command("lost"), failing)
    clock.advance(HOUR_US // 2)
    for number in range(3):
        engine.run(command(f"now-{number}"), pay)
    found = last_hour(engine, read_census(engine))
    assert (len(found.new), sum(found.new), found.new[-1], found.new[BARS // 2]) == (BARS, 4, 3, 1)
    assert (sum(found.unended), found.unended[BARS // 2], found.estimated) == (1, 1, False)


def test_a_busy_hour_is_estimated_from_samples(
    engine: Engine, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours, the last of which has a busy half and a quiet one; every tenth number of the order is unused."""
    for number in range(400):  # older than the hour
        engine.run(command(f"old-{number}"), pay)
        clock.advance(MINUTE_US // 10)
    clock.advance(HOUR_US)
    for number in range(1200):
        engine.run(command(f"busy-{number}"), pay)
        clock.advance(HOUR_US // 2 // 1200)
    for number in range(300):
        engine.run(command(f"quiet-{number}"), pay)
        clock.advance(HOUR_US // 2 // 300)
    seen = read_census(engine, 100)
    asked = reads(engine, monkeypatch)
    found = last_hour(engine, seen)
    assert found.estimated
    assert len(asked) <= READS_MAX
    busy, quiet = sum(found.new[: BARS // 2]), sum(found.new[BARS // 2 :])
    assert busy == pytest.approx(1200, rel=0.15), found
    assert quiet == pytest.approx(300, rel=0.15), found
    assert found.document()["newRecords"] == busy + quiet


def test_the_purge_lag_counts_overdue_records_and_their_age(
    engine: Engine, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        engine.run(command(f"k-{number}"), pay)
        clock.advance(1_000_000)
    policy = command("k").policy
    assert purge_lag(engine, read_census(engine, 20)).seconds == 0
    clock.advance(int(policy.answer_seconds * 1_000_000) - 300_000_000 + PURGE_GRACE_US + 3 * HOUR_US)
    for number in range(200):
        engine.run(command(f"new-{number}"), pay)
    seen = read_census(engine, 20)
    asked = reads(engine, monkeypatch)
    found = purge_lag(engine, seen)
    assert found.seconds == pytest.approx(3 * 3600, abs=300), found
    assert 0 < found.looked <= 50
    assert len(asked) <= READS_MAX
    purge(engine)
    assert purge_lag(engine, read_census(engine, 20)).seconds == 0


def test_an_empty_store_has_no_last_hour_and_no_purge_lag(engine: Engine) -> None:
    seen = read_census(engine)
    assert last_hour(engine, seen) == LastHour((0,) * BARS, (0,) * BARS, estimated=False)
    assert purge_lag(engine, seen) == (0, 0)
