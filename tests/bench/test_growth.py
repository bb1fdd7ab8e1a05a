"""The growth measurements use records as a store writes them: loaded ones replay, are counted and are purged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.growth import counts
from bench.growth.commands import WrongAnswer
from bench.growth.main import main
from bench.growth.places import Place, place
from bench.growth.records import Age, Population, answer, command, quickly, record
from bench.growth.run import verify
from semel import AsyncEngine, Engine
from semel.core.flow import Flow
from semel.core.model import KeyExpired, Record, Replay, State
from semel.core.outcomes import Refused, Succeeded
from semel.core.timing import PURGE_GRACE_US
from semel.stores.clock import system_clock
from tests.servers import postgres

RECORDS = 2_000
DAY_US = 86_400_000_000


def url_of(kind: str, folder: Path) -> str:
    """A store's URL for this test alone."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'growth.db'}"
    return postgres.postgres()


@pytest.fixture(params=["sqlite", "postgresql"])
def small_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place with a small population; its number of records is its schema's name on the shared server."""
    where = place(url_of(request.param, tmp_path), RECORDS)
    where.make(Population(RECORDS, system_clock()))
    yield where
    where.drop()


# --- the records ---


@pytest.mark.parametrize("dropped", [False, True])
def test_bulk_loading_makes_the_rows_that_the_rules_make(dropped: bool) -> None:
    bits, settled = bytes(range(26)), 1_800_000_000_000_000
    for number in (0, 1, 31, 32, 33, 999_999, 1_234_567):
        slow = record(number, settled + number, bits, answer_dropped=dropped)
        assert quickly(number, settled + number, bits, dropped) == slow


def test_a_loaded_row_equals_what_an_engine_writes_for_the_same_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'engine.db'}"
    engine = Engine.connect(url)
    engine.migrate()
    for number in (32, 33):
        permit = engine.claim(command(number))
        said = answer(number)
        engine.settle(permit, Refused(said) if said.status == 422 else Succeeded(said))  # type: ignore[arg-type]
        [written] = engine.perform("read", lambda id=permit.grant.id: engine.store.read([id]))  # type: ignore[misc, union-attr]
        assert written is not None
        assert written.settled_at is not None

        made = record(number, written.settled_at, bytes(26), answer_dropped=False)

        assert lasting(made) == lasting(written)
        assert type_names(made) == type_names(written)
    engine.close()


def lasting(row: Record) -> dict[str, object]:
    """All but what is random, the process's own, or the time of the claim; of times, how far they are from it."""
    values = row._asdict()
    for name in ("nonce", "holder", "operation_id", "settled_at", "answer_until", "forget_after"):
        del values[name]
    for name in ("fence", "first_started_at", "lease_until", "deadline_at", "dedup_until", "created_at"):
        values[name] -= row.created_at
    assert row.settled_at is not None
    assert row.answer_until is not None
    assert row.forget_after is not None
    return {**values, "answer": row.answer_until - row.settled_at, "fact": row.forget_after - row.settled_at}


def type_names(row: Record) -> list[str]:
    """Return the types of the values in each column."""
    return [next(name for name in ("int", "str", "bytes", "NoneType") if is_a(value, name)) for value in row]


def is_a(value: object, name: str) -> bool:
    """Whether a value is of this type; members of enumerations are written as numbers."""
    return any(kind.__name__ == name for kind in type(value).__mro__)


def test_the_age_of_a_record_decides_what_has_expired() -> None:
    now = 100 * DAY_US
    population = Population(RECORDS, now)
    rows = list(population.rows())

    settled = [row.settled_at or 0 for row in rows]
    forgettable = [row.forget_after is not None and row.forget_after + PURGE_GRACE_US <= now for row in rows]
    answers_over = [row.answer_until is not None and row.answer_until + PURGE_GRACE_US <= now for row in rows]
    assert len(rows) == RECORDS
    assert len({row.id for row in rows}) == RECORDS
    assert settled == sorted(settled)
    assert settled[-1] < now
    assert [number for number in range(RECORDS) if forgettable[number]] == list(population.part(Age.FORGETTABLE))
    assert [number for number in range(RECORDS) if not answers_over[number]] == list(population.part(Age.LIVE))
    assert all((row.body is None) is (n in population.part(Age.TOMBSTONE)) for n, row in enumerate(rows))


# --- the stores ---


def test_loaded_records_replay_and_are_purged_through_the_engine(small_place: Place) -> None:
    population = Population(RECORDS, 0)
    with Engine.connect(small_place.url) as engine:
        for age in Age:
            for number in list(population.part(age))[::37]:
                verdict = engine.claim(command(number))
                if age is Age.LIVE:
                    assert isinstance(verdict, Replay)
                    assert verdict.answer == answer(number)
                else:
                    assert isinstance(verdict, KeyExpired)
        assert sum(engine.perform("counts", engine.store.counts).values()) == RECORDS

        purged = engine.perform("purge", lambda: engine.store.purge(None, RECORDS + 1))

        assert (purged.scanned, purged.forgotten, purged.answers_dropped) == (RECORDS, 200, 200)
        again = engine.perform("purge", lambda: engine.store.purge(None, RECORDS + 1))
        assert (again.forgotten, again.answers_dropped) == (0, 0)
    sizes = small_place.sizes()
    assert sizes.rows == RECORDS - 200
    assert sizes.table > 100_000
    assert all(size > 0 for size in sizes.indexes.values())


