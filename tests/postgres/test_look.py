"""The look for kept answers on PostgreSQL reads a few columns, and says what the rules say of the whole records."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from semel.core.decide import KEPT_COLUMNS
from semel.stores.postgres.rows import SQL
from tests.postgres.conftest import Fellow, Outside
from tests.stores import looks

# What a flipped bit or a statement by hand may leave, as SQL.
DAMAGE = (
    *("NULL", "0", "1", "2", "3", "6", "-1", "7", "1::bigint << 57", "(1::bigint << 57) - 1"),
    *("''", "'1'", "'soon'", r"'\x01'::bytea", r"'\x00000000000000000000000000000000'::bytea"),
)


@pytest.fixture
def fellow_with_answers(fellow: Fellow) -> Fellow:
    looks.keep_answers(fellow)
    return fellow


@pytest.fixture
def run(outside: Outside) -> looks.Run:
    def run(statement: str, values: list[Any]) -> Any:
        ran = outside.connection.execute(statement.replace("%s", "%b"), values)
        return ran.fetchall() if ran.description is not None else None

    return run


def test_the_look_reads_the_columns_of_the_rules() -> None:
    columns = SQL["look_kept"].text.partition("::integer,")[2].partition("FROM")[0]
    assert tuple(name.strip().removeprefix("r.") for name in columns.split(",")) == KEPT_COLUMNS


def test_the_look_agrees_with_the_rules(fellow_with_answers: Fellow) -> None:
    looks.assert_it_finds_what_the_rules_find(fellow_with_answers)


@pytest.mark.parametrize("column", looks.COLUMNS)
def test_damage_is_seen_as_the_rules_see_it(column: str, fellow_with_answers: Fellow, run: looks.Run) -> None:
    looks.assert_damage_is_seen_as_the_rules_see_it(fellow_with_answers, column, DAMAGE, run, psycopg.Error)


def test_an_answer_that_is_over_is_not_found(fellow_with_answers: Fellow, run: looks.Run) -> None:
    looks.assert_an_answer_that_is_over_is_not_found(fellow_with_answers, run)
