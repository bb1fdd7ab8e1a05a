"""The look for kept answers on PostgreSQL reads a few columns, and says what the rules say of the whole records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from semel.core.contract import Known
from semel.core.decide import KEPT_COLUMNS, find_replay
from semel.core.model import Claim, Proceed, Record, Replay
from semel.stores.postgres.rows import SQL
from semel.testing.attempts import OK, attempt, settlement
from tests.postgres.conftest import Fellow, Outside

CLAIMS = [attempt(f"k{number}") for number in range(3)]
# What a flipped bit or a statement by hand may leave, as SQL.
DAMAGE = (
    *("NULL", "0", "1", "2", "3", "6", "-1", "7", "1::bigint << 57", "(1::bigint << 57) - 1"),
    *("''", "'1'", "'soon'", r"'\x01'::bytea", r"'\x00000000000000000000000000000000'::bytea"),
)


def known(claim: Claim) -> Known:
    return claim.id, claim.recipe, claim.fingerprint


@pytest.fixture
def fellow_with_answers(fellow: Fellow) -> Fellow:
    """With answers of three commands: two of one length, one with other headers."""
    store = fellow.engine.store
    verdicts = fellow.performs("claim", lambda: store.claim(CLAIMS))
    assert all(isinstance(verdict, Proceed) for verdict in verdicts)
    answers = (OK, OK._replace(body=b"else"), OK._replace(headers=()))
    said = [settlement(verdict.grant, answer=answer) for verdict, answer in zip(verdicts, answers, strict=True)]
    fellow.performs("settle", lambda: store.settle(said))
    return fellow


def by_the_look(fellow: Fellow, asked: Sequence[Known]) -> list[Any]:
    return list(fellow.performs("look_kept", lambda: fellow.engine.store.look_kept(asked)))


def by_the_rules(fellow: Fellow, asked: Sequence[Known]) -> list[Any]:
    now = CLAIMS[0].terms.answer_us  # long before any answer is over
    rows = fellow.performs("read", lambda: fellow.engine.store.read([id for id, _, _ in asked]))
    return [find_replay(row, *each, now=now) for row, each in zip(rows, asked, strict=True)]


def test_it_reads_the_columns_of_the_rules() -> None:
    columns = SQL["look_kept"].text.partition("::integer,")[2].partition("FROM")[0]
    assert tuple(name.strip().removeprefix("r.") for name in columns.split(",")) == KEPT_COLUMNS


def test_it_finds_what_the_rules_find(fellow_with_answers: Fellow) -> None:
    first, second, third = map(known, CLAIMS)
    missing, other = known(attempt("never")), known(attempt("k0", request=1))
    for asked in ([first], [first, second], [second, first, first], [first, third], [missing], [first, missing, third]):
        seen = by_the_look(fellow_with_answers, asked)
        assert seen == by_the_rules(fellow_with_answers, asked)
        assert [isinstance(each, Replay) for each in seen] == [each != missing for each in asked]
    assert by_the_look(fellow_with_answers, [second, other]) == [*by_the_look(fellow_with_answers, [second]), None]
    assert by_the_look(fellow_with_answers, [(first[0], "2.tests", first[2]), second])[0] is None


@pytest.mark.parametrize("column", [name for name in Record._fields if name != "id"])
def test_damage_is_seen_as_the_rules_see_it(column: str, fellow_with_answers: Fellow, outside: Outside) -> None:
    asked = list(map(known, CLAIMS[:2]))
    connection = outside.connection
    [(before,)] = connection.execute(f"SELECT {column} FROM semel_record WHERE id = %b", [CLAIMS[1].id]).fetchall()
    changed = 0
    for value in DAMAGE:
        try:
            connection.execute(f"UPDATE semel_record SET {column} = {value} WHERE id = %b", [CLAIMS[1].id])
        except psycopg.Error:  # the column takes none such
            continue
        changed += 1
        assert by_the_look(fellow_with_answers, asked) == by_the_rules(fellow_with_answers, asked), value
        connection.execute(f"UPDATE semel_record SET {column} = %b WHERE id = %b", [before, CLAIMS[1].id])
    assert changed
    assert None not in by_the_look(fellow_with_answers, asked)


def test_an_answer_that_is_over_is_not_found(fellow_with_answers: Fellow, outside: Outside) -> None:
    asked = list(map(known, CLAIMS[:2]))
    outside.connection.execute("UPDATE semel_record SET answer_until = settled_at WHERE id = %b", [CLAIMS[1].id])
    first, second = by_the_look(fellow_with_answers, asked)
    assert isinstance(first, Replay)
    assert second is None
    outside.connection.execute("UPDATE semel_record SET answer_until = NULL WHERE id = %b", [CLAIMS[1].id])
    assert None not in by_the_look(fellow_with_answers, asked)
