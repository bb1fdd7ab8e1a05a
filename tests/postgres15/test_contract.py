"""The contract on PostgreSQL 15, through one client library: all of them run it on the newest server."""

from __future__ import annotations

import psycopg
import pytest

from semel.testing import conformance
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock
from tests.servers.postgres import MARK_15, postgres15, schema
from verification.subjects.postgres import postgres_subject

pytestmark = MARK_15


def test_the_server_is_postgresql_15() -> None:
    with psycopg.connect(postgres15()) as connection:
        assert connection.info.server_version // 10_000 == 15


@pytest.mark.parametrize("name", conformance.CASES)
def test_the_contract(name: str) -> None:
    def subject(clock: SettableClock) -> Subject:
        return postgres_subject(postgres15(), schema(), clock)

    conformance.run(name, subject, "sync")
