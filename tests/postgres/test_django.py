"""Django's TestCase around a command: the test's own transaction holds record and writes, and nothing of it stays."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase

from semel import Engine
from semel.errors import JoinRefused, KeyReusedError, SupersededError
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Outside
from tests.postgres.users import ALIAS, django_connection
from tests.servers.postgres import schema


@pytest.fixture
def engine(conninfo: str) -> Iterator[Engine]:
    made = Engine(postgres_backend(conninfo, schema=schema()))
    yield made
    made.close()


@pytest.fixture
def connection(conninfo: str) -> Iterator[Any]:
    made = django_connection(conninfo)
    yield made
    made.close()


def in_a_test(story: Any) -> None:
    """Run ``story(case)`` as the one test of a TestCase."""

    class Case(TestCase):  # type: ignore[misc]  # Django ships no types
        databases = {ALIAS}  # noqa: RUF012 - as Django has it

        def test_it(self) -> None:
            story(self)

    result = unittest.TestResult()
    unittest.TestSuite([Case("test_it")]).run(result)
    assert [text for _, text in result.errors + result.failures] == []
    assert result.testsRun == 1


def test_a_test_case_sees_everything_and_leaves_nothing(engine: Engine, connection: Any, outside: Outside) -> None:
    def view(n: int) -> bool:
        with transaction.atomic(using=ALIAS), engine.atomic(connection, WHAT) as once:
            if not once.replayed:
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO effect VALUES (%s)", [n])
                once.answer = MADE
        return bool(once.replayed)

    def story(case: TestCase) -> None:
        assert (view(1), view(2)) == (False, True)
        with transaction.atomic(using=ALIAS), pytest.raises(KeyReusedError):
            engine.atomic(connection, command(request=1, policy=ATOMIC)).__enter__()
        with connection.cursor() as cursor:
            cursor.execute("SELECT n FROM effect")
            assert cursor.fetchall() == [(1,)]

    for _ in range(2):
        in_a_test(story)
        assert (outside.rows(), outside.states) == ([], [])


def test_joins_refused_outside_of_tests_are_refused_in_them(engine: Engine, connection: Any) -> None:
    def story(case: TestCase) -> None:
        with pytest.raises(JoinRefused, match=r"with transaction\.atomic"):
            engine.atomic(connection, WHAT).__enter__()
        with (
            transaction.atomic(using=ALIAS),
            transaction.atomic(using=ALIAS),
            pytest.raises(JoinRefused, match="savepoint"),
        ):
            engine.atomic(connection, WHAT).__enter__()

    in_a_test(story)


def test_a_block_that_was_rolled_back_in_a_test_is_run_again(engine: Engine, connection: Any, outside: Outside) -> None:
    def story(case: TestCase) -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), transaction.atomic(using=ALIAS):
                fails(engine, connection)

    in_a_test(story)
    assert outside.states == []


def fails(engine: Engine, connection: Any) -> None:
    with engine.atomic(connection, WHAT) as once:
        assert not once.replayed
        raise ZeroDivisionError


def test_a_swallowed_refusal_of_the_settlement_is_not_committed(
    engine: Engine, connection: Any, outside: Outside
) -> None:
    """Django would send COMMIT to a transaction that has failed, and call it a success."""

    def tamper() -> None:
        with engine.atomic(connection, WHAT) as once, connection.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (1)")
            cursor.execute("DELETE FROM semel_record")
            once.answer = MADE

    with transaction.atomic(using=ALIAS):
        with pytest.raises(SupersededError):
            tamper()
        assert connection.needs_rollback
    assert (outside.rows(), outside.states) == ([], [])
