"""A census of every store: what is open, UNKNOWN and new, by two reads however much there is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bench.exporters import main as measure
from semel import Answer, Command, Engine, Permit, Policy, Scope
from semel.admin.census import groups, read_census
from semel.exporters.prometheus import StoreGauges
from semel.testing import conformance
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock
from tests.exporters.shop import samples
from tests.servers import redis
from tests.servers.mariadb import MARK, mariadb
from tests.servers.postgres import postgres, schema
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import postgres_subject
from verification.subjects.redis import redis_subject


def subject(store: str, folder: Path, clock: SettableClock) -> Subject:
    match store:
        case "memory":
            return conformance.memory_subject(clock)
        case "sqlite":
            return conformance.sqlite_subject(str(folder / "semel.db"), clock)
        case "valkey":
            return redis_subject("127.0.0.1", redis.valkey(), redis.prefix(), clock)
        case "mariadb":
            return mariadb_subject(mariadb(), clock)
        case _:
            return postgres_subject(postgres(), schema(), clock)


def command(key: str, operation: str = "pay", caller: str = "alice") -> Command:
    return Command(Scope("demo", caller, operation), key, bytes(32), "test", Policy(lease_seconds=30))


def pay(permit: Permit) -> Answer:
    return Answer(201, (), b"paid")


def failing(permit: Permit) -> Answer:
    raise ConnectionError("the provider hung up")


@pytest.mark.parametrize("store", ["memory", "sqlite", "psycopg", "valkey", pytest.param("mariadb", marks=MARK)])
def test_a_census_says_what_is_open_unknown_and_new(store: str, tmp_path: Path) -> None:
    clock = SettableClock()
    with closing(Engine(subject(store, tmp_path, clock).backend)) as engine:
        engine.migrate()
        with pytest.raises(ConnectionError):
            engine.run(command("unknown"), failing)
        engine.claim(command("lapsed", "ship"))
        clock.advance(60_000_000)
        engine.claim(command("open"))
        for number in range(5):
            engine.run(command(f"paid-{number}", caller="bob"), pay)
        seen = read_census(engine)
        assert (len(seen.open), len(seen.lapsed), len(seen.unknown), len(seen.newest)) == (2, 1, 1, 8)
        assert (seen.more, seen.more_new) == (False, False)
        assert seen.new_seconds == 60
        assert [(group.name, group.unknown, group.lapsed) for group in groups(seen, "operation")] == [
            ("pay", 1, 0),
            ("ship", 0, 1),
        ]
        few = read_census(engine, 2)
        assert few.more_new
        assert len(few.newest) == 2
        assert len(few.unknown) == 1  # however many open ones are younger
        registry = CollectorRegistry()
        registry.register(StoreGauges(engine))
        found = samples(generate_latest(registry).decode())
        assert found["idempotency_records_active", (("operation", "ship"),)] == 1
        assert found["semel_oldest_unknown_seconds", (("doubt", "error:ConnectionError"), ("operation", "pay"))] == 60
        engine.drain(0)


def test_the_bench_prints_what_a_command_costs(capsys: pytest.CaptureFixture[str]) -> None:
    measure(commands=10, rounds=2)
    assert "µs a command (goal: at most 3)" in capsys.readouterr().out