def test_on_postgresql_no_statement_counts_more_than_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside ten million records one statement took longer than a call may, and with it failed every `semel purge`."""
    monkeypatch.setattr("semel.stores.sql.lapsed_scan.COUNTED_AT_ONCE", 300)
    where = place(postgres.postgres(), RECORDS + 1)
    where.make(Population(RECORDS + 1, system_clock()))
    pages: list[int] = []

    def counting() -> Flow[dict[int, int]]:
        flow = engine.store.counts()
        needed = next(flow)
        while True:
            reply = yield needed
            pages.append(sum(count for _, count, _ in reply))
            try:
                needed = flow.send(reply)
            except StopIteration as stop:
                found: dict[int, int] = stop.value
                return found

    with Engine.connect(where.url) as engine:
        found = engine.perform("counts", counting)
    where.drop()

    assert found == {int(State.SUCCEEDED): 1938, int(State.FAILED_REPLAYABLE): 63}
    assert pages == [300] * 6 + [201]


def test_a_wrong_verdict_stops_the_run(tmp_path: Path) -> None:
    where = place(f"sqlite:///{tmp_path / 'wrong.db'}", RECORDS)
    where.make(Population(RECORDS, system_clock() - 2 * DAY_US))

    async def verify_all() -> None:
        async with AsyncEngine.connect(where.url) as engine:
            await verify(engine, Population(RECORDS, 0))

    with pytest.raises(WrongAnswer, match="LIVE"):
        asyncio.run(verify_all())


# --- the command ---

SMALL = ["--records", "2000", "--compare", "200", "--rounds", "1", "--seconds", "0.1"]


def test_a_small_run_measures_every_size_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'growth.db'}"

    assert main(["--url", url, *SMALL, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert list(document["cells"]) == ["0", "200", "2000"]
    for records, cell in document["cells"].items():
        assert cell["sizes"]["rows"] == int(records)
        assert all(len(cell[name]) == 1 and cell[name][0] > 0 for name in ("alone", "crowd", "replays", "crowd_p99"))
    assert {records: (found["forgotten"], found["dropped"]) for records, found in document["purged"].items()} == {
        "2000": (200, 200)
    }
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_loaded_before_is_measured_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'growth.db'}"
    assert main(["--url", url, *SMALL, "--load"]) == 0
    assert "loaded: 200 in" in capsys.readouterr().out

    assert main(["--url", url, *SMALL, "--no-purge"]) == 0

    said = capsys.readouterr().out
    assert "- found: already loaded: 0, 200, 2,000" in said
    assert "| commands/s, 32 at once: 2,000 by 200 records |" in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_load_did_not_end_is_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'growth.db'}"
    place(f"sqlite:///{tmp_path / 'growth.db'}", 2000).make(Population(10, system_clock()))

    assert main(["--url", url, *SMALL]) == 1

    said = capsys.readouterr().err
    assert "with 10 records instead of 2,000" in said
    assert "Remove it" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--url", "redis://localhost"], "give --url sqlite:///PATH or postgresql://"),
        (["--url", "sqlite:///"], "sqlite:/// needs a file"),
        (["--url", "postgresql://localhost/x?schema=mine"], "without options"),
    ],
)
def test_a_url_that_cannot_be_used_is_reported(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 1

    assert said in capsys.readouterr().err


def test_an_unreachable_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "postgresql://127.0.0.1:1/none"]) == 1

    assert "PostgreSQL cannot be reached" in capsys.readouterr().err


def test_what_a_command_touches_is_counted_and_scans_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert counts.main(["--url", postgres.postgres(), "3000"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert tuple(head.split("\t")) == counts.HEAD
    found = {name: list(map(float, values)) for _, name, *values in (line.split("\t") for line in lines)}
    for name, pages in (("command", 24), ("replay", 5)):
        scans, lookups, *touched = found[name]
        assert scans == 0, found
        assert 1 <= lookups < 4, found
        assert 2 <= sum(touched) <= pages, found


def test_on_postgresql_a_run_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    server = postgres.postgres()
    small = ["--records", "1999", "--compare", "199", "--rounds", "1", "--seconds", "0.1", "--no-purge", "--json"]

    assert main(["--url", server, *small]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["cells"]["1999"]["logged"][0] > 100
    with psycopg.connect(server) as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'semel_growth_%99'").fetchall()
    assert left == []
