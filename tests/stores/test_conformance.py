"""Every store through the one suite, in threads and on an event loop, by every client library and on every route."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.testing import conformance
from semel.testing.bench import Mode, Subject
from semel.testing.clock import SettableClock
from tests.servers import redis, sentinel
from tests.servers.needed import needs
from tests.servers.postgres import postgres, schema
from verification.subjects.postgres import postgres_subject
from verification.subjects.redis import redis_subject


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "store",
    [
        *("memory", "sqlite", "psycopg", "asyncpg", "valkey", "cluster"),
        pytest.param("sentinel", marks=needs("redis")),  # and behind it the system's own Redis
    ],
)
@pytest.mark.parametrize("name", conformance.CASES)
def test_the_contract(name: str, store: str, mode: Mode, tmp_path: Path) -> None:
    def subject(clock: SettableClock) -> Subject:
        match store:
            case "memory":
                return conformance.memory_subject(clock)
            case "sqlite":
                return conformance.sqlite_subject(str(tmp_path / "semel.db"), clock)
            case "valkey" | "cluster":
                port = redis.valkey() if store == "valkey" else redis.cluster()
                return redis_subject("127.0.0.1", port, redis.prefix(), clock, cluster=store == "cluster")
            case "sentinel":
                return redis_subject(
                    "127.0.0.1", sentinel.start_watching(), redis.prefix(), clock, service=sentinel.SERVICE
                )
            case _:
                return postgres_subject(postgres(), schema(), clock, asyncpg=store == "asyncpg")

    conformance.run(name, subject, mode)


def test_every_case_has_a_docstring() -> None:
    assert [name for name, case in conformance.CASES.items() if not case.__doc__] == []
